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

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from millrace.engine.arrays import ends_of, sliced, to_arrow
from millrace.engine.spill.context import (
    Chunk,
    ChunkStats,
    KeyRange,
    Partition,
    SpillContext,
    codes_of,
    sized,
)
from millrace.engine.spill.guard import Remainder
from millrace.engine.spill.partitions import Partitioner, fitting, partition_count, widest_class
from millrace.engine.tuples import keyed
from millrace.limits.clock import Clock

_RUN_BYTES = 1 << 30
"""Bytes that are sorted at once, at most: texts of one Arrow array have offsets of 32 bits."""

_FIRST, _END = -(1 << 63), 1 << 63

Inputs = Mapping[int, Iterable[pa.RecordBatch]]
"""Tuples of each relation, by its number, to be read once."""

Ends = tuple[pa.Scalar, pa.Scalar]

Join = Callable[..., Generator[Any, None, Remainder | None]]
"""Joins what fits: :meth:`millrace.engine.spill.spilling.SpillingEddy.join`."""


class Sources:
    """The block's sources, each of which is read once, in batches that are checked and counted.

    A relation that has the same tuples as another (a self-join) has no source of its own: the first of them
    to be read leaves the tuples in a file for the others, which join them as tuples of their own: ``shared``
    has the one that each of these shares a source with. ``ended`` is told of each relation that has been read
    to its end, so that less is read of others (:meth:`millrace.engine.eddy.ingest.KeyRanges.learn`).
    """

    def __init__(
        self,
        context: SpillContext,
        sources: Mapping[int, Iterator[pa.RecordBatch]],
        shared: Mapping[int, int],
        clock: Clock,
        ended: Callable[[int, Sequence[str], Callable[[str], Ends | None]], None] | None = None,
    ) -> None:
        self._context = context
        self._sources = sources
        self._shared = shared
        self._clock = clock
        self._ended = ended
        self._copies: dict[int, list[Chunk]] = {}

    def raw(self, relation: int) -> Iterator[pa.RecordBatch]:
        """Yield the tuples of a source in batches of ``Options.batch_size`` tuples at most."""
        lead = self._shared.get(relation, relation)
        if lead in self._copies:
            return self._context.batches(relation, self._copies[lead])
        source = self._scanned(relation, self._sources[lead])
        return self._copied(lead, source) if lead in self._shared.values() else source

    def keyed(self, relation: int) -> Iterator[pa.RecordBatch]:
        """Yield the same without tuples that have a null key, in batches that buffers have room for."""
        layout = self._context.layouts[relation]
        for batch in self.raw(relation):
            joinable, _ = keyed(batch, layout.keys, layout.same)
            yield from sized(joinable, self._context.budget.buffer)

    def read_into(self, into: Partitioner | Runs) -> bool:
        """Read every relation; return whether all have a tuple. The streamed one is read last, if at all."""
        for relation in self._context.order:
            rows = 0
            for batch in self.keyed(relation):
                rows += batch.num_rows
                into.add(relation, batch)
            if not rows:
                return False
        into.finish()
        return True

    def _scanned(self, relation: int, source: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context, ends = self._context, dict[str, Ends | None]()
        keys = [] if self._ended is None else {key.name for key in context.layouts[relation].keys}
        while True:
            began = self._clock.now()
            batch = next(source, None)
            rows = 0 if batch is None else batch.num_rows
            context.folder.tally.book("scan", relation, rows, self._clock.now() - began)
            if batch is None:
                if self._ended is not None:
                    self._ended(relation, context.spec.aliases, ends.get)
                return
            for key in keys:
                ends[key] = ends_of([*(pa.repeat(end, 1) for end in ends.get(key) or ()), batch.column(key)])
            for piece in sliced(batch, context.options.batch_size):
                context.check(relation, piece)
                yield piece

    def _copied(self, lead: int, source: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        file, copy = self._context.new_file(lead), list[Chunk]()
        for batch in source:
            copy.append(Chunk(ChunkStats(batch.num_rows, int(batch.nbytes)), file.write(batch)))
            yield batch
        file.finish()
        self._copies[lead] = copy


class Runs:
    """Sorted runs being written, one relation after the other, and the key ranges that they are merged into.

    Each run is a budget's worth of one relation, sorted by the code of one attribute class and written as
    batches whose bounds are remembered. A range of keys is then a few neighbouring batches of each run;
    ranges are cut so that each fits, and read in the order of keys, so that every run is read from its
    beginning to its end. Order among the tuples of a range does not matter to an eddy, so runs are merged by
    range and not tuple by tuple. Relations without the class are written as they come.
    """

    def __init__(self, context: SpillContext, attribute: int | None) -> None:
        self._context = context
        self._attribute = attribute
        self._pending: list[pa.RecordBatch] = []
        self._waiting = 0
        self._current = 0
        self._chunks: dict[int, list[Chunk]] = {relation: [] for relation in context.order}

    def add(self, relation: int, batch: pa.RecordBatch) -> None:
        """Take tuples without null keys."""
        if relation != self._current:
            self.finish()
            self._current = relation
        self._pending.append(batch)
        self._waiting += int(batch.nbytes)
        self._context.budget.wait(int(batch.nbytes))
        # Sorting takes the tuples twice, their codes, and their new order.
        most = min(self._context.budget.state // 4, _RUN_BYTES)
        if self._waiting + 8 * sum(b.num_rows for b in self._pending) >= most:
            self.finish()

    def finish(self) -> None:
        """Sort what waits and write it."""
        if not self._pending:
            return
        relation, context = self._current, self._context
        batch = pa.concat_batches(self._pending)
        taken = 2 * self._waiting + 16 * batch.num_rows  # a copy at a time, codes, and their order
        context.budget.wait(taken - self._waiting)
        self._pending, self._waiting = [], 0
        if context.covers(self._attribute, relation):
            order = np.argsort(codes_of(batch, context.key(self._attribute, relation)), kind="stable")
            batch = batch.take(to_arrow(order))
            del order
        file = context.new_file(relation)
        for piece in sized(batch, context.budget.buffer // 24):
            self._chunks[relation].append(context.chunk(relation, piece).stored(file))
        file.finish()
        context.budget.wait(-taken)

    def partitions(self) -> list[Partition]:
        """Return key ranges in their order, each as large as fits, for ranges that may have results."""
        context, attribute = self._context, self._attribute
        if attribute is None:
            return [Partition(self._chunks)]
        bounds: set[int] = set()
        for relation, chunks in self._chunks.items():
            if context.covers(attribute, relation):
                key = context.layouts[relation].of_class[attribute]
                bounds.update(chunk.stats.lows[key] for chunk in chunks)
                bounds.update(chunk.stats.highs[key] + 1 for chunk in chunks)
        cuts = [_FIRST, *sorted(bounds), _END]
        partitions, at = [], 0
        while at < len(cuts) - 1:
            low, high = at + 1, len(cuts) - 1  # the largest end whose range fits, the next one if none does
            while low < high:
                middle = (low + high + 1) // 2
                if context.fits(self._range(attribute, cuts[at], cuts[middle])):
                    low = middle
                else:
                    high = middle - 1
            partitions.append(self._range(attribute, cuts[at], cuts[low]))
            at = low
        return [partition for partition in partitions if partition.has_all]

    def _range(self, attribute: int, low: int, high: int) -> Partition:
        inputs = {}
        for relation, chunks in self._chunks.items():
            inputs[relation] = chunks
            if self._context.covers(attribute, relation):
                key = self._context.layouts[relation].of_class[attribute]
                inputs[relation] = [
                    chunk.within(KeyRange(key, low, high))
                    for chunk in chunks
                    if chunk.stats.lows[key] < high and chunk.stats.highs[key] >= low
                ]
        return Partition(inputs, spent=frozenset([attribute] if high - low == 1 else []))


def grace(context: SpillContext, sources: Sources, join: Join) -> Iterator[Any]:
    """Partition everything on disk, then join a partition, or several small ones, at a time."""
    partitioner = Partitioner(context, widest_class(context), partition_count(context))
    if sources.read_into(partitioner):
        yield from joined(context, partitioner.partitions(), join)


def sort_merge(context: SpillContext, sources: Sources, join: Join) -> Iterator[Any]:
    """Write sorted runs, then join range by range."""
    runs = Runs(context, widest_class(context))
    if sources.read_into(runs):
        yield from joined(context, runs.partitions(), join)


def hybrid(context: SpillContext, sources: Sources, join: Join, *, keep: bool = True) -> Iterator[Any]:
    """Keep partitions in memory while the budget lasts; they are joined as the streamed relation comes.

    Which ones, its first tuples decide (:func:`millrace.engine.spill.partitions.most_probed`). Without
    ``keep`` all go to files when not all fit.
    """
    stream = context.stream
    chunks: dict[int, list[Chunk]] = {}
    held: dict[int, ChunkStats] = {}
    partitioner: Partitioner | None = None
    for relation in context.order:
        if relation == stream:
            continue
        rows = 0
        for batch in sources.keyed(relation):
            rows += batch.num_rows
            if partitioner is not None:
                partitioner.add(relation, batch)
                continue
            chunk = context.chunk(relation, batch)
            chunks.setdefault(relation, []).append(chunk)
            held[relation] = held.get(relation, ChunkStats()) + chunk.stats
            context.budget.wait(chunk.stats.bytes)
            if context.state(held, None) > context.budget.state:
                count = partition_count(context, held)
                partitioner = Partitioner(context, widest_class(context), count, keep=keep)
                partitioner.fill({r: context.drained(own) for r, own in chunks.items()})
        if not rows:
            return
    if partitioner is not None:
        yield from _probed(context, sources, join, partitioner)
        return
    whole = {r: context.drained(own) for r, own in chunks.items()}
    if stream is not None:
        whole[stream] = sources.raw(stream)
    yield from join(whole, held, stream)


def _probed(context: SpillContext, sources: Sources, join: Join, partitioner: Partitioner) -> Iterator[Any]:
    """Join partitions in memory as the streamed relation comes, and then those in files."""
    stream = context.stream
    probing: Iterator[pa.RecordBatch] = iter(())
    sieved: Iterator[pa.RecordBatch] = iter(())
    if stream is not None:
        probing = partitioner.keep_probed(stream, sources.keyed(stream))
    kept = Partition(partitioner.hand_over())
    inputs = {r: context.drained(own) for r, own in kept.inputs.items() if r != stream}
    stats = {r: each for r, each in kept.stats.items() if r != stream}
    if stream is not None:
        sieved = inputs[stream] = partitioner.sieve(stream, probing)
    if partitioner.has_resident:
        yield from join(inputs, stats, stream)
    for _ in sieved:  # an eddy stops reading when no result can come any more; partitions in files go on
        pass
    yield from joined(context, partitioner.partitions(), join)


def joined(context: SpillContext, partitions: list[Partition], join: Join) -> Iterator[Any]:
    """Yield the results of partitions, whatever their size; the list is emptied."""
    for each in fitting(context, partitions):
        inputs = {r: context.batches(r, chunks) for r, chunks in each.inputs.items()}
        yield from join(inputs, each.stats, context.streamed(each), partition=each)


def symmetric(context: SpillContext, sources: Sources, join: Join) -> Iterator[Any]:
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
    if not context.online or any(relation.distinct for relation in context.spec.relations):
        yield from hybrid(context, sources, join, keep=False)
        return
    rest = yield from join({r: sources.keyed(r) for r in context.order}, {}, None, online=True)
    if rest is None:
        return
    attribute, count = widest_class(context), partition_count(context)
    early, late = (Partitioner(context, attribute, count) for _ in range(2))
    early.fill({relation: rest.built(relation) for relation in context.order})
    late.fill({relation: rest.unread[relation] for relation in context.order})
    before, after = early.everything(), late.everything()
    for first in context.order:
        partitions = [
            Partition(
                {
                    r: old[r] if r < first else new[r] if r == first else old[r] + new[r]
                    for r in context.order
                },
                level=1,
            )
            for old, new in zip(before, after, strict=True)
        ]
        possible = (partition for partition in partitions if partition.has_all)
        yield from joined(context, early.grouped(possible), join)
