"""Access modules that work in-process, over tables and functions, with delays on a clock."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import pyarrow as pa

from millrace.engine.access.modules import Answer, Scan
from millrace.engine.stems.bindings import KeyedRows
from millrace.engine.tuples import KeyColumn, codes, keyed
from millrace.errors import BudgetError, InputError, near
from millrace.limits.clock import Clock


class PacedScan(Scan):
    """A scan AM whose batches take their time.

    Args:
        name: For reports and errors.
        batches: What it returns; None where there is nothing at present.
        clock: What delays are measured by.
        every: Seconds between batches.
        stall: ``(after, seconds)``: a pause once so many batches have been returned; infinite seconds for one
            that never ends.
        breaks: The source ends early: there is no EOT behind the last batch.
    """

    def __init__(
        self,
        name: str,
        batches: Iterable[pa.RecordBatch | None],
        clock: Clock,
        every: float = 0.0,
        stall: tuple[int, float] | None = None,
        *,
        breaks: bool = False,
    ) -> None:
        super().__init__(name, batches, clock)
        self._every = every
        self._stall = stall
        self._breaks = breaks
        self._returned = 0
        self._pause()

    def poll(self) -> pa.RecordBatch | None:
        """Return the next batch, or None if there is none at the moment."""
        batch = super().poll()
        if self._breaks and self.state == "complete":
            self.state = "broken"
        if batch is not None:
            self._returned += 1
            self._pause()
        return batch

    def _pause(self) -> None:
        self._next = self._clock.now() + self._every
        if self._stall is not None and self._stall[0] == self._returned:
            self._next += self._stall[1]


Find = Callable[[pa.RecordBatch], pa.RecordBatch]


class Index:
    """An index AM over a table or a function.

    Args:
        name: For reports and errors.
        columns: The bind columns.
        source: The table; or a function that returns the tuples that agree with any of the bindings it gets.
        clock: What delays are measured by.
        delay: Seconds from the start of a lookup to its answer.
        in_flight: Bindings that are looked up at the same time; None for any number.
        capacity: Bindings pending from which on it is full.
        budget: Bindings that it answers, and no more; None for any number.

    Raises:
        InputError: There is no bind column, or the table has no such column.

    Attributes:
        asked: Bindings submitted so far.
        at_once: Bindings that are looked up at the same time.
    """

    def __init__(
        self,
        name: str,
        columns: Sequence[str],
        source: pa.Table | Find,
        clock: Clock,
        delay: float = 0.0,
        in_flight: int | None = None,
        capacity: int = 65_536,
        budget: int | None = None,
    ) -> None:
        self.name = name
        self.columns = tuple(columns)
        self.asked = 0
        if not self.columns:
            raise InputError(f"index {name!r} has no bind column; a source without one is a scan")
        if isinstance(source, pa.Table):
            for column in self.columns:
                if column not in source.column_names:
                    raise InputError(
                        f"index {name!r} binds column {column!r}, which its table does not have: "
                        f"{near(column, source.column_names)}"
                    )
        self._find = source if callable(source) else _Finder(source)
        self._clock = clock
        self._delay = delay
        self.at_once = in_flight
        self._capacity = capacity
        self._left = math.inf if budget is None else budget
        self._refused = False
        self._pending = 0
        self._free = -math.inf
        self._asked: deque[tuple[float, pa.RecordBatch]] = deque()

    @property
    def pending(self) -> int:
        """Bindings submitted and not yet answered."""
        return self._pending

    @property
    def is_full(self) -> bool:
        """Whether no more should be submitted before some are answered."""
        return self._pending >= self._capacity

    def submit(self, bindings: pa.RecordBatch) -> None:
        """Take bindings; they are answered in their order."""
        self.asked += bindings.num_rows
        self._pending += bindings.num_rows
        if bindings.num_rows > self._left:
            bindings, self._refused = bindings.slice(0, int(self._left)), True
        self._left -= bindings.num_rows
        if not bindings.num_rows:
            return
        if self.at_once is None:
            self._asked.append((self._clock.now() + self._delay, bindings))
            return
        self._free = max(self._free, self._clock.now())
        for low in range(0, bindings.num_rows, self.at_once):
            self._free += self._delay
            self._asked.append((self._free, bindings.slice(low, self.at_once)))

    def poll(self) -> list[Answer]:
        """Return the answers whose time has come.

        Raises:
            BudgetError: Some bindings are beyond the budget; once for each time that some were submitted.
        """
        answers = []
        while self._asked and self._asked[0][0] <= self._clock.now():
            _, bindings = self._asked.popleft()
            self._pending -= bindings.num_rows
            answers.append(Answer(bindings, self._find(bindings)))
        if self._refused and not answers:
            self._refused = False
            raise BudgetError(f"the budget of index {self.name!r} is spent")
        return answers

    def due(self) -> float:
        """Return when the next answer comes."""
        return self._asked[0][0] if self._asked else math.inf

    def close(self) -> None:
        """Answer nothing more."""
        self._asked.clear()
        self._pending = 0


class _Finder:
    """Finds a table's rows by bindings; it is indexed for each combination of types that it is asked in."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table
        self._rows: dict[pa.Schema, KeyedRows] = {}

    def __call__(self, bindings: pa.RecordBatch) -> pa.RecordBatch:
        rows = self._rows.get(bindings.schema)
        if rows is None:
            rows = self._rows[bindings.schema] = self._indexed(bindings.schema)
        coded = [codes(bindings.column(key.name), key.type)[0] for key in rows.keys]
        _, found = rows.matches(coded, lambda k: bindings.column(k))
        # Bindings that are different in the types of the join have different rows.
        return rows.store.chunk(np.sort(found))

    def _indexed(self, schema: pa.Schema) -> KeyedRows:
        keys = [KeyColumn(field.name, field.type) for field in schema]
        rows = KeyedRows(self._table.schema, keys)
        for batch in self._table.to_batches():
            rows.append(*keyed(batch, keys))
        return rows
