"""Routing policies, a file for each family.

Invariant: a policy sees signatures, legal operators and what was measured, never data, and returns shares
of 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from millrace.engine.policies.a_greedy import AGreedy
from millrace.engine.policies.base import (
    DECISION_GROWTH,
    DECISION_SECONDS,
    FIRST_DECISION,
    Candidate,
    LearningPolicy,
    Policy,
    Shares,
)
from millrace.engine.policies.bounded import Bounded
from millrace.engine.policies.cumulative import Cumulative
from millrace.engine.policies.fixed import Fixed, Random
from millrace.engine.policies.greedy import Greedy, Interactive, Rank
from millrace.engine.policies.lottery import Lottery, Naive, WindowedLottery
from millrace.options import Options

POLICIES: Mapping[str, Callable[[Options], Policy]] = MappingProxyType(
    {
        "greedy": lambda options: Greedy(options.seed),
        "rank": lambda options: Rank(options.seed),
        "fixed": lambda options: Fixed(options.order),
        "random": lambda options: Random(options.seed),
        "naive": lambda _: Naive(),
        "lottery": lambda _: Lottery(),
        "windowed_lottery": lambda _: WindowedLottery(),
        "a_greedy": lambda options: AGreedy(options.seed),
        "bounded": lambda options: Bounded(options.regret),
        "cumulative": lambda _: Cumulative(),
        "interactive": lambda options: Interactive(options.seed),
    }
)
"""How to make each policy from the options, by its name in ``Options.policy``.

It is read-only: tasks have a copy of their own, which a change here would not reach.
"""


def default_policy(*, joins: bool, predicates: bool) -> str:
    """Return the name of the policy that measures best (docs/policies.md).

    Args:
        joins: Several relations are joined.
        predicates: There are users' predicates.
    """
    if not predicates:
        return "greedy"
    return "rank" if joins else "bounded"


__all__ = [
    "DECISION_GROWTH",
    "DECISION_SECONDS",
    "FIRST_DECISION",
    "POLICIES",
    "AGreedy",
    "Bounded",
    "Candidate",
    "Cumulative",
    "Fixed",
    "Greedy",
    "Interactive",
    "LearningPolicy",
    "Lottery",
    "Naive",
    "Policy",
    "Random",
    "Rank",
    "Shares",
    "WindowedLottery",
    "default_policy",
]
