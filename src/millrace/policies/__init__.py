"""Routing policies, one algorithm a file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from millrace.options import Options
from millrace.policies.a_greedy import AGreedy
from millrace.policies.base import (
    DECISION_GROWTH,
    DECISION_SECONDS,
    FIRST_DECISION,
    Candidate,
    LearningPolicy,
    Policy,
    Shares,
)
from millrace.policies.bounded import Bounded
from millrace.policies.chance import Random
from millrace.policies.cumulative import Cumulative
from millrace.policies.fixed import Fixed
from millrace.policies.greedy import Greedy
from millrace.policies.interactive import Interactive
from millrace.policies.lottery import Lottery
from millrace.policies.naive import Naive
from millrace.policies.rank import Rank
from millrace.policies.windowed_lottery import WindowedLottery

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
