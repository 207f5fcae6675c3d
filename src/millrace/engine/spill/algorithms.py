"""Non-pipelined joins as ways of reading: what is clustered, what stays in memory, and when it is joined.

Raman, Deshpande & Hellerstein 2003, section 3 ("Simulating and Hybridizing Non-Pipelined Join
Algorithms"), has SteMs cluster their tuples by partition before they bounce them back: partitions on
disk make a Grace hash join, partitions some of which stay in memory a hybrid hash join, sorted runs a
sort-merge join, and a SteM that bounces at once a symmetric hash join. Here the clustering is done
before the SteMs: each piece of work, an eddy's input, is the tuples of all relations that can
meet each other, so that any architecture and any routing policy joins it.

========== ================================= ======================================= ==================
algorithm  read before the first result      goes to files                           results come
========== ================================= ======================================= ==================
shj        all but the streamed relation;    nothing while all state fits; when it   as the streamed
           nothing, with ``online``          does not, everything                    relation is read
hybrid     all but the streamed relation     the partitions that are probed least    the same, of the
                                             for their size, and what of the         rest at the end
                                             streamed relation belongs to them
grace      everything                        everything, once                        at the end
sort_merge everything                        everything, once, sorted                at the end, by key
========== ================================= ======================================= ==================
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from itertools import chain
from typing import Any, Protocol

import pyarrow as pa

from millrace.engine.spill.chunks import Chunk, Extent
from millrace.engine.spill.division import fitting
from millrace.engine.spill.guard import Rest
from millrace.engine.spill.partitions import Partitions, fan_out
from millrace.engine.spill.residency import first_of
from millrace.engine.spill.runs import Runs
from millrace.engine.spill.work import Inputs, Setting, Work, batches


class Sources(Protocol):
    """The block's sources; each is asked for once."""

    def raw(self, relation: int) -> Iterator[pa.RecordBatch]:
        """Yield the tuples of a source."""

    def keyed(self, relation: int) -> Iterator[pa.RecordBatch]:
        """Yield the tuples of a source that have no null key."""


class Join(Protocol):
    """Joins what fits."""

    def __call__(
        self,
        inputs: Inputs,
        extents: Mapping[int, Extent],
        streamed: int | None,
        *,
        online: bool = False,
        work: Work | None = None,
    ) -> Generator[Any, None, Rest | None]:
        """Yield the results of a join, in smaller pieces where its state turns out to be too large.

        Args:
            inputs: The tuples of each relation.
            extents: How much that is, of those relations for which it is known.
            streamed: The relation to leave unbuilt, or None.
            online: Read and build all relations in turn.
            work: The piece of work, if the tuples come from files.

        Returns:
            With ``online``, what is left when the state is too large; None for nothing.
        """


def grace(setting: Setting, sources: Sources, join: Join) -> Iterator[Any]:
    """Partition everything on disk, then join a partition, or several small ones, at a time."""
    partitions = Partitions(setting, widest_class(setting), partition_count(setting))
    if _read_all(setting, sources, partitions):
        yield from joined(setting, partitions.works(), join)


def sort_merge(setting: Setting, sources: Sources, join: Join) -> Iterator[Any]:
    """Write sorted runs, then join range by range."""
    runs = Runs(setting, widest_class(setting))
    if _read_all(setting, sources, runs):
        yield from joined(setting, runs.works(), join)


def hybrid(setting: Setting, sources: Sources, join: Join, *, keep: bool = True) -> Iterator[Any]:
    """Keep partitions in memory while the budget lasts; they are joined as the streamed relation comes.

    Which ones, its first tuples decide (:mod:`millrace.engine.spill.residency`).

    Args:
        setting: The run.
        sources: The block's sources.
        join: Joins what fits.
        keep: Keep some partitions when not all fit; otherwise all go to files then.
    """
    stream = setting.stream
    held = Held(setting)
    partitions: Partitions | None = None
    for relation in setting.order:
        if relation == stream:
            continue
        rows = 0
        for batch in sources.keyed(relation):
            rows += batch.num_rows
            if partitions is not None:
                partitions.add(relation, batch)
            elif not held.add(relation, batch):
                partitions = Partitions(
                    setting, widest_class(setting), partition_count(setting, held.extents), keep=keep
                )
                held.move(partitions)
        if not rows:
            return
    if partitions is None:
        whole = {r: in_memory(setting, chunks) for r, chunks in held.chunks.items()}
        if stream is not None:
            whole[stream] = sources.raw(stream)
        yield from join(whole, held.extents, stream)
        return
    probing = None if stream is None else sources.keyed(stream)
    if stream is not None and probing is not None:
        sample = first_of(probing, setting.budget.buffer)
        partitions.keep_probed(stream, sample)
        probing = chain(_given(sample), probing)
    work = Work(partitions.hand_over())
    resident = {r: in_memory(setting, chunks) for r, chunks in work.inputs.items() if r != stream}
    extents = {r: extent for r, extent in work.extents.items() if r != stream}
    if stream is None or probing is None:
        if partitions.has_resident:
            yield from join(resident, extents, None)
    else:
        sieved = partitions.sieve(stream, probing)
        if partitions.has_resident:
            yield from join({**resident, stream: sieved}, extents, stream)
        for _ in sieved:  # an eddy stops reading when no result can come any more; partitions in files go on
            pass
    yield from joined(setting, partitions.works(), join)


def joined(setting: Setting, works: list[Work], join: Join) -> Iterator[Any]:
    """Yield the results of pieces of work, whatever their size; ``works`` is emptied."""
    for work in fitting(setting, works):
        inputs = {r: batches(setting, r, chunks) for r, chunks in work.inputs.items()}
        yield from join(inputs, work.extents, work.streamed(setting), work=work)


def in_memory(setting: Setting, chunks: list[Chunk]) -> Iterator[pa.RecordBatch]:
    """Yield the tuples of chunks in memory, each of which is let go of before it is asked for the next."""
    chunks.reverse()
    while chunks:
        setting.memory.wait(-chunks[-1].extent.bytes)
        yield chunks.pop().data


def widest_class(setting: Setting) -> int | None:
    """Return the attribute class of the largest relations by estimate; None without a class."""
    relations = setting.spec.relations
    sizes = [(1 if r.rows is None else r.rows) * row_bytes(r.schema) for r in relations]
    gains = {
        attribute: sum(size for r, size in enumerate(sizes) if setting.covers(attribute, r))
        for attribute in range(len(setting.graph.classes))
    }
    return max(gains, key=lambda attribute: (gains[attribute], -attribute), default=None)


def partition_count(setting: Setting, seen: Mapping[int, Extent] | None = None) -> int:
    """Return into how many partitions to divide the block's state, of which some may have been seen."""
    size = 0.0
    for number, relation in enumerate(setting.spec.relations):
        if number == setting.stream:
            continue
        if relation.rows is None:
            return fan_out(setting, None)
        known = setting.footprint(number, (seen or {}).get(number, Extent()))
        size += max(known, 2 * relation.rows * row_bytes(relation.schema))
    return fan_out(setting, size)


def row_bytes(schema: pa.Schema) -> int:
    """Return about how many bytes a tuple takes."""
    return sum(
        _VARIABLE if _is_variable(field.type) else max(1, field.type.bit_width // 8) for field in schema
    )


_VARIABLE = 32
"""What a value of a type without a fixed width is taken to need."""


def _is_variable(kind: pa.DataType) -> bool:
    try:
        return not kind.bit_width
    except ValueError:
        return True


def _given(batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield batches, each of which is let go of before it is asked for the next."""
    batches.reverse()
    while batches:
        yield batches.pop()


class Held:
    """Tuples in memory that have not been divided yet, while they fit.

    Attributes:
        chunks: The tuples of each relation.
        extents: How much that is.
    """

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self.chunks: dict[int, list[Chunk]] = {}
        self.extents: dict[int, Extent] = {}

    def add(self, relation: int, batch: pa.RecordBatch) -> bool:
        """Take tuples; return whether everything still fits."""
        chunk = self._setting.chunk(relation, batch)
        self.chunks.setdefault(relation, []).append(chunk)
        self.extents[relation] = self.extents.get(relation, Extent()) + chunk.extent
        self._setting.memory.wait(chunk.extent.bytes)
        return self._setting.state(self.extents, None) <= self._setting.budget.state

    def move(self, partitions: Partitions) -> None:
        """Put all tuples into partitions."""
        for relation, chunks in self.chunks.items():
            for batch in in_memory(self._setting, chunks):
                partitions.add(relation, batch)
        self.chunks.clear()


def _read_all(setting: Setting, sources: Sources, into: Partitions | Runs) -> bool:
    """Read every relation; return whether all have a tuple. The streamed one is read last, if at all."""
    for relation in setting.order:
        rows = 0
        for batch in sources.keyed(relation):
            rows += batch.num_rows
            into.add(relation, batch)
        if not rows:
            return False
    into.finish()
    return True


def symmetric(setting: Setting, sources: Sources, join: Join) -> Iterator[Any]:
    """Join at once what comes; when the budget is spent, everything goes to files.

    With ``Options.online``, where no relation has set semantics or shares another's tuples, all sources
    are read in turn and all tuples are built. The results of those that have come by the time the budget is
    spent (*early* tuples) are out by then. What is missing are the combinations with at least one later
    tuple. Each has a first relation, by number, whose tuple is late, so they are the disjoint union, over
    every relation i, of the join of early tuples of the relations before i, late tuples of i, and all
    tuples of those behind it.

    Otherwise only the streamed relation makes results as it comes, as in an eddy without a budget;
    that state is spilled before the first result or not at all.
    """
    if not setting.online or any(relation.distinct for relation in setting.spec.relations):
        yield from hybrid(setting, sources, join, keep=False)
        return
    rest = yield from join({r: sources.keyed(r) for r in setting.order}, {}, None, online=True)
    if rest is None:
        return
    attribute, count = widest_class(setting), partition_count(setting)
    early, late = (Partitions(setting, attribute, count) for _ in range(2))
    for relation in setting.order:
        for batch in rest.built(relation):
            early.add(relation, batch)
    early.finish()
    for relation in setting.order:
        for batch in rest.unread[relation]:
            late.add(relation, batch)
    late.finish()
    before, after = early.everything(), late.everything()
    for first in setting.order:
        works = [
            Work(
                {
                    r: old[r] if r < first else new[r] if r == first else old[r] + new[r]
                    for r in setting.order
                },
                level=1,
            )
            for old, new in zip(before, after, strict=True)
        ]
        yield from joined(setting, early.grouped(work for work in works if work.possible), join)
