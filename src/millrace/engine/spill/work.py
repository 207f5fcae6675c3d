"""A piece of work: tuples of every relation to be joined with each other, and with nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import pyarrow as pa

from millrace.engine.plan.graph import QueryGraph
from millrace.engine.plan.spec import JoinSpec
from millrace.engine.spill.chunks import Chunk, Extent, measured, selected, total, without_duplicates
from millrace.engine.spill.folder import SpillFolder, Stored
from millrace.engine.spill.memory import Budget, Memory, footprint, state_bytes
from millrace.engine.tuples import KeyLayout
from millrace.errors import OptionError
from millrace.options import Options

Inputs = Mapping[int, Iterable[pa.RecordBatch]]
"""Tuples of each relation, by its number, to be read once."""


@dataclass(frozen=True)
class Setting:
    """What everything in a run refers to.

    Attributes:
        spec: The block.
        options: The run's settings, with a memory budget.
        folder: Where spill files go.
        stream: The relation to leave unbuilt while nothing is spilled, or None to build all.
        order: Relation numbers in the order in which they are read; the streamed one comes last.
        online: Whether all sources may be read in turn.
        memory: What is held.
    """

    spec: JoinSpec
    options: Options
    folder: SpillFolder
    stream: int | None
    order: tuple[int, ...]
    online: bool
    memory: Memory

    @cached_property
    def graph(self) -> QueryGraph:
        """The block's query graph."""
        return QueryGraph.of(self.spec)

    @cached_property
    def layouts(self) -> list[KeyLayout]:
        """The keys of every relation."""
        return [KeyLayout.of(self.graph, r) for r in range(self.graph.relations)]

    @cached_property
    def budget(self) -> Budget:
        """The memory budget."""
        assert self.options.memory_budget is not None
        return Budget(self.options.memory_budget)

    def covers(self, attribute: int | None, relation: int) -> bool:
        """Whether the relation has a column in the attribute class; None is no class."""
        return attribute is not None and attribute in self.layouts[relation].of_class

    def chunk(self, relation: int, batch: pa.RecordBatch) -> Chunk:
        """Return tuples as a chunk in memory; those of a relation with set semantics lose duplicates."""
        keys = self.layouts[relation].keys
        if self.spec.relations[relation].distinct:
            batch = without_duplicates(batch, keys)
        return Chunk(measured(batch, keys), batch)

    def read(self, relation: int, chunk: Chunk) -> pa.RecordBatch:
        """Return the chunk's tuples, from its file if need be."""
        data = chunk.data
        batch = self.folder.read(relation, data) if isinstance(data, Stored) else data
        return selected(chunk, batch, self.layouts[relation].keys)

    def state(self, extents: Mapping[int, Extent], streamed: int | None) -> int:
        """Return the bytes of state that a join takes; see :mod:`millrace.engine.spill.memory`."""
        return state_bytes(self.layouts, extents, streamed)

    def footprint(self, relation: int, extent: Extent) -> int:
        """Return the bytes of a SteM of the relation."""
        return footprint(self.layouts[relation], extent)

    def check(self, relation: int, batch: pa.RecordBatch) -> None:
        """Raise if the budget has no room for the batch and a copy of it.

        Raises:
            OptionError: It has not.
        """
        keys = len(self.layouts[relation].keys)
        needed = 2 * (int(batch.nbytes) + 8 * keys * batch.num_rows)
        if needed > self.budget.total:
            fitting = max(1, batch.num_rows * self.budget.total // needed)
            raise OptionError(
                f"option memory_budget is {self.budget.total:,} bytes: a batch of {batch.num_rows:,} tuples "
                f"of {self.spec.aliases[relation]!r} and its copy take {needed:,} bytes. Set memory_budget "
                f"to {needed:,} at least, or batch_size to {fitting:,} at most"
            )


@dataclass(frozen=True, eq=False)
class Work:
    """Tuples of each relation, by its number, all combinations of which are to be tried.

    Attributes:
        inputs: The tuples.
        level: How often they were divided: each level hashes keys in another way.
        spent: Attribute classes that do not divide the tuples any further.
        scale: How many times the expected state has to fit, since a larger piece needed more than expected.
        intermediate: Whether intermediate tuples may be stored. Without, they are made again when needed.
    """

    inputs: Mapping[int, list[Chunk]]
    level: int = 0
    spent: frozenset[int] = field(default_factory=frozenset)
    scale: float = 1.0
    intermediate: bool = True

    @cached_property
    def extents(self) -> dict[int, Extent]:
        """How much there is of each relation."""
        return {relation: total(chunks) for relation, chunks in self.inputs.items()}

    @property
    def possible(self) -> bool:
        """Whether there can be a result: every relation has a tuple."""
        return all(extent.rows for extent in self.extents.values())

    def streamed(self, setting: Setting) -> int | None:
        """Return the relation that is best left unbuilt, or None if all must be built."""
        free = [r for r in self.inputs if not setting.spec.relations[r].distinct]
        return min(free, key=lambda r: setting.state(self.extents, r), default=None)

    def fits(self, setting: Setting) -> bool:
        """Whether the join's state is expected to stay within the budget."""
        return setting.state(self.extents, self.streamed(setting)) <= self.room(setting)

    def room(self, setting: Setting) -> int:
        """Return the bytes that the state may take by expectation."""
        return max(1, int(setting.budget.state / self.scale))


def evened(source: Iterable[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """Yield the tuples in batches of ``rows`` or more, below three times that, but for a source with fewer.

    What was cut up among partitions comes in small pieces. A store gathers from few chunks only if no
    small one follows larger ones, so a small rest goes with the batch before it.
    """
    before: list[pa.RecordBatch] = []
    parts: list[pa.RecordBatch] = []
    count = 0
    for batch in source:
        for low in range(0, batch.num_rows, rows):
            part = batch.slice(low, rows)
            if count + part.num_rows >= 2 * rows:
                if before:
                    yield _whole(before)
                before, parts, count = parts, [], 0
            parts.append(part)
            count += part.num_rows
    if before and count >= rows:
        yield _whole(before)
        before = []
    if before or parts:
        yield _whole(before + parts)


def sliced(source: Iterable[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """Yield the tuples in batches of at most ``rows``."""
    for batch in source:
        for low in range(0, batch.num_rows, rows):
            yield batch.slice(low, rows)


def fitting_batches(setting: Setting, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield a batch in slices that buffers have room for."""
    parts = -(-int(batch.nbytes) // setting.budget.buffer) or 1
    step = max(1, -(-batch.num_rows // parts))
    for low in range(0, batch.num_rows, step):
        yield batch.slice(low, step)


def _whole(parts: list[pa.RecordBatch]) -> pa.RecordBatch:
    return parts[0] if len(parts) == 1 else pa.concat_batches(parts)


def batches(setting: Setting, relation: int, chunks: list[Chunk]) -> Iterator[pa.RecordBatch]:
    """Yield the tuples of the chunks; files are opened one at a time."""
    file = None
    for chunk in chunks:
        here = chunk.data.file if isinstance(chunk.data, Stored) else None
        if file is not None and here is not file:
            file.close()
        file = here
        yield setting.read(relation, chunk)
    if file is not None:
        file.close()
