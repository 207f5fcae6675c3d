"""Which order most tuples took, and when that changed."""

from __future__ import annotations

from millrace.operator import Operator, Probe, Select
from millrace.tuples import Signature

_MOST = 200
"""Changes that are kept."""


class Trace:
    """Follows the favourite operator of every signature."""

    def __init__(self) -> None:
        self._favourites: dict[Signature, Operator] = {}
        self._changes: list[tuple[int, str]] = []

    @property
    def changes(self) -> tuple[tuple[int, str], ...]:
        """``(after, order)``: the order that was favoured after so many tuples had come."""
        return tuple(self._changes)

    def decided(self, after: int, signature: Signature, shares: list[tuple[Operator, float]]) -> None:
        """Note a decision made when ``after`` tuples had come."""
        favourite = max(shares, key=lambda pair: pair[1])[0]
        if self._favourites.get(signature) == favourite or not isinstance(favourite, Select | Probe):
            return
        self._favourites[signature] = favourite
        start = next(iter(self._favourites))
        order = self._order(start)
        last = self._changes[-1] if self._changes else None
        if last is not None and order.startswith(last[1]):
            self._changes[-1] = last[0], order  # the same order, of which more is known now
        elif (last is None or last[1] != order) and len(self._changes) < _MOST:
            self._changes.append((after, order))

    def _order(self, signature: Signature) -> str:
        labels = []
        while (operator := self._favourites.get(signature)) is not None:
            labels.append(operator.label)
            bit = 1 << operator.target
            if isinstance(operator, Select):
                signature = signature.having(done=signature.done | bit)
            else:
                signature = signature.having(span=signature.span | bit)
        return " → ".join(labels)
