"""Remote indexes: a lookup takes as long as the index does at the moment, and leaves the processor free.

Avnur & Hellerstein 2000, section 4.4: index servers are remote, so their cost is a delay, which may change.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

import pyarrow as pa

from millrace.arrivals.access_modules import Answer, Index
from millrace.clock import Clock


class RemoteIndex:
    """An index access module with a delay that changes.

    Args:
        name: For reports and errors.
        column: The bind column.
        table: What is looked up.
        clock: What delays are measured by.
        delay: Seconds of a lookup that begins at the time given.
        at_once: Lookups at the same time.

    Attributes:
        lookups: When each lookup began, and how long it took, in seconds.
    """

    def __init__(
        self,
        name: str,
        column: str,
        table: pa.Table,
        clock: Clock,
        delay: Callable[[float], float],
        at_once: int = 1,
    ) -> None:
        self.name = name
        self.columns: tuple[str, ...] = (column,)
        self.at_once = at_once
        self.lookups: list[tuple[float, float]] = []
        self._clock = clock
        self._delay = delay
        self._free = [-math.inf] * at_once
        self._asked: deque[tuple[float, pa.RecordBatch]] = deque()
        self._answers = Index(name, (column,), table, clock)

    @property
    def pending(self) -> int:
        """Bindings submitted and not yet answered."""
        return sum(bindings.num_rows for _, bindings in self._asked)

    @property
    def is_full(self) -> bool:
        """Never."""
        return False

    def submit(self, bindings: pa.RecordBatch) -> None:
        """Begin lookups as soon as earlier ones have ended."""
        for row in range(bindings.num_rows):
            server = self._free.index(min(self._free))
            began = max(self._free[server], self._clock.now())
            took = self._delay(began)
            self._free[server] = began + took
            self.lookups.append((began, took))
            self._asked.append((began + took, bindings.slice(row, 1)))

    def poll(self) -> list[Answer]:
        """Return the answers whose time has come."""
        now = self._clock.now()
        answered = [bindings for due, bindings in self._asked if due <= now]
        self._asked = deque(each for each in self._asked if each[0] > now)
        for bindings in answered:
            self._answers.submit(bindings)
        return self._answers.poll()

    def due(self) -> float:
        """Return when the next answer comes."""
        return min((due for due, _ in self._asked), default=math.inf)

    def close(self) -> None:
        """Answer nothing more."""
        self._asked.clear()
