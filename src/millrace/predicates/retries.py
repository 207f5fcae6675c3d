"""Repeating calls that raised, after waits that grow.

The library for it is loaded only where something is to be repeated: it takes asyncio with it, and
most tasks need neither.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from millrace.predicates.spec import PredicateSpec

FIRST_WAIT = 0.1
LONGEST_WAIT = 30.0
"""Seconds between attempts: random, up to these bounds, doubling from the first to the longest."""


def schedule(spec: PredicateSpec) -> dict[str, Any]:
    """Return when to repeat and when to stop, as tenacity's classes take it."""
    from tenacity import stop_after_attempt, wait_random_exponential

    return {
        "stop": stop_after_attempt(spec.retries + 1),
        "wait": wait_random_exponential(multiplier=FIRST_WAIT, max=LONGEST_WAIT),
        "reraise": True,
    }


def retried(spec: PredicateSpec, before: Callable[[Any], None] = lambda _: None) -> Callable[..., Any]:
    """Return the predicate's function with its retries, after the last of which it raises.

    Args:
        spec: Of any kind but ``async``.
        before: Called before each wait.
    """
    if not spec.retries:
        return spec.function
    from tenacity import Retrying

    return Retrying(**schedule(spec), before_sleep=before).wraps(spec.function)
