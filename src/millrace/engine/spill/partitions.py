"""Hash partitions: tuples clustered by one attribute class, in memory or in files.

Every result agrees on the class, so it is made in exactly one partition. Relations without a column
in the class take part in all of them. What is added waits in a buffer until there is enough of it to
be cut up in one go.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from millrace.engine.arrays import Array, to_arrow
from millrace.engine.kernels import mix
from millrace.engine.spill.chunks import Chunk, Extent, total
from millrace.engine.spill.folder import SpillWriter
from millrace.engine.spill.residency import Probed, to_keep
from millrace.engine.spill.work import Setting, Work
from millrace.engine.tuples import codes

Place = tuple[int, int | None]
"""A relation's number and its partition's; None for all partitions."""

_SALT = np.int64(0x5851F42D4C957F2D)
_LEAST, _USUAL, _MOST = 4, 16, 64


def fan_out(setting: Setting, size: float | None) -> int:
    """Return into how many partitions to divide state of about ``size`` bytes (None: unknown).

    A power of 2 so that a partition takes about a quarter of what fits: keys are not spread evenly, and
    small partitions are joined together.
    """
    if size is None:
        return _USUAL
    wanted = max(1, int(np.ceil(4 * size / setting.budget.state)))
    return int(min(_MOST, max(_LEAST, 1 << (wanted - 1).bit_length())))


def numbered(coded: Array, level: int, count: int) -> Array:
    """Return each code's partition, ``uint8``; levels are independent of each other."""
    with np.errstate(over="ignore"):
        salted = mix(coded) + _SALT * np.int64(level + 1)
    hashed: Array = mix(salted).view(np.uint64)
    return (hashed >> np.uint64(64 - (count.bit_length() - 1))).astype(np.uint8)


class Partitions:
    """Partitions being filled, one relation after the other.

    Args:
        setting: The run.
        attribute: The class that tuples are clustered by; None puts everything into one partition.
        count: Number of partitions, a power of 2, at least 2.
        level: Which hash function.
        keep: Hold partitions in memory while the budget lasts; the largest are evicted when it does not.
        shared: Tuples of relations that are not divided; they stay where they are.
    """

    def __init__(
        self,
        setting: Setting,
        attribute: int | None,
        count: int,
        level: int = 0,
        *,
        keep: bool = False,
        shared: Mapping[int, list[Chunk]] | None = None,
    ) -> None:
        self._setting = setting
        self._attribute = attribute
        self._level = level
        self._count = 1 if attribute is None else count
        self._shared = dict(shared or {})
        self._relations = [r for r in setting.order if r not in self._shared]
        self._resident = set(range(self._count)) if keep else set[int]()
        self._handed_over = False
        # Relations without the class have all of their tuples under None.
        self._held: dict[Place, list[Chunk]] = {}
        self._stored: dict[Place, list[Chunk]] = {}
        self._writers: dict[Place, SpillWriter] = {}
        self._pending: dict[Place, list[pa.RecordBatch]] = {}
        self._waiting = 0
        self._current: int | None = None

    @property
    def has_resident(self) -> bool:
        """Whether partitions are still in memory."""
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
        self._setting.memory.wait(int(batch.nbytes))
        if self._waiting >= self._setting.budget.buffer:
            self._flush()

    def finish(self) -> None:
        """Put away what waits, and finish the files."""
        self._flush()
        for writer in self._writers.values():
            self._setting.folder.finish(writer)
        self._writers.clear()

    def keep_probed(self, relation: int, sample: Sequence[pa.RecordBatch]) -> None:
        """Give memory to the partitions that are worth most, once it is known what is looked for.

        All other relations have been added. See :mod:`millrace.engine.spill.residency`.

        Args:
            relation: The streamed one.
            sample: Its first tuples.
        """
        self._flush()
        rows = sum(batch.num_rows for batch in sample)
        if not (rows and self._resident and self._covers(relation)) or len(self._resident) == self._count:
            return
        others = [r for r in self._relations if r != relation]
        numbers = np.concatenate([self._numbers(relation, batch) for batch in sample])
        counts = np.bincount(numbers, minlength=self._count)
        places = {**self._stored, **self._held}
        extents = [
            {r: total(places.get((r, number), [])) for r in others if self._covers(r)}
            for number in range(self._count)
        ]
        undivided = {r: total(places.get((r, None), [])) for r in others if not self._covers(r)}
        wanted = [
            int(n) if all(extent.rows for extent in each.values()) else 0
            for n, each in zip(counts, extents, strict=True)
        ]

        def fits(numbers: Collection[int]) -> bool:
            together = dict(undivided)
            for number in numbers:
                together |= {r: together.get(r, Extent()) + e for r, e in extents[number].items()}
            return self._setting.state(together, None) <= self._setting.budget.state

        sizes = [sum(extent.bytes for extent in each.values()) for each in extents]
        known = self._setting.spec.relations[relation].rows
        expected = sum(sizes) if known is None else known * sum(b.nbytes for b in sample) / rows
        kept = to_keep(self._resident, Probed(wanted, expected), sizes, fits)
        for number in self._resident - kept:
            self._put_away(number)
        self.finish()
        for number in kept - self._resident:
            self._fetch(number)

    def hand_over(self) -> dict[int, list[Chunk]]:
        """Return the tuples in memory, which are the caller's from now on.

        They are those of partitions that were not evicted and of relations without the class. If some
        partition was evicted, it needs the latter too: they go to files as well.
        """
        self._flush()
        if len(self._resident) < self._count:
            for place in [place for place in self._held if place[1] is None]:
                self._store(place, self._held[place])
        self.finish()
        inputs: dict[int, list[Chunk]] = {relation: [] for relation in self._relations}
        for (relation, _), chunks in self._held.items():
            inputs[relation] += chunks
        self._held.clear()
        self._handed_over = True
        return inputs

    def sieve(self, relation: int, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield those tuples of the streamed relation that belong to partitions in memory; store the rest.

        All other relations have been added. Tuples of partitions in which one of them has no tuple
        are dropped.
        """
        others = [r for r in self._relations if r != relation]
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

    def parts(self) -> list[dict[int, list[Chunk]]]:
        """Return what each partition in files has, for partitions in which every relation has tuples."""
        return [
            {r: self._chunks(r, number) for r in self._relations} | self._shared
            for number in range(self._count)
            if number not in self._resident and self._has(number, self._relations)
        ]

    def everything(self) -> list[dict[int, list[Chunk]]]:
        """Return what each partition has in files, also where some relation has no tuple."""
        return [{r: self._chunks(r, n) for r in self._relations} for n in range(self._count)]

    def works(self, whole: Work | None = None) -> list[Work]:
        """Return the partitions in files as pieces of work, small ones together, as many as fit.

        The partitions' own class is spent for a partition that has most of the tuples.

        Args:
            whole: What they are partitions of, if that was a piece of work itself.
        """
        whole = whole or Work({})
        everything = sum(self._bytes(inputs) for inputs in self.parts())
        works = []
        for inputs in self.parts():
            spent = whole.spent
            if self._attribute is not None and self._bytes(inputs) > 0.75 * everything:
                spent |= {self._attribute}
            works.append(replace(whole, inputs=inputs, level=self._level + 1, spent=spent))
        return self.grouped(works)

    def grouped(self, works: Iterable[Work]) -> list[Work]:
        """Join up neighbours while they fit: fewer joins, and other relations are read less often."""
        groups: list[Work] = []
        for work in works:
            if groups:
                inputs = {
                    r: groups[-1].inputs[r] + chunks if self._covers(r) else chunks
                    for r, chunks in work.inputs.items()
                }
                both = replace(work, inputs=inputs, spent=work.spent | groups[-1].spent)
                if both.fits(self._setting):
                    groups[-1] = both
                    continue
            groups.append(work)
        return groups

    def _covers(self, relation: int) -> bool:
        return self._setting.covers(self._attribute, relation) and relation not in self._shared

    def _numbers(self, relation: int, batch: pa.RecordBatch) -> Array:
        assert self._attribute is not None
        layout = self._setting.layouts[relation]
        key = layout.keys[layout.of_class[self._attribute]]
        return numbered(codes(batch.column(key.name), key.type)[0], self._level, self._count)

    def _chunks(self, relation: int, number: int) -> list[Chunk]:
        return self._stored.get((relation, number if self._covers(relation) else None), [])

    def _has(self, number: int, relations: Iterable[int]) -> bool:
        return all(self._chunks(r, number) for r in relations)

    def _bytes(self, inputs: Mapping[int, list[Chunk]]) -> int:
        return sum(total(chunks).bytes for r, chunks in inputs.items() if self._covers(r))

    def _flush(self) -> None:
        """Put what waits to the rest of its partition."""
        memory, copied = self._setting.memory, self._waiting
        self._waiting = 0
        memory.wait(copied)
        while self._pending:
            place, slices = self._pending.popitem()
            # Slices are copied, or they would hold on to the tuples of all other partitions.
            chunk = self._setting.chunk(place[0], pa.concat_batches(slices))
            del slices
            if self._resident and not self._handed_over and (place[1] is None or place[1] in self._resident):
                self._held.setdefault(place, []).append(chunk)
                memory.wait(chunk.extent.bytes)
            else:
                self._store(place, [chunk])
        memory.wait(-2 * copied)
        # What was cut up leaves holes that Arrow's allocator would keep, beside the budget.
        pa.default_memory_pool().release_unused()
        self._evict()

    def _evict(self) -> None:
        """Move the largest partitions to files until the rest fits.

        When none is left, relations without the class go too: there is nothing to join them with.
        """
        while self._held and self._setting.state(self._extents(), None) > self._setting.budget.state:
            sizes = dict.fromkeys(self._resident, 0)
            for (_, number), chunks in self._held.items():
                if number is not None:
                    sizes[number] += total(chunks).bytes
            self._put_away(max(sizes, key=lambda number: (sizes[number], -number)))

    def _put_away(self, number: int) -> None:
        """Move a partition to files."""
        self._resident.remove(number)
        for place in list(self._held):
            if place[1] == number or not self._resident:
                chunks = self._held.pop(place)
                self._store(place, chunks)
                self._setting.memory.wait(-total(chunks).bytes)

    def _fetch(self, number: int) -> None:
        """Read a partition back from its files."""
        self._resident.add(number)
        for place in [place for place in self._stored if place[1] == number]:
            for chunk in self._stored.pop(place):
                held = Chunk(chunk.extent, self._setting.read(place[0], chunk))
                self._held.setdefault(place, []).append(held)
                self._setting.memory.wait(chunk.extent.bytes)

    def _extents(self) -> dict[int, Extent]:
        extents: dict[int, Extent] = {}
        for (relation, _), chunks in self._held.items():
            extents[relation] = extents.get(relation, Extent()) + total(chunks)
        return extents

    def _store(self, place: Place, chunks: list[Chunk]) -> None:
        for chunk in chunks:
            writer = self._writers.get(place)
            if writer is None:
                schema = self._setting.spec.relations[place[0]].schema
                writer = self._writers[place] = self._setting.folder.writer(place[0], schema)
            stored = writer.write(self._setting.read(place[0], chunk))
            self._stored.setdefault(place, []).append(Chunk(chunk.extent, stored))
