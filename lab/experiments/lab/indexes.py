"""Remote indexes: one lookup after the other, each of which takes a while and leaves the processor free."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa

from millrace.engine.arrivals.access_modules import Answer, Index
from millrace.limits.clock import Clock


class RemoteIndex(Index):
    """An index that answers one lookup at a time, and notes what it does.

    Args:
        columns: The bind columns.
        table: What is looked up.
        clock: What delays are measured by.
        delay: Seconds of a lookup, or what returns them for one that begins at the time given.

    Attributes:
        lookups: When each lookup began, and how long it took, in seconds.
        answered: When each answer came, and the first bind column's value.
    """

    def __init__(
        self, columns: Sequence[str], table: pa.Table, clock: Clock, delay: float | Callable[[float], float]
    ) -> None:
        super().__init__(",".join(columns), columns, table, clock, in_flight=1)
        self.lookups: list[tuple[float, float]] = []
        self.answered: list[tuple[float, int]] = []
        self._at = delay if callable(delay) else lambda _: delay

    def submit(self, bindings: pa.RecordBatch) -> None:
        """Begin lookups as soon as earlier ones have ended."""
        for row in range(bindings.num_rows):
            began = max(self._free, self._clock.now())
            self._delay = self._at(began)
            self.lookups.append((began, self._delay))
            super().submit(bindings.slice(row, 1))

    def poll(self) -> list[Answer]:
        """Return the answers whose time has come."""
        answers = super().poll()
        keys = [key for answer in answers for key in answer.bindings.column(0).to_pylist()]
        self.answered += [(self._clock.now(), key) for key in keys]
        return answers
