"""Access modules (AMs): one access method each, a scan or an index.

Raman, Deshpande & Hellerstein 2003, section 2.1.3. An index AM has bind columns; it takes bindings, and
answers some time later with all base tuples that agree with them, and that these are all (the EOT). It never
concatenates: that is the SteMs' part. Nothing here blocks: an AM is handed work and asked what has come, so
one eddy drives many, and one that stalls holds up nobody.

The AMs of this file work in-process, over tables and functions, with delays on a clock: in tests and
experiments time is simulated.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import numpy as np
import pyarrow as pa

from millrace.engine.arrays import to_arrow
from millrace.engine.plan.evaluation import widen
from millrace.engine.stems.bindings import BindingSet, KeyedRows
from millrace.engine.tuples import KeyColumn, codes, keyed
from millrace.errors import ExecutionError, InputError, near
from millrace.limits.clock import Clock

_POLLED = 0.001
"""Seconds between looks at a source that has nothing at present."""

State = Literal["open", "complete", "broken"]


class ScanAM(Protocol):
    """Returns all tuples of a relation, in record batches of its schema.

    Attributes:
        name: For reports and errors.
        state: ``"complete"`` once everything has been returned (the EOT); ``"broken"`` if no more comes
            although that was not all.
    """

    name: str
    state: State

    def poll(self) -> pa.RecordBatch | None:
        """Return the next batch, or None if there is none at the moment."""

    def due(self) -> float | None:
        """Return when to poll again, in seconds of the clock: infinity for never, None if unknown."""

    def close(self) -> None:
        """Let go of the source: nothing more is wanted."""


@dataclass(frozen=True)
class Answer:
    """What an index AM found.

    Attributes:
        bindings: For which nothing is missing now (EOT); rows of those that were submitted.
        rows: The relation's tuples that agree with one of them, in its schema.
    """

    bindings: pa.RecordBatch
    rows: pa.RecordBatch


class IndexAM(Protocol):
    """Returns the tuples that agree with bindings of some columns, asynchronously.

    Attributes:
        name: For reports and errors.
        columns: The bind columns: all of them are bound by every request.
        pending: Bindings submitted and not yet answered.
        is_full: Whether no more should be submitted before some are answered.
    """

    name: str
    columns: tuple[str, ...]

    @property
    def pending(self) -> int: ...

    @property
    def is_full(self) -> bool: ...

    def submit(self, bindings: pa.RecordBatch) -> None:
        """Take bindings, each new to this AM: a column for each bind column, named so, without nulls.

        A column has the type that the join compares in, which may be wider than the relation's own: every
        row that is equal after widening agrees.
        """

    def poll(self) -> list[Answer]:
        """Return the answers that have come since the last call."""

    def due(self) -> float | None:
        """Return when to poll again, in seconds of the clock: infinity for never, None if unknown."""

    def close(self) -> None:
        """Let go of the source; what is pending is not wanted any more."""


@runtime_checkable
class Waking(Protocol):
    """An access module that says when to look, rather than being looked at time and again."""

    def wake_by(self, event: threading.Event) -> None:
        """Set this event whenever something has come; the eddy clears it before it looks."""


@runtime_checkable
class Bounded(Protocol):
    """An index AM that works on a certain number of bindings at a time; the rest stand in its queue.

    Attributes:
        at_once: That number; None for any number.
    """

    at_once: int | None


def is_index(module: ScanAM | IndexAM) -> bool:
    """Whether an access module takes bindings."""
    return hasattr(module, "submit")


class Scan:
    """A scan AM over record batches.

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
        self.name = name
        self.state: State = "open"
        self._batches: Iterator[pa.RecordBatch | None] = iter(batches)
        self._clock = clock
        self._every = every
        self._stall = stall
        self._breaks = breaks
        self._returned = 0
        self._next = clock.now() + every
        self._pause()

    def poll(self) -> pa.RecordBatch | None:
        """Return the next batch, or None if there is none at the moment."""
        if self.state != "open" or self._clock.now() < self._next:
            return None
        try:
            batch = next(self._batches)
        except StopIteration:
            self.state = "broken" if self._breaks else "complete"
            return None
        if batch is None:
            self._next = self._clock.now() + _POLLED
            return None
        self._returned += 1
        self._next = self._clock.now() + self._every
        self._pause()
        return batch

    def due(self) -> float:
        """Return when the next batch comes."""
        return self._next if self.state == "open" else math.inf

    def close(self) -> None:
        """Return nothing more."""
        self._batches = iter(())

    def _pause(self) -> None:
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
        if self.at_once is None:
            self._asked.append((self._clock.now() + self._delay, bindings))
            return
        self._free = max(self._free, self._clock.now())
        for low in range(0, bindings.num_rows, self.at_once):
            self._free += self._delay
            self._asked.append((self._free, bindings.slice(low, self.at_once)))

    def poll(self) -> list[Answer]:
        """Return the answers whose time has come."""
        answers = []
        while self._asked and self._asked[0][0] <= self._clock.now():
            _, bindings = self._asked.popleft()
            self._pending -= bindings.num_rows
            answers.append(Answer(bindings, self._find(bindings)))
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


def checked(name: str, schema: pa.Schema, rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return an access module's rows; ExecutionError unless they have exactly the relation's schema."""
    if not rows.schema.equals(schema):
        raise ExecutionError(
            f"access module {name!r} returned columns {rows.schema.names} of types "
            f"{[str(t) for t in rows.schema.types]}; expected exactly {schema.names} of types "
            f"{[str(t) for t in schema.types]}"
        )
    return rows


def find_types(name: str, bindings: pa.RecordBatch, asked: Sequence[list[pa.DataType]]) -> int:
    """Return which types of bindings an index has answered, by their place among those it was asked for.

    Raises:
        ExecutionError: It was asked for no bindings of these types.
    """
    if bindings.schema.types not in asked:
        expected = " or ".join(str(list(map(str, types))) for types in asked)
        raise ExecutionError(
            f"index {name!r} answered bindings of types {list(map(str, bindings.schema.types))}; "
            f"expected the bindings that it was asked for, of types {expected}"
        )
    return asked.index(bindings.schema.types)


def agreeing(rows: pa.RecordBatch, bindings: pa.RecordBatch, keys: Sequence[KeyColumn]) -> pa.RecordBatch:
    """Return the rows that were asked for: others would come again with their own binding."""
    asked = BindingSet(keys)
    asked.add_rows(bindings)
    columns = [widen(rows.column(key.name), key.type) for key in keys]
    both = [codes(c, k.type) for c, k in zip(columns, keys, strict=True)]
    keep = asked.contains([coded for coded, _ in both], columns.__getitem__)
    for _, valid in both:
        keep = keep if valid is None else keep & valid
    return rows if keep.all() else rows.filter(to_arrow(keep))
