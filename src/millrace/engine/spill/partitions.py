"""Hash partitions: tuples clustered by one attribute class, and how to divide what is still too large.

Every result agrees on the class, so it is made in exactly one partition. Relations without a column
in the class take part in all of them. What is added waits in a buffer until there is enough of it to
be cut up in one go.

A partition that does not fit is divided: by another hash of a key while that helps, by rows where it does
not. Joining each part of one relation with all of every other is right however the relation is cut, so
there is always a way: heavy keys, cross products, blocks without any key. The other relations are
read once for each part (a block nested loop). Only a relation with set semantics may not be cut
anyhow, for duplicates have to meet; all of its columns are keys, and equal keys stay together.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Self

import numpy as np
import pyarrow as pa

from millrace.engine.arrays import Array, gathered, to_arrow
from millrace.engine.kernels import mix
from millrace.engine.spill.context import (
    Chunk,
    ChunkStats,
    Partition,
    SpillContext,
    codes_of,
    largest,
    sized,
    total,
    tuple_bytes,
)
from millrace.engine.spill.folder import SpillFile
from millrace.engine.spill.guard import Remainder
from millrace.engine.tuples import keyed

Place = tuple[int, int | None]
"""A relation's number and its partition's; None for all partitions."""

_SALT = np.int64(0x5851F42D4C957F2D)
_LEAST, _USUAL, _MOST = 4, 16, 64

_HEAVY = 0.75
"""A partition with this much of the tuples is not divided by its own class once more."""

_WORTH = 0.25
"""Dividing by a class has to divide this much of the state, or rows are cut instead."""

DEEPEST = 24
"""Levels of hashing after which nothing is hoped for from another one."""


def widest_class(context: SpillContext) -> int | None:
    """Return the attribute class of the largest relations by estimate; None without a class."""
    relations = enumerate(context.spec.relations)
    return largest(
        context.gains({n: (1 if r.rows is None else r.rows) * tuple_bytes(r.schema) for n, r in relations})
    )


def partition_count(context: SpillContext, seen: Mapping[int, ChunkStats] | None = None) -> int:
    """Return into how many partitions to divide the block's state, of which some may have been seen."""
    size = 0.0
    for number, relation in enumerate(context.spec.relations):
        if number == context.stream:
            continue
        if relation.rows is None:
            return _USUAL
        known = context.footprint(number, (seen or {}).get(number, ChunkStats()))
        size += max(known, 2 * relation.rows * tuple_bytes(relation.schema))
    return fan_out(context, size)


def fan_out(context: SpillContext, size: float) -> int:
    """Return into how many partitions to divide state of about ``size`` bytes.

    A power of 2 so that a partition takes about a quarter of what fits: keys are not spread evenly, and
    small partitions are joined together.
    """
    wanted = max(1, int(np.ceil(4 * size / context.budget.state)))
    return int(min(_MOST, max(_LEAST, 1 << (wanted - 1).bit_length())))


def numbered(coded: Array, level: int, count: int) -> Array:
    """Return each code's partition, ``uint8``; levels are independent of each other."""
    with np.errstate(over="ignore"):
        salted = mix(coded) + _SALT * np.int64(level + 1)
    hashed: Array = mix(salted).view(np.uint64)
    return (hashed >> np.uint64(64 - (count.bit_length() - 1))).astype(np.uint8)


def most_probed(
    resident: Collection[int],
    hits: Sequence[int],
    sizes: Sequence[int],
    fits: Callable[[Collection[int]], bool],
) -> set[int]:
    """Return the partitions to keep in memory: those that are probed most often for their size.

    Raman, Deshpande & Hellerstein 2003, sections 3.1 and 6: how much memory each part of a SteM gets is the
    eddy's to decide. Before the streamed relation comes, nobody knows what it will look for, and the largest
    partitions have gone to files. Its first tuples tell, and a partition that many of them look into is worth
    more in memory than one of the same size that few do: a tuple that finds its partition in a file goes to a
    file too. Where nine of ten streamed tuples look for keys of the largest partition, 919 of 12,000 go to
    files instead of 11,738.

    Partitions that are in memory get the room that is left. ``hits`` are how many of the first tuples look
    into each partition, and ``sizes`` its bytes.
    """
    kept = set[int]()
    for number in sorted(
        range(len(sizes)), key=lambda each: (-hits[each] / max(1, sizes[each]), sizes[each])
    ):
        if (hits[number] or number in resident) and fits({*kept, number}):
            kept.add(number)
    return kept


class Partitioner:
    """Partitions being filled, one relation after the other, by the hash of one attribute class.

    Without a class there is one partition. With ``keep`` partitions are held in memory while the budget
    lasts; the largest are evicted when it does not. ``count`` is a power of 2, at least 2; ``stored`` are
    tuples of relations without the class that are in files already.
    """

    def __init__(
        self,
        context: SpillContext,
        attribute: int | None,
        count: int,
        level: int = 0,
        *,
        keep: bool = False,
        stored: Mapping[int, list[Chunk]] | None = None,
    ) -> None:
        self._context = context
        self._attribute = attribute
        self._level = level
        self._count = 1 if attribute is None else count
        self._resident = set(range(self._count)) if keep else set[int]()
        self._handed_over = False
        # Relations without the class have all of their tuples under None.
        self._places: dict[Place, list[Chunk]] = {(r, None): own for r, own in (stored or {}).items()}
        self._files: dict[Place, SpillFile] = {}
        self._pending: dict[Place, list[pa.RecordBatch]] = {}
        self._waiting = 0
        self._current: int | None = None

    @property
    def has_resident(self) -> bool:
        return bool(self._resident)

    def add(self, relation: int, batch: pa.RecordBatch) -> None:
        """Take tuples without null keys; the budget decides where they go."""
        if relation != self._current:
            self.finish()
            self._current = relation
        if not batch.num_rows:
            return
        if self._covers(relation):
            numbers = self._numbers(relation, batch)
            bounds = np.searchsorted(np.sort(numbers), np.arange(self._count + 1))
            batch = batch.take(to_arrow(np.argsort(numbers, kind="stable")))
            for number in range(self._count):
                low, high = int(bounds[number]), int(bounds[number + 1])
                if high > low:
                    self._pending.setdefault((relation, number), []).append(batch.slice(low, high - low))
        else:
            self._pending.setdefault((relation, None), []).append(batch)
        self._waiting += int(batch.nbytes)
        self._context.budget.wait(int(batch.nbytes))
        if self._waiting >= self._context.budget.buffer:
            self._flush()

    def fill(self, inputs: Mapping[int, Iterable[pa.RecordBatch]]) -> Self:
        """Take tuples of some relations, in batches that buffers have room for."""
        for relation, batches in inputs.items():
            for batch in batches:
                for piece in sized(batch, self._context.budget.buffer):
                    self.add(relation, piece)
        self.finish()
        return self

    def finish(self) -> None:
        """Put away what waits, and finish the files."""
        self._flush()
        for file in self._files.values():
            file.finish()
        self._files.clear()

    def keep_probed(self, relation: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Give memory to the partitions that are worth most, by the first tuples of the streamed relation.

        All others have been added. Returns the tuples; as many tell as a buffer has room for.
        """
        self._flush()
        resident, budget = self._resident, self._context.budget
        if not (resident and self._covers(relation)) or len(resident) == self._count:
            return batches
        if (sample := next(gathered(batches, 1 << 30, budget.buffer), None)) is None:
            return batches
        size = int(sample.nbytes)
        budget.wait(size)
        self._exchange(relation, sample)
        return chain(budget.drain([sample], lambda _: size), batches)

    def _exchange(self, relation: int, sample: pa.RecordBatch) -> None:
        """Exchange partitions in memory if that saves more than it moves."""
        resident = self._resident
        places = _totals(self._places)
        sizes = [
            sum(each.bytes for place, each in places.items() if place[1] == n) for n in range(self._count)
        ]
        hits = np.bincount(self._numbers(relation, sample), minlength=self._count).tolist()
        kept = most_probed(resident, hits, sizes, lambda numbers: self._fits(places, numbers))
        known, rows = self._context.spec.relations[relation].rows, sample.num_rows
        expected = sum(sizes) if known is None else known * sample.nbytes / rows
        # What is exchanged is read or written once, and what is evicted read again later. Each tuple of the
        # streamed relation whose partition is in a file is written and read.
        gained = sum(hits[n] for n in kept) - sum(hits[n] for n in resident)
        moved = sum(sizes[n] for n in kept - resident) + 2 * sum(sizes[n] for n in resident - kept)
        if 2 * gained / rows * expected <= moved:
            return
        self._resident = kept
        for number in resident - kept:
            self._put_away(number)
        self.finish()
        for number in kept - resident:
            self._fetch(number)

    def hand_over(self) -> dict[int, list[Chunk]]:
        """Return the tuples in memory, which are the caller's from now on.

        They are those of partitions that were not evicted and of relations without the class. If some
        partition was evicted, it needs the latter too: they go to files as well.
        """
        self._flush()
        inputs: dict[int, list[Chunk]] = {relation: [] for relation in self._context.order}
        for place, chunks in self._held().items():
            inputs[place[0]] += chunks
            if place[1] is None and len(self._resident) < self._count:
                self._store(place)
            else:
                del self._places[place]
        self._handed_over = True
        self.finish()
        return inputs

    def sieve(self, relation: int, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield those tuples of the streamed relation that belong to partitions in memory; store the rest.

        All other relations have been added. Tuples of partitions in which one of them has no tuple
        are dropped.
        """
        others = [r for r in self._context.order if r != relation]
        here = np.zeros(self._count, np.bool_)
        here[list(self._resident)] = True
        there = np.array([not h and self._has(number, others) for number, h in enumerate(here)])
        for batch in batches:
            if not self._covers(relation):
                if there.any():
                    self.add(relation, batch)
                yield batch
                continue
            numbers = self._numbers(relation, batch)
            if (away := there[numbers]).any():
                self.add(relation, batch.filter(to_arrow(away)))
            if (near := here[numbers]).any():
                yield batch.filter(to_arrow(near))
        self.finish()

    def everything(self) -> list[dict[int, list[Chunk]]]:
        """Return what each partition has in files, also where some relation has no tuple."""
        return [{r: self._chunks(r, n) for r in self._context.order} for n in range(self._count)]

    def partitions(self, whole: Partition | None = None) -> list[Partition]:
        """Return the partitions in files that may have results, small ones together, as many as fit.

        They are parts of ``whole``. Their own class is spent for one that has most of the tuples.
        """
        whole = whole or Partition({})
        parts = [
            inputs
            for number, inputs in enumerate(self.everything())
            if number not in self._resident and self._has(number, self._context.order)
        ]
        sizes = [sum(total(mine).bytes for r, mine in inputs.items() if self._covers(r)) for inputs in parts]
        heavy = _HEAVY * sum(sizes)
        own = frozenset(attribute for attribute in [self._attribute] if attribute is not None)
        spent = [whole.spent | own if size > heavy else whole.spent for size in sizes]
        return self.grouped(
            replace(whole, inputs=inputs, level=self._level + 1, spent=each)
            for inputs, each in zip(parts, spent, strict=True)
        )

    def grouped(self, partitions: Iterable[Partition]) -> list[Partition]:
        """Join up neighbours while they fit: fewer joins, and other relations are read less often."""
        groups: list[Partition] = []
        for partition in partitions:
            if groups:
                inputs = {
                    r: groups[-1].inputs[r] + chunks if self._covers(r) else chunks
                    for r, chunks in partition.inputs.items()
                }
                both = replace(partition, inputs=inputs, spent=partition.spent | groups[-1].spent)
                if self._context.fits(both):
                    groups[-1] = both
                    continue
            groups.append(partition)
        return groups

    def _covers(self, relation: int) -> bool:
        return self._context.covers(self._attribute, relation)

    def _numbers(self, relation: int, batch: pa.RecordBatch) -> Array:
        key = self._context.key(self._attribute, relation)
        return numbered(codes_of(batch, key), self._level, self._count)

    def _chunks(self, relation: int, number: int) -> list[Chunk]:
        return self._places.get((relation, number if self._covers(relation) else None), [])

    def _held(self) -> dict[Place, list[Chunk]]:
        """Return what is in memory; of a place that is all or nothing."""
        return {p: own for p, own in self._places.items() if own and isinstance(own[0].data, pa.RecordBatch)}

    def _has(self, number: int, relations: Iterable[int]) -> bool:
        return all(self._chunks(r, number) for r in relations)

    def _flush(self) -> None:
        """Put what waits to the rest of its partition."""
        budget, copied = self._context.budget, self._waiting
        self._waiting = 0
        budget.wait(copied)
        while self._pending:
            place, slices = self._pending.popitem()
            # Slices are copied, or they would hold on to the tuples of all other partitions.
            chunk = self._context.chunk(place[0], pa.concat_batches(slices))
            del slices
            if self._resident and not self._handed_over and (place[1] is None or place[1] in self._resident):
                budget.wait(chunk.stats.bytes)
            else:
                chunk = chunk.stored(self._file(place))
            self._places.setdefault(place, []).append(chunk)
        budget.wait(-2 * copied)
        # What was cut up leaves holes that Arrow's allocator would keep, beside the budget.
        pa.default_memory_pool().release_unused()
        self._evict()

    def _evict(self) -> None:
        """Move the largest partitions to files until the rest fits.

        When none is left, relations without the class go too: there is nothing to join them with.
        """
        held = _totals(self._held())
        while not self._fits(held, self._resident):
            own = {n: sum(held[p].bytes for p in held if p[1] == n) for n in self._resident}
            number = largest(own)
            assert number is not None, "what is held belongs to partitions in memory"
            self._resident.remove(number)
            self._put_away(number)

    def _fits(self, places: Mapping[Place, ChunkStats], numbers: Collection[int]) -> bool:
        """Whether the budget has room for some partitions, and relations without the class, together."""
        together: dict[int, ChunkStats] = {}
        for (relation, number), stats in places.items():
            if number in numbers or (numbers and number is None):
                together[relation] = together.get(relation, ChunkStats()) + stats
        return self._context.state(together, None) <= self._context.budget.state

    def _put_away(self, number: int) -> None:
        """Move a partition, which is not to be in memory any more, to files."""
        for place in [*self._held()]:
            if place[1] == number or not self._resident:
                size = total(self._places[place]).bytes
                self._store(place)
                self._context.budget.wait(-size)

    def _fetch(self, number: int) -> None:
        """Read a partition back from its files."""
        for place, chunks in self._places.items():
            if place[1] == number:
                self._context.budget.wait(total(chunks).bytes)
                self._places[place] = [Chunk(c.stats, self._context.read(place[0], c)) for c in chunks]

    def _store(self, place: Place) -> None:
        self._places[place] = [chunk.stored(self._file(place)) for chunk in self._places[place]]

    def _file(self, place: Place) -> SpillFile:
        if place not in self._files:
            self._files[place] = self._context.new_file(place[0])
        return self._files[place]


def _totals(places: Mapping[Place, list[Chunk]]) -> dict[Place, ChunkStats]:
    return {place: total(chunks) for place, chunks in places.items()}


def fitting(context: SpillContext, partitions: list[Partition]) -> Iterator[Partition]:
    """Yield partitions that fit the budget and together have the results of these; the list is emptied.

    One that nothing can divide (a tuple of each relation) comes as it is.
    """
    stack = partitions[::-1]
    partitions.clear()  # files go when no partition needs them
    while stack:
        partition = stack.pop()
        if not partition.has_all:
            continue
        parts = None if context.fits(partition) else _divided(context, partition)
        if parts is None:
            yield partition
        else:
            del partition  # what has been divided needs its files no more
            stack.extend(reversed(parts))


def store(context: SpillContext, rest: Remainder, partition: Partition) -> Partition:
    """Write what a join has left of a partition to files; return it as one that does not fit."""
    inputs: dict[int, list[Chunk]] = {}
    for relation in context.order:
        layout, file = context.layouts[relation], context.new_file(relation)
        inputs[relation] = [
            context.chunk(relation, piece).stored(file)
            for batch in rest.all(relation)
            for piece in sized(keyed(batch, layout.keys, layout.same)[0], context.budget.buffer)
        ]
        file.finish()
    left = replace(partition, inputs=inputs)
    scale = context.budget.state / max(1, context.expected(left))
    return replace(left, scale=2 * max(partition.scale, scale))


def _divided(context: SpillContext, partition: Partition) -> list[Partition] | None:
    """Return parts of a partition that does not fit, or None if there is no way to divide it."""
    streamed = context.streamed(partition)
    sizes = {r: context.footprint(r, each) for r, each in partition.stats.items() if r != streamed}
    loose = {
        r: size
        for r, size in sizes.items()
        if partition.stats[r].rows > 1 and not context.spec.relations[r].distinct
    }
    gains = context.gains(sizes) if partition.level < DEEPEST else {}
    fresh = {attribute: gain for attribute, gain in gains.items() if attribute not in partition.spent}
    best = largest(fresh)
    if best is not None and fresh[best] >= _WORTH * sum(sizes.values()):
        return _by_key(context, partition, best)
    widest = largest(sizes)
    again = [a for a, gain in gains.items() if gain and context.covers(a, widest or 0)]
    cut = largest(loose)
    if cut is not None and (widest in loose or not again):
        return _by_rows(context, partition, cut, sum(sizes.values()))
    # A relation with set semantics: as duplicates have gone, a class that was spent may divide it again.
    return _by_key(context, partition, again[partition.level % len(again)]) if again else None


def _by_key(context: SpillContext, partition: Partition, attribute: int) -> list[Partition]:
    context.folder.tally.splits_by_key += 1
    count = fan_out(context, partition.scale * context.expected(partition))
    inputs = partition.inputs
    stored = {r: chunks for r, chunks in inputs.items() if not context.covers(attribute, r)}
    parts = Partitioner(context, attribute, count, partition.level, stored=stored)
    parts.fill({r: context.batches(r, chunks) for r, chunks in inputs.items() if r not in stored})
    return parts.partitions(partition)


def _by_rows(context: SpillContext, partition: Partition, relation: int, everything: int) -> list[Partition]:
    context.folder.tally.splits_by_rows += 1
    own, rows = context.footprint(relation, partition.stats[relation]), partition.stats[relation].rows
    limit = context.room(partition)
    # What the others leave; where they leave little they will be cut themselves.
    room = max(limit - (everything - own), limit // 4, 1) / 2
    groups = cut_up(partition.inputs[relation], int(rows * min(0.5, room / own)))
    return [replace(partition, inputs={**partition.inputs, relation: group}) for group in groups]


def cut_up(chunks: list[Chunk], rows: int) -> list[list[Chunk]]:
    """Return the chunks in groups of at most so many rows, of one row at least."""
    rows, groups, count = max(1, rows), list[list[Chunk]]([[]]), 0
    for piece in (piece for chunk in chunks for piece in chunk.pieces(rows)):
        count += piece.stats.rows
        if groups[-1] and count > rows:
            groups.append([])
            count = piece.stats.rows
        groups[-1].append(piece)
    return groups
