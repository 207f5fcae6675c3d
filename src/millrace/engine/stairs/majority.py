"""Where most of the tuples of a span go, however decisions about them differ.

Routing decides by signature, so tuples of one span that have passed different predicates may go to different
joins, side by side and for good. Where state belongs follows from spans alone
(:mod:`millrace.engine.stairs.migration`); it would move to and fro if it followed whichever decision came
last.
"""

from __future__ import annotations

from collections import Counter

from millrace.engine.tuples.batch import Signature

_MARGIN = 2.0
"""A place is left for another one to which more than so many times as many tuples go."""

_BACK = 8
"""One out of so many of a span's tuples is looked back on, the latest ones: however they are mixed, chance
moves the shares less and less, and what has become different is still noticed."""


class Majority:
    """Counts tuples by signature, and says where those of a span belong.

    Args:
        window: Tuples of a span to look back on, at least.
    """

    def __init__(self, window: int) -> None:
        self._window = window
        self._seen: Counter[int] = Counter()
        self._recent: dict[int, dict[Signature, float]] = {}
        self._decided: dict[int, dict[Signature, int]] = {}

    def count(self, signature: Signature, tuples: int) -> None:
        """Take note of tuples that are routed."""
        self._seen[signature.span] += tuples
        recent = self._recent.setdefault(signature.span, {})
        recent[signature] = recent.get(signature, 0.0) + tuples
        whole = sum(recent.values())
        most = max(self._window, self._seen[signature.span] / _BACK)
        if whole > most:
            for each in recent:
                recent[each] *= most / whole

    def decide(self, signature: Signature, place: int, present: int | None) -> int:
        """Return where tuples of a span belong, now that those of one signature go to a place.

        Args:
            signature: The signature.
            place: Where its tuples go from now on.
            present: Where tuples of its span have belonged until now.
        """
        decided = self._decided.setdefault(signature.span, {})
        decided[signature] = place
        recent = self._recent.get(signature.span, {})
        tuples: Counter[int] = Counter()
        for each, there in decided.items():
            tuples[there] += 1 + int(recent.get(each, 0))
        best, most = tuples.most_common(1)[0]
        return best if present is None or most > _MARGIN * tuples[present] else present

    def forget(self) -> None:
        """Forget all decisions: places have other names now."""
        self._decided.clear()
