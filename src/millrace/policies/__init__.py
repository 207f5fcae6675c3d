"""Routing policies, one algorithm a file."""

from __future__ import annotations

from collections.abc import Callable

from millrace.options import Options
from millrace.policies.base import Candidate, LearningPolicy, Policy, Shares
from millrace.policies.chance import Random
from millrace.policies.fixed import Fixed
from millrace.policies.greedy import Greedy
from millrace.policies.rank import Rank

POLICIES: dict[str, Callable[[Options], Policy]] = {
    "greedy": lambda options: Greedy(options.seed),
    "rank": lambda options: Rank(options.seed),
    "fixed": lambda options: Fixed(options.order),
    "random": lambda options: Random(options.seed),
}
"""How to make each policy from the options, by its name in ``Options.policy``."""

__all__ = ["POLICIES", "Candidate", "Fixed", "Greedy", "LearningPolicy", "Policy", "Random", "Rank", "Shares"]
