"""What everything in a run under a memory budget refers to, and how much memory a join takes.

How much is told by what is known of its inputs before it begins, and measured as it runs. A SteM holds its
tuples' Arrow buffers, a code for each key, and an index for each combination of classes that it is probed by.
The first gathering of its columns merges its chunks, which takes their size once more for a moment. A
relation that is streamed takes no state. What intermediate tuples take is known only as the join runs
(:mod:`millrace.engine.spill.guard`). What is joined are chunks of base tuples, in memory or in spill files,
and partitions of all relations.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import attrgetter
from typing import TypeVar

import numpy as np
import pyarrow as pa

from millrace.engine.arrays import Array, row_bytes, sliced, to_arrow
from millrace.engine.plan.graph import QueryGraph
from millrace.engine.plan.spec import JoinSpec
from millrace.engine.spill.folder import SpillFile, SpillFolder, Stored
from millrace.engine.tuples import KeyColumn, KeyLayout, codes
from millrace.engine.tuples.keys import first_of_equal
from millrace.errors import OptionError
from millrace.options import Options

Held = TypeVar("Held")

_CODE = 8
_LINKS = 12
"""Bytes a row of an index's keys and chain links."""

_VARIABLE = 32
"""What a value of a type without a fixed width is taken to need."""

_RELEASED = 1 << 20
"""Bytes that joins leave behind, all since the last one together, which are worth a collection of garbage."""

_STATE_SHARE = 0.7
_WRITE_SHARE = 1 / 16
_FLIGHT_SHARE = 1 / 8


@dataclass(frozen=True)
class ChunkStats:
    """How much of a relation there is.

    Attributes:
        rows: Number of tuples.
        bytes: Their Arrow buffers.
        lows: The smallest code of each key, in the order of the relation's keys; empty without a row.
        highs: The largest code of each key.
    """

    rows: int = 0
    bytes: int = 0
    lows: tuple[int, ...] = ()
    highs: tuple[int, ...] = ()

    def __add__(self, other: ChunkStats) -> ChunkStats:
        if not (self.rows and other.rows):
            return self if self.rows else other
        return ChunkStats(
            self.rows + other.rows,
            self.bytes + other.bytes,
            tuple(map(min, self.lows, other.lows)),
            tuple(map(max, self.highs, other.highs)),
        )


@dataclass(frozen=True)
class KeyRange:
    """Tuples whose code of key number ``key`` is at least ``low`` and below ``high``."""

    key: int
    low: int
    high: int


@dataclass(frozen=True, eq=False)
class Chunk:
    """Tuples of one relation, none of which has a null key.

    Attributes:
        stats: Their number and size; with a ``range``, of the whole chunk that they are chosen from.
        data: The tuples, or where they are.
        window: Only these of them, from one position up to another.
        range: Only those of a range of keys.
    """

    stats: ChunkStats
    data: pa.RecordBatch | Stored
    window: tuple[int, int] | None = None
    range: KeyRange | None = None

    def stored(self, file: SpillFile) -> Chunk:
        """Write a chunk in memory to a file."""
        return replace(self, data=file.write(self.data))

    def within(self, keys: KeyRange) -> Chunk:
        """Return the chunk's tuples in a range of keys; only their codes' bounds get narrower."""
        lows, highs = list(self.stats.lows), list(self.stats.highs)
        lows[keys.key] = max(lows[keys.key], keys.low)
        highs[keys.key] = min(highs[keys.key], keys.high - 1)
        return replace(self, stats=replace(self.stats, lows=tuple(lows), highs=tuple(highs)), range=keys)

    def pieces(self, rows: int) -> Iterator[Chunk]:
        """Yield chunks of at most so many rows, at least one each, that together are this one."""
        first, last = self.window or (0, self.stats.rows)
        for low in range(first, last, rows):
            high = min(low + rows, last)
            size = self.stats.bytes * (high - low) // (last - first)
            stats = replace(self.stats, rows=high - low, bytes=size)
            yield replace(self, stats=stats, window=(low, high))

    def selected(self, batch: pa.RecordBatch, keys: Sequence[KeyColumn]) -> pa.RecordBatch:
        """Return the tuples of the chunk out of the batch that it was made of."""
        if self.window is not None:
            low, high = self.window
            batch = batch.slice(low, high - low)
        if self.range is not None:
            coded = codes_of(batch, keys[self.range.key])
            inside = (coded >= self.range.low) & (coded < self.range.high)
            if not inside.all():
                batch = batch.filter(to_arrow(inside))
        return batch


def total(chunks: Iterable[Chunk]) -> ChunkStats:
    """Return the stats of all chunks together."""
    return sum((chunk.stats for chunk in chunks), ChunkStats())


@dataclass(frozen=True, eq=False)
class Partition:
    """Tuples of every relation to be joined with each other, and with nothing else.

    Attributes:
        inputs: The tuples of each relation, by its number.
        level: How often they were divided: each level hashes keys in another way.
        spent: Attribute classes that do not divide the tuples any further.
        scale: How many times the expected state has to fit, since a larger one needed more than expected.
        intermediate: Whether intermediate tuples may be stored. Without, they are made again when needed.
    """

    inputs: Mapping[int, list[Chunk]]
    level: int = 0
    spent: frozenset[int] = field(default_factory=frozenset)
    scale: float = 1.0
    intermediate: bool = True

    @cached_property
    def stats(self) -> dict[int, ChunkStats]:
        return {relation: total(chunks) for relation, chunks in self.inputs.items()}

    @property
    def has_all(self) -> bool:
        """Whether there can be a result: every relation has a tuple."""
        return all(stats.rows for stats in self.stats.values())


def codes_of(batch: pa.RecordBatch, key: KeyColumn) -> Array:
    """Return the codes of a key, which is never null."""
    return codes(batch.column(key.name), key.type)[0]


def without_duplicates(batch: pa.RecordBatch, keys: Sequence[KeyColumn]) -> pa.RecordBatch:
    """Return the first of each group of equal tuples; all columns are keys (set semantics)."""
    if not keys:  # tuples without a column are all equal
        return batch.slice(0, 1)
    columns = [batch.column(key.name) for key in keys]
    first = first_of_equal(keys, [codes_of(batch, key) for key in keys], columns.__getitem__)
    return batch if len(first) == batch.num_rows else batch.take(to_arrow(first))


def sized(batch: pa.RecordBatch, size: int) -> Iterator[pa.RecordBatch]:
    """Yield a batch in slices of about so many bytes; nothing without a row."""
    parts = -(-int(batch.nbytes) // max(1, size)) or 1
    return sliced(batch, max(1, -(-batch.num_rows // parts)))


class Budget:
    """A memory budget: what is meant for what, and how many bytes a run holds, ``peak`` at the most."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.peak = 0
        self._free = total
        self._waiting = 0
        self._joining = 0
        self._left = 0  # bytes that eddies held which have ended since the last collection of garbage

    def reserve(self, size: int) -> None:
        """Set so many bytes apart for the whole of a run: there is less for all else, but a part of it."""
        self._free = max(self._free - size, self.total // 4)

    @property
    def state(self) -> int:
        """Bytes that state modules may take by expectation, which leaves out what comes and goes."""
        return max(1, int(self._free * _STATE_SHARE))

    @property
    def buffer(self) -> int:
        """Bytes of tuples that wait to be written or arranged; they are copied while they are."""
        return max(1, int(self._free * _WRITE_SHARE))

    def batch(self, wanted: int, row_bytes: float, steps: int) -> int:
        """Return how many tuples a batch may have, at most ``wanted``.

        Result rows, of ``row_bytes``, are gathered, collected and joined up a batch at a time. At each of the
        modules on a tuple's way there are a batch that probes and one of what it found, of four bytes a
        component, and how far each chain has been followed.
        """
        flying = 2 * steps * (4 * steps + 8)
        return max(1, min(wanted, int(self._free * _FLIGHT_SHARE / (4 * (row_bytes + 16) + flying))))

    def wait(self, size: int) -> None:
        """So many bytes of tuples have come to wait outside of a join; or have gone, if negative."""
        self._waiting += size
        self.peak = max(self.peak, self._waiting + self._joining)

    def join(self, size: int) -> int:
        """The present join holds so many bytes; return how many it held before."""
        before, self._joining = self._joining, size
        self.wait(0)
        return before

    def let_go(self, size: int = 0) -> None:
        """An eddy has ended, which held so many bytes beside those that the budget knows of."""
        # Its parts refer to each other, so without a collection its state would stay for a while.
        self._left += self.join(0) + size
        if self._left >= _RELEASED:
            self._left = 0
            gc.collect()
            pa.default_memory_pool().release_unused()

    def drain(self, held: list[Held], size: Callable[[Held], int]) -> Iterator[Held]:
        """Yield what waits in a list; each is let go of before it is asked for the next."""
        held.reverse()
        while held:
            self.wait(-size(held[-1]))
            yield held.pop()


@dataclass(frozen=True)
class SpillContext:
    """What everything in a run refers to.

    Attributes:
        stream: The relation to leave unbuilt while nothing is spilled, or None to build all.
        order: Relation numbers in the order in which they are read; the streamed one comes last.
        online: Whether all sources may be read in turn.
    """

    spec: JoinSpec
    options: Options
    folder: SpillFolder
    stream: int | None
    order: tuple[int, ...]
    online: bool
    budget: Budget

    @cached_property
    def graph(self) -> QueryGraph:
        return QueryGraph.of(self.spec)

    @cached_property
    def layouts(self) -> list[KeyLayout]:
        return [KeyLayout.of(self.graph, r) for r in range(self.graph.relations)]

    def covers(self, attribute: int | None, relation: int) -> bool:
        """Whether the relation has a column in the attribute class; None is no class."""
        return attribute is not None and attribute in self.layouts[relation].of_class

    def key(self, attribute: int | None, relation: int) -> KeyColumn:
        """Return the relation's key in an attribute class that it has a column in."""
        assert attribute is not None
        return self.layouts[relation].keys[self.layouts[relation].of_class[attribute]]

    def gains(self, sizes: Mapping[int, float]) -> dict[int, float]:
        """Return how much of relations of these sizes each attribute class divides."""
        return {
            attribute: sum(size for r, size in sizes.items() if self.covers(attribute, r))
            for attribute in range(len(self.graph.classes))
        }

    def chunk(self, relation: int, batch: pa.RecordBatch) -> Chunk:
        """Return tuples as a chunk in memory; those of a relation with set semantics lose duplicates."""
        keys = self.layouts[relation].keys
        if self.spec.relations[relation].distinct:
            batch = without_duplicates(batch, keys)
        if not batch.num_rows:
            return Chunk(ChunkStats(), batch)
        coded = [codes_of(batch, key) for key in keys]
        lows, highs = (tuple(int(end(c)) for c in coded) for end in (np.min, np.max))
        return Chunk(ChunkStats(batch.num_rows, int(batch.nbytes), lows, highs), batch)

    def new_file(self, relation: int) -> SpillFile:
        return SpillFile(self.folder, relation, self.spec.relations[relation].schema)

    def read(self, relation: int, chunk: Chunk) -> pa.RecordBatch:
        """Return the chunk's tuples, from its file if need be."""
        data = chunk.data
        batch = self.folder.read(relation, data) if isinstance(data, Stored) else data
        return chunk.selected(batch, self.layouts[relation].keys)

    def batches(self, relation: int, chunks: list[Chunk]) -> Iterator[pa.RecordBatch]:
        """Yield the tuples of the chunks."""
        return (self.read(relation, chunk) for chunk in chunks)

    def drained(self, chunks: list[Chunk]) -> Iterator[pa.RecordBatch]:
        """Yield the tuples of chunks in memory; each is let go of before it is asked for the next."""
        return map(attrgetter("data"), self.budget.drain(chunks, attrgetter("stats.bytes")))

    def footprint(self, relation: int, stats: ChunkStats) -> int:
        """Return the bytes that a SteM with these tuples takes, an index on each of its classes included."""
        layout = self.layouts[relation]
        if not stats.rows:
            return 0
        indexes = sum(
            index_bytes(stats.rows, stats.lows[key], stats.highs[key]) for key in layout.of_class.values()
        )
        return stats.bytes + _CODE * len(layout.keys) * stats.rows + indexes

    def state(self, stats: Mapping[int, ChunkStats], streamed: int | None) -> int:
        """Return the bytes that a join's state takes, intermediate tuples and one relation left out."""
        built = {r: each for r, each in stats.items() if r != streamed}
        merging = max((each.bytes for each in built.values()), default=0)
        return sum(self.footprint(r, each) for r, each in built.items()) + merging

    def streamed(self, partition: Partition) -> int | None:
        """Return the relation that is best left unbuilt, or None if all must be built."""
        free = [r for r in partition.inputs if not self.spec.relations[r].distinct]
        return min(free, key=lambda r: self.state(partition.stats, r), default=None)

    def expected(self, partition: Partition) -> int:
        """Return the bytes that the state of a partition's join takes by expectation."""
        return self.state(partition.stats, self.streamed(partition))

    def room(self, partition: Partition) -> int:
        """Return the bytes that it may take by expectation."""
        return max(1, int(self.budget.state / partition.scale))

    def fits(self, partition: Partition) -> bool:
        """Whether the join's state is expected to stay within the budget."""
        return self.expected(partition) <= self.room(partition)

    def check(self, relation: int, batch: pa.RecordBatch) -> None:
        """Raise OptionError if the budget has no room for the batch and a copy of it."""
        keys = len(self.layouts[relation].keys)
        needed = 2 * (int(batch.nbytes) + 8 * keys * batch.num_rows)
        if needed > self.budget.total:
            fitting = max(1, batch.num_rows * self.budget.total // needed)
            raise OptionError(
                f"option memory_budget is {self.budget.total:,} bytes: a batch of {batch.num_rows:,} tuples "
                f"of {self.spec.aliases[relation]!r} and its copy take {needed:,} bytes. Set memory_budget "
                f"to {needed:,} at least, or batch_size to {fitting:,} at most"
            )


def index_bytes(rows: int, low: int, high: int) -> int:
    """Return the size of an index over so many rows whose codes lie from ``low`` to ``high``.

    Small indexes are taken to grow with their rows; in truth each takes some hundred kilobytes at least.
    """
    spread = high - low + 1
    if spread <= max(16 * rows, 1 << 16):
        return _LINKS * rows + min(5 * spread, 80 * rows)
    return _LINKS * rows + min(8 << (2 * rows).bit_length(), 32 * rows)


def tuple_bytes(schema: pa.Schema) -> int:
    """Return about how many bytes a tuple takes."""
    return row_bytes(schema, _VARIABLE)


def largest(sizes: Mapping[int, float]) -> int | None:
    """Return whose size is the largest, the least number of several; None without any."""
    return max(sizes, key=lambda number: (sizes[number], -number), default=None)
