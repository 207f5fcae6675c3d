"""For how long a routing decision holds.

Deshpande 2004, section 2.1.4, renews decisions every so many tuples. Joins cost about the same
for every tuple, so there the first decisions, made on little knowledge, are short and each later one
is four times longer. Users' predicates cost anything from nanoseconds to seconds: there a decision
holds for a stretch of work, measured in seconds.
"""

from __future__ import annotations

from collections.abc import Callable

from millrace.engine.policies import DECISION_GROWTH, DECISION_SECONDS, FIRST_DECISION
from millrace.engine.tuples import Signature

_FIRST_JOIN = 1024
"""Tuples that the first decision for a signature holds for where there are only joins."""


class DecisionLifetime:
    """Says for how many tuples a decision holds.

    Args:
        longest: The most there can be, ``Options.reoptimize_every``.
        busy: Returns the seconds that modules have worked so far; None without users' predicates.
    """

    def __init__(self, longest: int, busy: Callable[[], float] | None) -> None:
        self._longest = longest
        self._busy = busy
        self._seen: dict[Signature, float] = {}

    def lasting(self, signature: Signature, before: int | None) -> int:
        """Return for how many tuples of the signature the decision now made holds.

        Args:
            signature: Whose tuples.
            before: For how many the previous decision held, None for the first one.
        """
        if self._busy is None:
            return min(self._longest, _FIRST_JOIN if before is None else 4 * before)
        now = self._busy()
        spent, self._seen[signature] = now - self._seen.get(signature, now), now
        if before is None:
            return min(self._longest, FIRST_DECISION)
        fitting = DECISION_SECONDS * before / spent if spent > 0 else self._longest
        return round(max(FIRST_DECISION, min(self._longest, DECISION_GROWTH * before, fitting)))
