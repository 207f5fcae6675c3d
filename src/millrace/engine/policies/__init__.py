"""Routing policies, a file for each family.

Invariant: a policy sees signatures, legal operators and what was measured, never data, and decides on shares
of 1.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Mapping
from copy import deepcopy
from types import MappingProxyType
from typing import Any, cast

from millrace.engine.policies.base import Candidate, Decision, LearningPolicy, Policy, Shares
from millrace.engine.policies.bounded import Bounded
from millrace.engine.policies.cumulative import Cumulative
from millrace.engine.policies.filter_order import AGreedy
from millrace.engine.policies.lottery import Lottery, Naive, WindowedLottery
from millrace.engine.policies.simple import Fixed, Greedy, Interactive, Random, Rank
from millrace.errors import OptionError
from millrace.options import Options

POLICIES: Mapping[str, Callable[[Options], Policy]] = MappingProxyType(
    {
        "greedy": lambda options: Greedy(options.seed),
        "rank": lambda options: Rank(options.seed),
        "fixed": lambda options: Fixed(options.order),
        "random": lambda options: Random(options.seed),
        "naive": lambda _: Naive(),
        "lottery": lambda _: Lottery(by_cost=True),
        "windowed_lottery": lambda _: WindowedLottery(by_cost=True),
        "a_greedy": lambda options: AGreedy(options.seed),
        "bounded": lambda options: Bounded(options.regret),
        "cumulative": lambda _: Cumulative(),
        "interactive": lambda options: Interactive(options.seed),
    }
)
"""How to make each policy from the options, by its name in ``Options.policy``.

It is read-only: tasks have a copy of their own, which a change here would not reach.
"""


def policy_from(given: Any, options: Options) -> Policy:
    """Return a policy for one eddy.

    ``given`` is what ``Options.policy`` may be: a name, an object, a class, or ``"package.module:Class"``.

    Raises:
        OptionError: There is none, importing, making or copying it raised, or it has no method ``choose``.
    """
    if isinstance(given, str) and given in POLICIES:
        return POLICIES[given](options)
    try:
        kind = pkgutil.resolve_name(given) if isinstance(given, str) else given
        made = kind() if isinstance(kind, type) else deepcopy(kind)
    except Exception as error:  # code of the user's runs
        raise OptionError(f"option policy is {given!r}, of which none can be made: {error}") from error
    if not callable(getattr(made, "choose", None)):
        raise OptionError(f"option policy is {given!r}: expected a method choose(signature, candidates)")
    return cast(Policy, made)


def default_policy(*, joins: bool, predicates: bool) -> str:
    """Return the name of the policy that measures best (docs/policies.md); ``predicates`` are users'."""
    if not predicates:
        return "greedy"
    return "rank" if joins else "bounded"


__all__ = [
    "POLICIES",
    "AGreedy",
    "Bounded",
    "Candidate",
    "Cumulative",
    "Decision",
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
    "policy_from",
]
