"""SteMs: half a join. One for each relation; base tuples are built into it and probed for.

Raman, Deshpande, Hellerstein 2003. Rules kept inside the SteM, as in that paper's Table 2:

* TimeStamp: a match is returned only to the component that arrived later. Rows are stamped in
  the order of building, so "older than the probe tuple" is a bound on row numbers.
* LastMatchTimeStamp (section 3.5): a tuple of a relation that is not built may probe again while
  the SteM is incomplete, and meets only the rows that came since its last probe.
* Set semantics, where the relation asks for it (section 3.2): a duplicate is dropped at build.

A SteM has an index on every combination of its columns that some probe has bound so far, made
when that probe first comes. Conjuncts that a hash cannot decide are verified on the match.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from millrace.errors import InputError
from millrace.graph import QueryGraph
from millrace.kernels import Multimap, Walk
from millrace.modules.matching import Classes, Matching, combined
from millrace.relations import RelationStore
from millrace.spec import RelationSpec
from millrace.tuples import Signature, TupleBatch

Array = np.ndarray[Any, np.dtype[Any]]
_ANY = Signature(0)
_SAMPLE = 1024


class Product:
    """Pairs every probe tuple with every row between its bounds: steps of a block ripple join.

    Args:
        tuples: Number of probe tuples.
        low: Only rows from this number on.
        end: Only rows below this number.
        high: Only rows below ``high[i]`` for probe tuple ``i``.
    """

    def __init__(self, tuples: int, low: int, end: int, high: Array | None) -> None:
        counts = np.full(tuples, end, np.int64) if high is None else high.astype(np.int64)
        self._starts = np.concatenate(([0], np.cumsum(np.maximum(counts - low, 0))))
        self._low = low
        self._done = 0
        self.is_new = True

    @property
    def is_done(self) -> bool:
        """Whether every pair has been returned."""
        return bool(self._done >= self._starts[-1])

    def pairs(self, limit: int) -> tuple[Array, Array]:
        """Return the next pairs, at most ``limit``: positions of tuples, and row numbers."""
        self.is_new = False
        numbers = np.arange(self._done, min(self._done + limit, int(self._starts[-1])))
        self._done += limit
        left = np.searchsorted(self._starts, numbers, side="right") - 1
        right = numbers - self._starts[left] + self._low
        return left.astype(np.int32), right.astype(np.int32)


@dataclass(frozen=True, eq=False)
class Probe:
    """A probe that may be under way: resumable, so that no probe's output outgrows a batch.

    Attributes:
        batch: The probing tuples.
        classes: The attribute classes that tie them to the SteM; none for a cross product.
        walk: How far the matches have been returned.
        end: Rows that the SteM had when the probe began.
    """

    batch: TupleBatch
    classes: Classes
    walk: Walk | Product
    end: int

    @property
    def is_new(self) -> bool:
        """Whether no match has been asked for yet."""
        return self.walk.is_new

    @property
    def is_done(self) -> bool:
        """Whether every match has been returned."""
        return self.walk.is_done


class SteM:
    """The state module of one relation.

    Args:
        number: The relation's number in the block.
        spec: The relation.
        graph: The block's query graph.
    """

    def __init__(self, number: int, spec: RelationSpec, graph: QueryGraph) -> None:
        self.number = number
        self.name = f"SteM({spec.alias})"
        self.complete = False
        self._matching = Matching(graph)
        self.layout = self._matching.layouts[number]
        self.store = RelationStore(spec.schema, self.layout.keys)
        self._spec = spec
        self._graph = graph
        self._indexes: dict[Classes, Multimap] = {}
        self._stamps = np.empty(0, np.int64)
        if spec.distinct and {k.name for k in self.layout.keys} != set(spec.schema.names):
            raise InputError(
                f"relation {spec.alias!r} has set semantics: every column of it must be joined on, "
                f"got {spec.schema.names} with {[k.name for k in self.layout.keys]} joined"
            )

    @property
    def rows(self) -> int:
        """Number of tuples held."""
        return self.store.rows

    @property
    def nbytes(self) -> int:
        """Memory of tuples, codes and indexes in bytes."""
        return self.store.nbytes + sum(i.nbytes for i in self._indexes.values())

    def build(self, batch: TupleBatch, stamp: int | None) -> TupleBatch:
        """Insert singletons and bounce them back (BuildFirst, SteM BounceBack).

        Args:
            batch: Tuples of this relation alone, in a store of their own.
            stamp: Timestamp of the first tuple, the rest count up from it; None when no tuple of
                the run needs one.

        Returns:
            The tuples that were not duplicates, now pointing into the SteM.
        """
        source = batch.stores[self.number]
        rows = batch.rows[self.number]
        chunk = source.chunk(rows)
        coded = [source.codes(k)[rows] for k in range(len(self.layout.keys))]
        if self._spec.distinct:
            fresh = self._fresh(chunk, coded)
            chunk, coded = chunk.take(pa.array(fresh)), [c[fresh] for c in coded]
            batch = batch.take(fresh)
        first = self.rows
        self.store.append(chunk, coded)
        for classes, index in self._indexes.items():
            index.insert(self._index_codes(classes, coded))
        stamps = None
        if stamp is not None:
            stamps = np.arange(stamp, stamp + chunk.num_rows)
            if self.rows > len(self._stamps):
                grown = np.empty(max(self.rows, 2 * len(self._stamps)), np.int64)
                grown[:first] = self._stamps[:first]
                self._stamps = grown
            self._stamps[first : self.rows] = stamps
        numbers = np.arange(first, self.rows, dtype=np.int32)
        return TupleBatch(
            replace(batch.signature, built=True),
            {self.number: numbers},
            {self.number: self.store},
            stamps,
            path=batch.path,
            origin=len(numbers),
            failures=batch.failures,
        )

    def start(self, batch: TupleBatch) -> Probe:
        """Begin to probe with tuples that do not span this relation."""
        classes = self._graph.bound(batch.signature.span, self.number)
        high = None
        if batch.stamps is not None:
            high = np.searchsorted(self._stamps[: self.rows], batch.stamps).astype(np.int32)
        walk: Walk | Product
        if classes:
            walk = self._index(classes).probe(
                self._matching.codes((batch.stores, batch.rows), classes), batch.seen, high
            )
        else:
            walk = Product(batch.size, batch.seen, self.rows, high)
        return Probe(batch, classes, walk, self.rows)

    def probe(self, probe: Probe, limit: int) -> TupleBatch:
        """Return the next concatenated matches, at most ``limit``; ``probe.walk`` knows the rest."""
        batch, walk = probe.batch, probe.walk
        origin = batch.origin if walk.is_new else 0
        in_order = walk.is_new
        if isinstance(walk, Product):
            left, right = walk.pairs(limit)
            in_order = False
        else:
            index = self._index(probe.classes)
            left, right = index.matches(walk, limit)
            in_order = in_order and index.unique
            if not self._matching.decides(self.number, probe.classes):
                keep = self._verified(batch, probe.classes, left, right)
                left, right = left[keep], right[keep]
        signature = replace(batch.signature, span=batch.signature.span | 1 << self.number, prior=None)
        if in_order and len(left) == batch.size:
            # Exactly one match for each tuple: what the batch has stays as it is.
            rows, stamps, failures = dict(batch.rows), batch.stamps, batch.failures
        else:
            rows = {relation: numbers[left] for relation, numbers in batch.rows.items()}
            stamps = None if batch.stamps is None else batch.stamps[left]
            failures = {i: f[left] for i, f in batch.failures.items()}
        rows[self.number] = right
        stores = {**batch.stores, self.number: self.store}
        return TupleBatch(
            signature,
            rows,
            stores,
            stamps,
            path=(*batch.path, self._spec.alias),
            origin=origin,
            failures=failures,
        )

    def expected_matches(self, span: int) -> float:
        """Return a guess, before any was seen, of the matches a tuple of that span finds here.

        A key that meets this relation at all meets rows / distinct keys of it; the chance to meet
        it is taken to be the share of the relation that its own filters left.
        """
        classes = self._graph.bound(span, self.number)
        if not classes or not self.rows:
            return float(self.rows)
        kept = min(1.0, self.rows / max(1, self._spec.rows or self.rows))
        return kept * self.rows / self._distinct(classes)

    def _distinct(self, classes: Classes) -> int:
        """Return about how many keys there are: from the index if there is one, else from a sample."""
        index = self._indexes.get(classes)
        if index is not None:
            return max(1, index.distinct)
        sample = np.linspace(0, self.rows - 1, min(self.rows, _SAMPLE)).astype(np.int64)
        coded = [self.store.codes(self.layout.of_class[c])[sample] for c in classes]
        distinct = len(np.unique(combined(coded)))
        # Hardly a repetition in the sample says nothing of the whole: take the keys as unique.
        return self.rows if distinct > 0.9 * len(sample) else distinct

    def _index(self, classes: Classes) -> Multimap:
        index = self._indexes.get(classes)
        if index is None:
            index = self._indexes[classes] = Multimap(self.rows)
            index.insert(
                self._index_codes(classes, [self.store.codes(k) for k in range(len(self.layout.keys))])
            )
        return index

    def _index_codes(self, classes: Classes, coded: list[Array]) -> Array:
        return combined([coded[self.layout.of_class[c]] for c in classes])

    def _verified(self, batch: TupleBatch, classes: Classes, left: Array, right: Array) -> Array:
        mine = {self.number: self.store}, {self.number: right}
        return self._matching.verified((batch.stores, batch.rows), mine, classes, left, None)

    def _fresh(self, chunk: pa.RecordBatch, coded: list[Array]) -> Array:
        """Return positions of the chunk's rows that are neither held already nor repeated in it."""
        keys = self.layout.keys
        if not keys:  # tuples without a column are all equal
            return np.arange(min(1, chunk.num_rows) if not self.rows else 0)
        exact = [
            c if k.exact else chunk.column(k.name).dictionary_encode().indices.to_numpy()
            for k, c in zip(keys, coded, strict=True)
        ]
        _, first = np.unique(np.stack(exact, axis=1), axis=0, return_index=True)
        first.sort()
        if not self.rows or not len(first):
            return first
        everything = tuple(self.layout.of_class)
        own = RelationStore.single(chunk, keys, coded)
        candidates = TupleBatch(_ANY, {self.number: first.astype(np.int32)}, {self.number: own})
        codes = self._index_codes(everything, [c[first] for c in coded])
        index = self._index(everything)
        walk = index.probe(codes)
        known = np.zeros(len(first), np.bool_)
        while not walk.is_done:
            left, right = index.matches(walk, max(1024, len(codes)))
            known[left[self._verified(candidates, everything, left, right)]] = True
        return first[~known]
