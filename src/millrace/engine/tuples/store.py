"""The base tuples of one relation in one task, and the key codes they are joined by.

Rows get numbers in the order of arrival. Payload stays in the Arrow batches it came in until some of it is
gathered: for output, for residual predicates and to verify hashed keys. Then it is put together, with room
for what comes later. What joins touch all the time, the key codes, lies in contiguous numpy arrays.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace.engine.arrays import Array, ends_of, extend, fixed_width, joined, to_arrow, to_numpy
from millrace.engine.kernels import MAX_ROWS
from millrace.engine.tuples.growing import Growing
from millrace.engine.tuples.keys import KeyColumn, Values, are_equal
from millrace.errors import ExecutionError

_MERGE_BYTES = 1 << 30  # Arrow's strings have 32-bit offsets: never merge chunks beyond this

BATCH_BYTES = 1 << 26
"""Bytes of texts and the like that are gathered at once, about: rows may be few and wide."""

MOST_ROOM = 1 << 24
"""Estimates may be wrong: no room is made for more rows than this before they are there."""

_PARTS = 1024
"""Arrays that are kept as they came, at most."""


class CodeColumn:
    """Appended ``int64`` codes; places count from the first one held.

    Most codes are only looked at when their tuples arrive, side by side as they came. So arrays are kept as
    they came, and put together when somebody asks for rows in another order. ``room`` codes are expected.
    """

    def __init__(self, room: int = 0) -> None:
        self.size = 0
        self._settled = np.empty(min(room, MOST_ROOM), np.int64)
        self._count = 0
        self._parts: list[Array] = []

    def append(self, codes: Array) -> None:
        """Add codes; they are not copied and must not change afterwards."""
        self._parts += [codes] if len(codes) else []
        self.size += len(codes)
        if len(self._parts) > _PARTS:
            self.all()

    def all(self) -> Array:
        """Return all codes side by side, shape ``(size,)``, a view."""
        for codes in self._parts:
            self._settled = extend(self._settled, self._count, codes) if len(self._settled) else codes
            self._count += len(codes)
        self._parts.clear()
        return self._settled[: self.size]

    def between(self, low: int, high: int) -> Array:
        """Return the codes from place ``low`` up to ``high``, a view."""
        if self._parts:
            start = self.size - len(self._parts[-1])
            if low >= start:
                return self._parts[-1][low - start : high - start]
        return self.all()[low:high]

    def drop(self, below: int) -> None:
        """Forget the codes below a place, and their memory."""
        self._settled = self.all()[below:].copy()
        self._count = self.size = len(self._settled)


class RelationStore:
    """Appended Arrow batches with row numbers, and one code array per key.

    Args:
        keys: The columns whose codes are kept.
        room: Rows to make room for at once; as many as are expected spare copies.

    Attributes:
        rows: Rows appended so far: the number that the next one gets.
        first: Rows below this number have been forgotten; their numbers are never given again.
        base: Rows from this number on still have codes: memory of forgotten ones is freed a share at a time.
        complete: Whether no more rows will come.
    """

    def __init__(self, schema: pa.Schema, keys: Sequence[KeyColumn], room: int = 0) -> None:
        self.schema = schema
        self.keys = tuple(keys)
        self.rows = 0
        self.first = 0
        self.complete = False
        self.base = 0
        self._chunks: list[pa.RecordBatch] = []
        self._payload = 0  # bytes of the chunks: other threads read it, so reading changes nothing
        self._starts: list[int] = []
        self._merged = 0  # so many chunks, the first ones, have been put together as far as they can be
        self._growing: Growing | None = None  # what the last one of these is a view of, if it has room
        self._codes = [CodeColumn(room) for _ in keys]
        self._widest: dict[str, tuple[int, int]] = {}  # the largest value of so many rows, in bytes

    @classmethod
    def single(cls, batch: pa.RecordBatch, keys: Sequence[KeyColumn], coded: list[Array]) -> RelationStore:
        """Return a store that holds one batch of a relation that is streamed without being kept."""
        store = cls(batch.schema, keys)
        store.append(batch, coded)
        return store

    @property
    def nbytes(self) -> int:
        """Memory of the tuples and their codes in bytes."""
        # Room that was made and is not filled takes no memory yet.
        return self._payload + 8 * len(self._codes) * (self.rows - self.base)

    @property
    def held(self) -> int:
        """Number of rows that have not been forgotten."""
        return self.rows - self.first

    def append(self, batch: pa.RecordBatch, coded: Sequence[Array]) -> None:
        """Append the batch's rows with their key codes (one array a key, in the order of ``keys``)."""
        first, last = self.rows, self.rows + batch.num_rows
        if last > MAX_ROWS:
            raise ExecutionError(
                f"one cell got more than {MAX_ROWS} rows of a relation; more cells would make each smaller"
            )
        for column, values in zip(self._codes, coded, strict=True):
            column.append(values)
        self._chunks.append(batch)
        self._payload += int(batch.nbytes)
        self._starts.append(first)
        self.rows = last

    def ends(self, column: str) -> tuple[pa.Scalar, pa.Scalar] | None:
        """Return the least and the greatest value of a column; None where it has none, or no order."""
        return ends_of([chunk.column(column) for chunk in self._chunks])

    def codes(self, key: int) -> Array:
        """Return the codes of key number ``key`` for all rows held, shape ``(held,)``, without a copy."""
        return self._codes[key].all()[self.first - self.base :]

    def coded(self, key: int, rows: Array) -> Array:
        """Return the codes of key number ``key`` at these row numbers; of rows side by side a view."""
        if is_run(rows):
            low = int(rows[0]) - self.base
            return self._codes[key].between(low, low + len(rows))
        taken: Array = self._codes[key].all()[rows - self.base if self.base else rows]
        return taken

    def forget(self, below: int) -> None:
        """Drop the rows below this number; the others keep their numbers.

        Memory that holds more forgotten rows than others is copied together and freed, so that
        forgetting costs O(1) a row over time.
        """
        self.first = max(self.first, min(below, self.rows))
        starts = [*self._starts[1:], self.rows]
        gone = next((i for i, end in enumerate(starts) if end > self.first), len(starts))
        self._payload -= self._weigh(gone)
        del self._chunks[:gone], self._starts[:gone]
        self._merged = max(0, self._merged - gone)
        if self._chunks and self.schema.names:
            dead, size = self.first - self._starts[0], self._chunks[0].num_rows
            if dead > size - dead:
                self._payload -= self._weigh(1)
                self._chunks[0] = self._chunks[0].take(to_arrow(np.arange(dead, size)))
                self._starts[0] = self.first
                self._payload += self._weigh(1)
                self._merged = 0 if self._merged == 1 else self._merged
        if not self._merged:
            self._growing = None
        if self.first - self.base > self.held:
            for column in self._codes:
                column.drop(self.first - self.base)
            self.base = self.first

    def hand_over(self) -> list[pa.RecordBatch]:
        """Return the rows held, as batches; they are the caller's from now on, and nobody else's."""
        chunks, self._chunks = self._chunks, []
        self._payload, self._merged, self._growing = 0, 0, None
        if chunks:
            chunks[0] = chunks[0].slice(self.first - self._starts[0])
        return chunks

    def chunk(self, rows: Array) -> pa.RecordBatch:
        """Return the rows as one batch; the whole of a single-batch store without a copy."""
        if len(self._chunks) == 1 and len(rows) == self._chunks[0].num_rows and is_run(rows):
            return self._chunks[0]
        if not self.schema.names:
            return self._chunks[0].slice(0, len(rows))
        return pa.RecordBatch.from_arrays(self.take(self.schema.names, rows), schema=self.schema)

    def widths(self, columns: Sequence[str], rows: Array, most: int) -> Array | None:
        """Return the bytes that these rows have in columns whose values differ in size, of shape ``(n,)``.

        None where that cannot be more than ``most`` in all, which is seen without a look at the rows.
        """
        wide = [column for column in columns if fixed_width(self.schema.field(column).type) is None]
        if not self._chunks or len(rows) * sum(map(self._most, wide)) <= most:
            return None
        found: Array = np.zeros(len(rows), np.int64)
        for chunk, here, at in self._locate(rows):
            found[here] = sum(_sizes(chunk.column(name), at, at + 1) for name in wide)
        return found

    def _most(self, column: str) -> int:
        """Return the size of the column's largest value, in bytes; of values forgotten too."""
        seen, most = self._widest.get(column, (0, 0))
        for start, chunk in zip(self._starts, self._chunks, strict=True):
            if start + chunk.num_rows > seen:
                most = max(most, _measure_largest(chunk.column(column).slice(max(0, seen - start))))
        self._widest[column] = self.rows, most
        return most

    def agree(
        self,
        keys: Sequence[KeyColumn],
        numbers: Iterable[int],
        coded: Sequence[Array],
        values: Values,
        left: Array,
        right: Array,
    ) -> Array:
        """Return which pairs agree on every key, null agreeing with nothing, shape of ``left``.

        ``numbers`` are those of the keys among the store's. Of tuples, at positions ``left``, there are codes
        for each key, and ``values``, asked by place among ``keys`` only where codes do not decide. Rows here,
        of numbers ``right``, are the other sides.
        """
        equal = np.ones(len(left), np.bool_)
        for place, (key, number) in enumerate(zip(keys, numbers, strict=True)):
            equal &= coded[place][left] == self.coded(number, right)
            if not key.exact:
                equal &= are_equal(key, values(place).take(to_arrow(left)), self.gather(key.name, right))
        return equal

    def gather(self, column: str, rows: Array) -> pa.Array:
        """Return the column's values at these row numbers, in their order."""
        return self.take([column], rows)[0]

    def take(self, columns: Sequence[str], rows: Array) -> list[pa.Array]:
        """Return the values of several columns at these row numbers, in their order."""
        places = [self.schema.get_field_index(column) for column in columns]
        if not (self._chunks and len(rows) and places):
            return [pa.nulls(0, self.schema.field(place).type) for place in places]
        parts = self._locate(rows)
        if len(parts) == 1 and is_run(rows):
            ((chunk, _, at),) = parts
            return [chunk.column(place).slice(int(at[0]), len(at)) for place in places]
        indices = [to_arrow(at) for _, _, at in parts]
        found = [
            [chunk.column(place).take(at) for (chunk, _, _), at in zip(parts, indices, strict=True)]
            for place in places
        ]
        if len(parts) == 1:
            return [only for (only,) in found]
        back = to_arrow(np.argsort(np.concatenate([here for _, here, _ in parts])))
        return [pa.concat_arrays(each).take(back) for each in found]

    def _locate(self, rows: Array) -> list[tuple[pa.RecordBatch, Any, Array]]:
        """Return the chunks that have some of these rows: which ones, and the places of these there."""
        if self._merged < len(self._chunks) > 1:
            self._merge()
        if len(self._chunks) == 1:
            start = self._starts[0]
            return [(self._chunks[0], slice(None), rows - start if start else rows)]
        owner = np.searchsorted(np.asarray(self._starts), rows, side="right") - 1
        there = [(number, np.flatnonzero(owner == number)) for number in np.unique(owner)]
        return [(self._chunks[n], here, rows[here] - self._starts[n]) for n, here in there]

    def _merge(self) -> None:
        """Put chunks together as far as Arrow's offsets reach: each row is copied once, or a few times.

        The first time they make a chunk of just their size, for often all have come.
        """
        last = max(0, self._merged - 1)
        runs, held = list[list[pa.RecordBatch]](), _MERGE_BYTES
        for chunk in self._chunks[last:]:
            size = int(chunk.nbytes)
            if not runs or held + size > _MERGE_BYTES:
                runs.append([])
                held = 0
            runs[-1].append(chunk)
            held += size
        if self._merged and len(runs[0]) > 1:
            if self._growing is None:
                self._growing = Growing(pa.struct(list(self.schema)))
                # What has been copied goes before room for more makes another copy.
                runs[0][0] = self._chunks[last] = self._grow(self._growing, self._chunks[last])
            runs[0] = [self._grow(self._growing, joined(runs[0][1:]))]
        if len(runs) > 1:
            self._growing = None
        self._chunks[last:] = map(joined, runs)
        ends = np.cumsum([chunk.num_rows for chunk in self._chunks[last:]])
        self._starts[last + 1 :] = (self._starts[last] + ends[:-1]).tolist()
        self._merged = len(self._chunks)
        self._payload = self._weigh()

    def _grow(self, growing: Growing, chunk: pa.RecordBatch) -> pa.RecordBatch:
        """Copy a chunk behind those that have grown together, and return all of these as one."""
        growing.append(chunk.to_struct_array())
        return pa.RecordBatch.from_arrays(growing.view().flatten(), schema=self.schema)

    def _weigh(self, first: int | None = None) -> int:
        """Return the bytes of the first chunks, so many or all."""
        return sum(int(chunk.nbytes) for chunk in self._chunks[:first])


def slices(widths: Iterable[Array | None], rows: int, most: int) -> Iterator[slice]:
    """Yield slices of rows that take about ``most`` bytes at most, at least a row each; of no row one, empty.

    ``widths`` are as of :meth:`RelationStore.widths`; together they are those of the rows.
    """
    known = [each for each in widths if each is not None]
    if not known:
        yield slice(0, rows)
        return
    ends = np.cumsum(sum(known))
    low = 0
    while low < rows:
        room = most + (int(ends[low - 1]) if low else 0)
        high = max(low + 1, int(np.searchsorted(ends, room, side="right")))
        yield slice(low, high)
        low = high


def is_run(rows: Array) -> bool:
    """Whether the row numbers count up one by one, so that a slice will do."""
    if not len(rows) or rows[-1] - rows[0] + 1 != len(rows):
        return False
    return bool((rows[1:] - rows[:-1] == 1).all())


def _measure_largest(column: pa.Array) -> int:
    """Return the bytes of a column's largest value."""
    if pa.types.is_string(column.type) or pa.types.is_binary(column.type):
        return pc.max(pc.binary_length(column)).as_py() or 0
    each = np.arange(len(column))
    return int(_sizes(column, each, each + 1).max(initial=0))


def _sizes(column: pa.Array, low: Array, high: Array) -> Array:
    """Return the bytes of the values between places of a column, for each pair of places.

    Other values are not looked at. Where a type has no sizes of its own, each value counts as the average.
    """
    kind, counts = column.type, high - low
    if not len(column):
        return 0 * counts
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        ends = np.frombuffer(column.buffers()[1], np.int32)[column.offset :]
        found: Array = ends[high].astype(np.int64) - ends[low]
        return found
    if pa.types.is_list(kind) or pa.types.is_map(kind):
        ends = to_numpy(column.offsets)
        return 4 * counts + _sizes(column.values, ends[low], ends[high])
    if pa.types.is_struct(kind):
        return sum((_sizes(column.field(n), low, high) for n in range(kind.num_fields)), 0 * counts)
    average: int = -(-column.nbytes // len(column))
    return average * counts
