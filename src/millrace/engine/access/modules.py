"""Access modules (AMs): one access method each, a scan or an index.

Raman, Deshpande & Hellerstein 2003, section 2.1.3. An index AM has bind columns; it takes bindings, and
answers some time later with all base tuples that agree with them, and that these are all (the EOT). It never
concatenates: that is the SteMs' part. Nothing here blocks: an AM is handed work and asked what has come, so
one eddy drives many, and one that stalls holds up nobody.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import pyarrow as pa

from millrace.engine.arrays import row_bytes, to_arrow
from millrace.engine.plan.evaluation import widen
from millrace.engine.stems.bindings import BindingSet
from millrace.engine.tuples import KeyColumn, codes
from millrace.errors import BudgetError, ExecutionError
from millrace.limits.clock import POLLED, Clock

_MEMORY = 0.9

_UNMEASURED = 0.001
"""Seconds that a lookup is taken to last before the first answer."""

_TRIAL = 64
"""Bindings that an index which takes any number at once gets before its first answer."""

_UNSEEN = 1024
"""Bytes that a value of a type without a fixed width is taken to have before the first answer."""

State = Literal["open", "complete", "broken"]


class ScanAM(Protocol):
    """Returns all tuples of a relation, in record batches of its schema.

    One that may return a tuple more than once says so by an attribute ``may_repeat``.

    Attributes:
        name: For reports and errors.
        state: ``"complete"`` once everything has been returned (the EOT); ``"broken"`` if no more comes
            although that was not all.
        why: Why it is broken; empty where nobody knows.
    """

    name: str
    state: State
    why: str

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

    One that works on so many bindings at a time, while the rest stand in its queue, may say so: ``at_once``.
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
        """Return the answers that have come since the last call.

        Raises:
            BudgetError: The budget is spent, so some bindings are not asked for. What had come before has
                been returned; what is under way may still come.
        """

    def due(self) -> float | None:
        """Return when to poll again, in seconds of the clock: infinity for never, None if unknown."""

    def close(self) -> None:
        """Let go of the source; what is pending is not wanted any more."""


@runtime_checkable
class Waking(Protocol):
    """An access module that says when to look, rather than being looked at time and again."""

    def wake_by(self, event: threading.Event) -> None:
        """Set this event whenever something has come; the eddy clears it before it looks."""


def is_index(module: ScanAM | IndexAM) -> bool:
    """Whether an access module takes bindings."""
    return hasattr(module, "submit")


class Scan:
    """A scan AM over record batches; None among them where there is nothing at present."""

    def __init__(self, name: str, batches: Iterable[pa.RecordBatch | None], clock: Clock) -> None:
        self.name = name
        self.state: State = "open"
        self.why = ""
        self._batches: Iterator[pa.RecordBatch | None] = iter(batches)
        self._clock = clock
        self._next = clock.now()

    def poll(self) -> pa.RecordBatch | None:
        if self.state != "open" or self._clock.now() < self._next:
            return None
        try:
            batch = next(self._batches)
        except StopIteration:
            self.state = "complete"
            return None
        if batch is None:
            self._next = self._clock.now() + POLLED
        return batch

    def due(self) -> float:
        return self._next if self.state == "open" else math.inf

    def close(self) -> None:
        self._batches = iter(())


class MeasuredIndex:
    """An index AM with a watch: how long its answers take, and how many it gives a second.

    Attributes:
        at_once: Bindings that it works on at the same time; None for any number.
        latency: Seconds from a binding's submission to its answer, recent average; 0 before the first.
        alarm: When something is to be submitted unless much changes before; infinity for nothing.
        spent: Why it takes no more bindings: its budget is spent. None while it takes some.
    """

    def __init__(self, index: IndexAM, clock: Clock) -> None:
        self.name = index.name
        self.columns = index.columns
        self.at_once: int | None = getattr(index, "at_once", None)
        self.latency = 0.0
        self.alarm = math.inf
        self.spent: BudgetError | None = None
        self._index = index
        self._clock = clock
        self._sent: deque[tuple[float, int]] = deque()
        self._since = 0.0
        self._least = _UNMEASURED
        self._each = 0.0

    @property
    def pending(self) -> int:
        return self._index.pending

    @property
    def is_full(self) -> bool:
        return self._index.is_full

    def submit(self, bindings: pa.RecordBatch) -> None:
        now = self._clock.now()
        if not self._index.pending:
            self._since = now
        self._sent.append((now, bindings.num_rows))
        self._index.submit(bindings)

    def poll(self) -> list[Answer]:
        pending = self._index.pending
        answers = self._index.poll()
        if count := sum(answer.bindings.num_rows for answer in answers):
            self._measure(count, pending)
        return answers

    def due(self) -> float | None:
        """Return when to poll again or to submit more."""
        due = self._index.due()
        return None if due is None else min(due, self.alarm)

    def close(self) -> None:
        self._index.close()

    def expect(self, count: int = 1) -> float:
        """Return the seconds that so many more bindings are expected to take, behind the pending ones."""
        oldest = self._clock.now() - self._sent[0][0] if self._sent else 0.0
        return max(self._least, oldest, (self.pending + count) * self._each)

    def room(self, seconds: float) -> int:
        """Return how many bindings to submit now: enough to keep the index busy, and no queue for long.

        As many wait in the index as it works on, so that it need not wait for the eddy. The last of them may
        take ``seconds``.
        """
        if self.is_full:
            return 0
        limit = math.inf if self.at_once is None else 2.0 * self.at_once
        if self.at_once is None and not self.latency:
            limit = _TRIAL
        if self._each and seconds < math.inf:
            limit = min(limit, max(self.pending + 1, seconds // self._each))
        return int(max(0, min(limit, 1 << 30) - self.pending))

    def _measure(self, count: int, pending: int) -> None:
        """Book that so many of the pending bindings have been answered; as if in their order."""
        now = self._clock.now()
        if self.at_once is not None and pending >= self.at_once:  # it was busy: that is what it can do
            each = (now - self._since) / count
            self._each = _average(self._each, each)
        self._since = now
        while count and self._sent:
            sent, bindings = self._sent.popleft()
            took = now - sent
            slower = took > self._least and self.latency
            self._least = _average(self._least, took) if slower else took
            self.latency = _average(self.latency, took)
            if bindings > count:
                self._sent.appendleft((sent, bindings - count))
            count -= min(count, bindings)


def _average(old: float, new: float) -> float:
    return new if not old else _MEMORY * old + (1 - _MEMORY) * new


def expect_bytes(schema: pa.Schema) -> int:
    """Return the bytes that an answer to one binding is taken to have before the first answer."""
    return row_bytes(schema, _UNSEEN)


def check_schema(name: str, schema: pa.Schema, rows: pa.RecordBatch) -> pa.RecordBatch:
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


def keep_asked(rows: pa.RecordBatch, bindings: pa.RecordBatch, keys: Sequence[KeyColumn]) -> pa.RecordBatch:
    """Return the rows that were asked for: others would come again with their own binding."""
    asked = BindingSet(keys)
    asked.add_rows(bindings)
    columns = [widen(rows.column(key.name), key.type) for key in keys]
    both = [codes(c, k.type) for c, k in zip(columns, keys, strict=True)]
    keep = asked.contains([coded for coded, _ in both], columns.__getitem__)
    for _, valid in both:
        keep = keep if valid is None else keep & valid
    return rows if keep.all() else rows.filter(to_arrow(keep))
