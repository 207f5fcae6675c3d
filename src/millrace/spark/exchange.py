"""Block exchange: tuples travel through Spark's shuffle as a few large binary values.

The map side cuts batches by cell and writes rows ``(cell, relation, block)``; the block is one
Arrow record batch in IPC form without its schema, which both sides know. A block that goes to
several cells is encoded once. The reduce side decodes blocks in place, without copying, and only
when the eddy asks for that relation: the others wait encoded.

Blocks are not compressed here: Spark compresses its shuffle files itself, and the way from a task
to the shuffle is memory. A block's length is a multiple of 8, so that its numbers are aligned
wherever it lies among others in one Arrow buffer.

The rows of a relation without a key to cut by are *spread*, the same way however often a task runs. Spark
computes a map task again when its output is lost with an executor, while other tasks have read that output
already. Each attempt has to send each row to the same cell, or rows are doubled and lost.

*Scans* read row groups in the order that travels with their task, each row group in the order of its file,
and filters keep that order: a row has the same number in each attempt, and :class:`RoundRobin` spreads rows.

*DataFrames* are another matter. A partition that comes out of a shuffle has the same rows in each attempt,
but in the order in which they were fetched. So :class:`HashPartitioner` makes a row's coordinate a function
of the row and of the number of its partition, which are the same in each attempt, and of nothing else:

- It follows a hash of the row. Columns of nested types are left out, and so are floating-point numbers: their
  sum depends on the order of the addends, so that the same row may come back with another last digit. (A
  value that depends on nothing but the order, as from ``first``, is no more proof against a lost executor
  than it is with Spark's own ``repartition``.)
- It is shifted by the number of the partition, so that rows that hash alike are spread as evenly as
  partitions are: over all coordinates, if there are as many partitions.
- Rows without a column to hash all hash alike, and go where their partition goes, whatever their order.
- Rows without any column cannot be told apart: all that matters is how many go to each coordinate. They go
  in turn, and ``n`` rows from the same start give the same numbers in any order and any batches.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyarrow import types as t

from millrace.engine.arrays import Array, array_of, counted, to_arrow, to_numpy
from millrace.engine.kernels import combine, mix
from millrace.engine.tuples.keys import codes, is_key_type
from millrace.errors import ExecutionError
from millrace.spark.hypercube import Cube

BLOCK_SCHEMA = pa.schema(
    [pa.field("cell", pa.int32()), pa.field("relation", pa.int32()), pa.field("block", pa.binary())]
)
FIGURES = -1
"""Relation number of a block that holds a task's figures as JSON."""

NOTHING = -2
"""Relation number of a block that holds nothing, and is there so that there is one."""

_NULL = 0x6E756C6C
_TWO = np.uint64(2)

# Batches wait in a map task for their block to fill; together they take at most this many blocks, and as many
# more are kept by slices of them.
_WAITING_BLOCKS = 16


@dataclass(frozen=True)
class Cut:
    """How the tuples of one relation are cut by cell."""

    relation: int
    cube: Cube
    block_bytes: int
    number: int | None = None  # that its blocks bear, the relation's if None


@dataclass(frozen=True)
class SharedBlocks:
    """Blocks of rows that several relations have, cut alike; their numbers follow those of the relations."""

    relations: tuple[int, ...]
    schema: pa.Schema  # the columns of them all

    @property
    def is_shared(self) -> bool:
        return len(self.relations) > 1


@dataclass(frozen=True)
class Roles:
    """Which relations of a self-join have a row of their common scan: each row is sent once.

    Attributes:
        tests: Columns that tell of each row whether some relations have it; None where they have every row.
        cuts: How rows are cut, and the columns that are sent, by the bit set of the tests that are true.
    """

    tests: tuple[str | None, ...]
    cuts: Mapping[int, tuple[Cut, Sequence[str]]]

    def divide(self, batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield the rows of each bit set, with the columns to send; rows of no relation are left out."""
        if self.tests == (None,):
            yield 1, batch
            return
        found = np.zeros(batch.num_rows, np.int64)
        for place, test in enumerate(self.tests):
            found |= (np.int64(1) if test is None else to_numpy(batch.column(test)).astype(np.int64)) << place
        for roles, rows in enumerate(np.bincount(found).tolist()):
            if roles and rows:
                part = batch.select(self.cuts[roles][1])
                yield roles, part if rows == batch.num_rows else part.filter(to_arrow(found == roles))


Partitioner = Callable[[pa.RecordBatch], Array]
"""Spreads the rows of one map task: a number from 0 for each row of the next batch, shape ``(n,)``.

A row's coordinate is its number's remainder by the number of coordinates.
"""


class RoundRobin:
    """Spreads rows in turn, in the order in which they come.

    Different tasks start at different numbers, so that small relations spread evenly too.
    """

    def __init__(self, start: int = 0) -> None:
        self._next = start

    def __call__(self, batch: pa.RecordBatch) -> Array:
        first, self._next = self._next, self._next + batch.num_rows
        return np.arange(first, self._next, dtype=np.int64)


class HashPartitioner:
    """Spreads the rows of one partition by what they contain, whatever their order."""

    def __init__(self, partition: int) -> None:
        self._partition = partition
        self._in_turn = RoundRobin(partition)

    def __call__(self, batch: pa.RecordBatch) -> Array:
        if not batch.num_columns:
            return self._in_turn(batch)
        hashed: Array | None = None
        for column in batch.columns:
            if is_key_type(column.type) and not t.is_floating(column.type):
                own = _hashes(column)
                hashed = mix(own) if hashed is None else combine(hashed, own)
        if hashed is None:
            return np.full(batch.num_rows, self._partition, np.int64)
        # Positive, and small enough to add to.
        return (hashed.view(np.uint64) >> _TWO).view(np.int64) + self._partition


def _hashes(column: pa.Array) -> Array:
    """Return an ``int64`` for each value, the same for equal ones."""
    hashed, valid = codes(column, column.type)
    return hashed if valid is None else np.where(valid, hashed, _NULL)  # where a null is, anything may stand


class BlockWriter:
    """Cuts batches of one relation by cell and collects them into blocks; lives in one map task."""

    def __init__(self, cut: Cut, partitioner: Partitioner | None = None) -> None:
        self.rows = 0
        self.blocks = 0
        self.bytes = 0
        self.cut = cut
        self._partitioner = partitioner or RoundRobin()
        self._offsets = cut.cube.offsets(cut.relation), cut.cube.offsets(cut.relation, frequent=True)
        self._axes = cut.cube.find_axes(cut.relation)
        self._waiting: dict[int, list[pa.RecordBatch]] = {}
        self._sizes: dict[int, float] = {}
        self._sliced = 0
        self._out: list[tuple[int, int, pa.Buffer]] = []
        self._out_bytes = 0

    def add(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Take a batch; yield rows of ``BLOCK_SCHEMA`` for the blocks that became full."""
        step = max(1, int(batch.num_rows * 4 * self.cut.block_bytes / max(1, batch.nbytes)))
        for first in range(0, batch.num_rows, step):
            yield from self._add(batch.slice(first, step))

    def cells(self, batch: pa.RecordBatch) -> tuple[Array | None, Array | None]:
        """Return each tuple's cell, with the coordinate 0 wherever the relation has none, and which stay.

        None stands for cell 0 of them all, and for all of them. Tuples that go everywhere on an axis, because
        their key is frequent, have numbers from the number of cells on.
        """
        base: Array | None = None
        valid: Array | None = None
        everywhere: Array | None = None
        for axis, column, stride in self._axes:
            if axis.type is None:
                coordinate = self._partitioner(batch) % axis.share
            else:
                code, mask = codes(batch.column(column), axis.type)
                # Unsigned, because the remainder of a negative number would be negative in C.
                coordinate = (mix(code).view(np.uint64) % np.uint64(axis.share)).astype(np.int64)
                if axis.frequent:
                    is_frequent = np.isin(code, axis.frequent) & (True if mask is None else mask)
                    if axis.spreads(self.cut.relation):
                        spread = batch.filter(to_arrow(is_frequent))  # in turn among themselves
                        coordinate[is_frequent] = self._partitioner(spread) % axis.share
                    else:
                        coordinate, everywhere = np.where(is_frequent, 0, coordinate), is_frequent
                if mask is not None:
                    coordinate = np.where(mask, coordinate, 0)
                    if not axis.nulls:
                        valid = mask if valid is None else valid & mask
            base = coordinate * stride if base is None else base + coordinate * stride
        if base is not None and everywhere is not None:
            base += everywhere * self.cut.cube.cells
        return base, valid

    def _add(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        base, valid = self.cells(batch)
        if valid is not None:
            # A null key equals nothing, so its tuple is in no result of a join.
            if base is not None:
                base = base[valid]
            batch = batch.filter(to_arrow(valid))
        if not batch.num_rows:
            return
        nbytes = batch.nbytes
        size = nbytes / batch.num_rows
        for cell, piece in _pieces(batch, base):
            self._waiting.setdefault(cell, []).append(piece)
            self._sizes[cell] = self._sizes.get(cell, 0.0) + piece.num_rows * size
            if self._sizes[cell] >= self.cut.block_bytes:
                yield from self._close(cell)
        while sum(self._sizes.values()) > _WAITING_BLOCKS * self.cut.block_bytes:
            yield from self._close(max(self._sizes, key=self._sizes.__getitem__))
        self._sliced += nbytes  # a single row that waits keeps all of its batch
        if self._sliced > _WAITING_BLOCKS * self.cut.block_bytes:
            self._waiting = {cell: [_copy(pieces)] for cell, pieces in self._waiting.items()}
            self._sliced = 0

    def finish(self) -> Iterator[pa.RecordBatch]:
        for cell in list(self._waiting):
            yield from self._close(cell)
        yield from self._emit()

    def _close(self, base: int) -> Iterator[pa.RecordBatch]:
        pieces = self._waiting.pop(base)
        del self._sizes[base]
        if not pieces[0].num_columns:
            whole = counted(sum(piece.num_rows for piece in pieces))
        else:
            # Also a single piece is copied: a slice would be sent with all of its parent's bytes.
            whole = pa.concat_batches(pieces) if len(pieces) > 1 else pieces[0]
        block = whole.serialize()
        is_frequent, base = divmod(base, self.cut.cube.cells)
        number = self.cut.relation if self.cut.number is None else self.cut.number
        for offset in self._offsets[is_frequent]:
            self.blocks += 1
            self.rows += whole.num_rows
            self.bytes += block.size
            self._out.append((base + offset, number, block))
            self._out_bytes += block.size
            if self._out_bytes >= self.cut.block_bytes:
                yield from self._emit()

    def _emit(self) -> Iterator[pa.RecordBatch]:
        if self._out:
            yield block_rows(self._out)
            self._out, self._out_bytes = [], 0


def _copy(pieces: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Return pieces as one that keeps nothing of the batches they were sliced from."""
    # Of a single piece Arrow would return that piece.
    return pa.concat_batches([*pieces, pieces[0].slice(0, 0)])


def _pieces(batch: pa.RecordBatch, base: Array | None) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the batch's rows grouped by ``base``, each group in the rows' order."""
    if base is None:
        yield 0, batch
        return
    # The narrowest type makes numpy's stable sort a radix sort.
    narrow = base.astype(np.uint16) if int(base.max()) < 1 << 16 else base
    order = np.argsort(narrow, kind="stable")
    ordered = narrow[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    ends = np.r_[starts[1:], len(ordered)]
    if len(starts) == 1:
        yield int(ordered[0]), batch
        return
    grouped = batch.take(to_arrow(order)) if batch.num_columns else batch
    for first, last in zip(starts.tolist(), ends.tolist(), strict=True):
        yield int(ordered[first]), grouped.slice(first, last - first)


def block_rows(rows: Sequence[tuple[int, int, pa.Buffer]]) -> pa.RecordBatch:
    """Return rows ``(cell, relation, block)`` as one batch."""
    cells, relations, blocks = zip(*rows, strict=True)
    offsets = np.zeros(len(rows) + 1, np.int32)
    np.cumsum([block.size for block in blocks], out=offsets[1:])
    data = blocks[0] if len(blocks) == 1 else pa.py_buffer(b"".join(blocks))
    binary = pa.Array.from_buffers(pa.binary(), len(rows), [None, pa.py_buffer(offsets), data])
    return pa.RecordBatch.from_arrays(
        [array_of(cells, pa.int32()), array_of(relations, pa.int32()), binary], schema=BLOCK_SCHEMA
    )


def figures_block(text: str) -> pa.Buffer:
    """Return figures as a block; JSON may end in spaces, which keep blocks aligned."""
    raw = text.encode()
    return pa.py_buffer(raw + b" " * (-len(raw) % 8))


class BlockReader:
    """Hands the blocks that arrive in one cell to the relations' sources; lives in one task.

    ``rows`` are of ``BLOCK_SCHEMA``, ``schemas`` by the relations' numbers. All rows must be for one cell,
    that of the first if none is given. ``last`` is a relation whose blocks are sorted behind all others: a
    source ends when the first of these is seen, and they need not be kept in memory. It shares none.
    """

    def __init__(
        self,
        rows: Iterator[pa.RecordBatch],
        schemas: Sequence[pa.Schema],
        cell: int | None = None,
        last: int | None = None,
        shared: Sequence[SharedBlocks] = (),
    ) -> None:
        self.rows = 0
        self.blocks = 0
        self.bytes = 0
        self.figures: list[str] = []
        self._incoming = rows
        self._schemas = schemas
        self._cell = cell
        self._last = last
        own = (SharedBlocks((relation,), schema) for relation, schema in enumerate(schemas))
        self._sent = [*own, *shared]
        self._waiting: list[deque[tuple[pa.Buffer, SharedBlocks]]] = [deque() for _ in schemas]

    @property
    def cell(self) -> int | None:
        """The cell's number, as the blocks say; None when there is no block at all."""
        while self._cell is None and self._pull():
            pass
        return self._cell

    def source(self, relation: int) -> Iterator[pa.RecordBatch]:
        """Yield the relation's batches as they are asked for; blocks of others wait encoded."""
        waiting, own = self._waiting[relation], self._schemas[relation]
        # A block of the last relation shows that the others have no more.
        others_end = () if self._last is None or relation == self._last else self._waiting[self._last]
        while waiting or (not others_end and self._pull()):
            while waiting:
                block, sent = waiting.popleft()
                batch = pa.ipc.read_record_batch(block, sent.schema)
                self.rows += batch.num_rows if relation == sent.relations[0] else 0
                yield batch if sent.schema is own else batch.select(own.names)

    def drain(self) -> None:
        """Take in the rest: the map tasks' figures are complete then, and Spark can use the worker again."""
        while self._pull():
            for waiting in self._waiting:
                waiting.clear()

    def _pull(self) -> bool:
        """Take in the next batch of rows; return whether there was one."""
        batch = next(self._incoming, None)
        if batch is None:
            return False
        cells, relations, blocks = batch.columns
        if self._cell is None and batch.num_rows:
            self._cell = int(cells[0].as_py())
        if batch.num_rows and not (np.asarray(cells) == self._cell).all():
            raise ExecutionError(
                f"cell {self._cell} received tuples of cell {cells[0]}: Spark did not keep the partitions "
                "of repartitionById; please report this with the Spark version and configuration"
            )
        _, places, data = blocks.buffers()
        offsets = np.frombuffer(places, np.int32)[blocks.offset : blocks.offset + len(blocks) + 1].tolist()
        for number, relation in enumerate(relations.to_pylist()):
            size = offsets[number + 1] - offsets[number]
            block = data.slice(offsets[number], size)
            if relation == FIGURES:
                self.figures.append(block.to_pybytes().decode())
            elif relation != NOTHING:
                sent = self._sent[relation]
                for reader in sent.relations:
                    self._waiting[reader].append((block, sent))
                self.blocks += 1
                self.bytes += size
        return True
