"""SteMs: half a join. One for each relation; base tuples are built into it and probed for.

Raman, Deshpande, Hellerstein 2003. Rules kept inside the SteM, as in that paper's Table 2:

* SteM BounceBack: a build tuple comes back unless it is a duplicate of one already here, which is
  asked where a relation has set semantics or several access modules (section 3.2). Of a probe
  tuple the SteM knows whether all of its matches are here: after the EOT of a scan, or of an index
  for the tuple's binding (:meth:`SteM.missing`).
* TimeStamp: a match is returned only to the component that arrived later. Rows are stamped in
  the order of building, so "older than the probe tuple" is a bound on row numbers. A tuple that
  several roles of a self-join share counts as later in a later role.
* LastMatchTimeStamp (section 3.5): a tuple of a relation that is not built may probe again while
  the SteM is incomplete, and meets only the rows that came since its last probe.

A SteM has an index on every combination of its columns that some probe has bound so far, made
when that probe first comes. Conjuncts that a hash cannot decide are verified on the match. Where no
equality ties a probe to the SteM, inequalities of two columns do if there are some: they are searched by
an ordered index rather than tried on a cross product. All other predicates are selection modules, where
their cost and selectivity are measured and their place is the policy's to choose.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from millrace.engine.arrays import Array, to_arrow, to_numpy
from millrace.engine.figures import StateFigures
from millrace.engine.kernels import Multimap, Walk
from millrace.engine.plan.graph import QueryGraph
from millrace.engine.plan.spec import RelationSpec
from millrace.engine.stems.base_tuples import BaseTuples
from millrace.engine.stems.bindings import BindingSet, bound
from millrace.engine.stems.conditions import Classes, Matching, combined
from millrace.engine.stems.inequalities import Inequality, ranges
from millrace.engine.stems.ordered import Product, Ranges
from millrace.engine.tuples import KeyColumn, RelationStore, keyed
from millrace.engine.tuples.batch import Signature, TupleBatch, singleton
from millrace.errors import InputError

_ANY = Signature(0)
_SAMPLE = 1024


@dataclass(frozen=True, eq=False)
class Probe:
    """A probe that may be under way: resumable, so that no probe's output outgrows a batch.

    Attributes:
        batch: The probing tuples.
        classes: The attribute classes that tie them to the SteM; none for a cross product.
        walk: How far the matches have been returned.
        end: Rows that the SteM had when the probe began.
        decided: Bit set of the residual predicates that every match satisfies.
    """

    batch: TupleBatch
    classes: Classes
    walk: Walk | Product | Ranges
    end: int
    decided: int = 0

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
        shared: The SteM of the relation whose tuples this one shares, in a self-join.
        inequalities: What can be searched for by an ordered index.
        scanned: Every tuple comes without being asked for.
        as_set: A tuple may come more than once, from several access modules.
        bindings: For each lookup by an index, the attribute classes that bind it, and the columns bound.
        matching: Codes of the block's keys, where several SteMs of a block share them.
    """

    def __init__(
        self,
        number: int,
        spec: RelationSpec,
        graph: QueryGraph,
        shared: SteM | None = None,
        inequalities: Sequence[Inequality] = (),
        *,
        scanned: bool = True,
        as_set: bool = False,
        bindings: Sequence[tuple[Classes, tuple[KeyColumn, ...]]] = (),
        matching: Matching | None = None,
    ) -> None:
        self.number = number
        self.name = f"SteM({spec.alias})"
        self.roles: tuple[int, ...] = (number,)
        self.base: BaseTuples
        self._matching = matching or Matching(graph)
        self.layout = self._matching.layouts[number]
        self._spec = spec
        self._graph = graph
        self._inequalities = inequalities
        self._coming: dict[Classes, tuple[int, float]] = {}
        self._role = 0
        if shared is not None:
            self.base = shared.base
            self.roles = shared.roles
            self._role = self.roles.index(number)
        elif spec.same_as is None and len(graph.roles(number)) > 1:
            self.roles = graph.roles(number)
            layouts = [self._matching.layouts[r] for r in self.roles]
            self.base = BaseTuples(spec.alias, spec.schema, layouts, spec.rows or 0)
            if spec.distinct:
                self.base.as_set()
        else:
            self.base = BaseTuples(spec.alias, spec.schema, [self.layout], spec.rows or 0)
        self.base.scanned = scanned
        if as_set and shared is None:
            self.base.as_set()
        self.lookups: list[tuple[Classes, BindingSet]] = [
            (classes, self.base.eot(keys)) for classes, keys in bindings
        ]
        alone = spec.distinct and len(self.roles) == 1
        if alone and {k.name for k in self.layout.keys} != set(spec.schema.names):
            raise InputError(
                f"relation {spec.alias!r} has set semantics: every column of it must be joined on, "
                f"got {spec.schema.names} with {[k.name for k in self.layout.keys]} joined"
            )

    @property
    def store(self) -> RelationStore:
        """The tuples."""
        return self.base.store

    @property
    def rows(self) -> int:
        """Number of tuples built: the row number that the next one gets."""
        return self.base.store.rows

    @property
    def complete(self) -> bool:
        """Whether a scan has returned all there is (the EOT of the relation)."""
        return self.base.complete

    @complete.setter
    def complete(self, complete: bool) -> None:
        self.base.complete = complete

    @property
    def nbytes(self) -> int:
        """Memory of tuples, codes and indexes in bytes."""
        return self.base.nbytes

    def figures(self) -> StateFigures:
        """Return what is held."""
        store = self.store
        return StateFigures(self.name, store.held, self.nbytes, inserted=store.rows, evicted=store.first)

    def build(self, batch: TupleBatch, stamp: int | None) -> TupleBatch:
        """Insert singletons and bounce them back (BuildFirst, SteM BounceBack).

        Args:
            batch: Tuples of this relation alone, in a store of their own.
            stamp: Timestamp of the first tuple, the rest count up from it, by the number of roles; None
                when no tuple of the run needs one.

        Returns:
            The tuples that were not duplicates, now pointing into the SteM.
        """
        source = batch.stores[self.number]
        rows = batch.rows[self.number]
        chunk = source.chunk(rows)
        coded = [source.coded(k, rows) for k in range(len(self.layout.keys))]
        if self._spec.distinct and len(self.roles) == 1:
            fresh = self._fresh(chunk, coded)
            chunk, coded = chunk.take(to_arrow(fresh)), [c[fresh] for c in coded]
            batch = batch.take(fresh)
        first = self.rows
        kept = self.base.append(chunk, coded, stamp)
        numbers = np.arange(first, self.rows, dtype=np.int32)
        failures = batch.failures if len(kept) == batch.size else batch.take(kept).failures
        return TupleBatch(
            batch.signature.having(built=True),
            {self.number: numbers},
            {self.number: self.store},
            None if stamp is None else self.base.stamps(numbers, self._role),
            path=batch.path,
            origin=len(numbers),
            failures=failures,
        )

    def in_role(self, built: TupleBatch) -> TupleBatch:
        """Return singletons just built as tuples of this relation, one of those that share them."""
        if len(self.roles) == 1:
            return built
        (rows,) = built.rows.values()
        mine = self.base.in_role(rows, self._role)
        rows = rows if mine is None else rows[mine]
        return replace(
            built,
            signature=built.signature.having(span=1 << self.number),
            rows={self.number: rows},
            stores={self.number: self.store},
            stamps=None if built.stamps is None else self.base.stamps(rows, self._role),
            path=(self._spec.alias,),
            origin=len(rows),
        )

    def start(self, batch: TupleBatch) -> Probe:
        """Begin to probe with tuples that do not span this relation."""
        base = self.base
        classes = self._graph.bound(batch.signature.span, self.number)
        high = None
        if batch.stamps is not None:
            high = base.older(batch.stamps, self._role)
        low = max(batch.seen, self.store.first)
        walk: Walk | Product | Ranges
        decided = 0
        if classes:
            codes = self._matching.codes((batch.stores, batch.rows), classes)
            bounds = None if high is None else high - np.int32(base.offset)
            walk = self._index(classes).probe(codes, low - base.offset, bounds)
        elif searched := self._searched(batch.signature):
            walk = ranges(base, searched, batch, low, high)
            decided = sum(1 << each.number for each in searched)
        else:
            walk = Product(batch.size, low, self.rows, high)
        return Probe(batch, classes, walk, self.rows, decided)

    def probe(self, probe: Probe, limit: int) -> TupleBatch:
        """Return the next concatenated matches, at most ``limit``; ``probe.walk`` knows the rest."""
        batch, walk = probe.batch, probe.walk
        origin = batch.origin if walk.is_new else 0
        in_order = walk.is_new
        if isinstance(walk, Product | Ranges):
            left, right = walk.pairs(limit)
            in_order = False
        else:
            index = self._index(probe.classes)
            left, right = index.matches(walk, limit)
            if self.base.offset:
                right = right + np.int32(self.base.offset)
            in_order = in_order and len(left) == batch.size and index.unique
            if not self._matching.decides(self.number, probe.classes):
                keep = self._verified(batch, probe.classes, left, right)
                left, right = left[keep], right[keep]
        mine = self.base.in_role(right, self._role)
        if mine is not None:
            left, right = left[mine], right[mine]
        old = batch.signature
        if self._matching.windows.decide(old.span, 1 << self.number):
            own = {self.number: self.store}, {self.number: right}
            near = self._matching.windows.agree((batch.stores, batch.rows), own, left, None)
            left, right = left[near], right[near]
        signature = old.having(span=old.span | 1 << self.number, prior=None, done=old.done | probe.decided)
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

    def meets(self, batch: TupleBatch) -> Array:
        """Return positions, ascending, of the tuples that may have a match here: equal hashes are enough.

        Args:
            batch: Tuples that do not span this relation, and are tied to it by an attribute class.
        """
        classes = self._graph.bound(batch.signature.span, self.number)
        walk = self._index(classes).probe(self._matching.codes((batch.stores, batch.rows), classes))
        return walk.probes[: walk.active]  # a chain is a match

    def missing(self, batch: TupleBatch) -> Array:
        """Return positions of the tuples that some match may be missing for: no EOT here covers them."""
        if self.complete:
            return np.empty(0, np.int64)
        here = np.zeros(batch.size, np.bool_)
        for classes, eots in self.lookups:
            if eots.size and set(classes) <= set(self._graph.bound(batch.signature.span, self.number)):
                here |= eots.contains(*bound(self._matching, batch, classes))
        return np.flatnonzero(~here)

    def bound_codes(self, batch: TupleBatch, classes: Classes) -> Array | None:
        """Return a code for what each tuple binds of these classes; None where they do not bind all."""
        if not set(classes) <= set(self._graph.bound(batch.signature.span, self.number)):
            return None
        return self._matching.codes((batch.stores, batch.rows), classes)

    def evict(self, below: int) -> None:
        """Drop the tuples with row numbers below this one, whose window has passed.

        No probe matches them any more; their memory is freed, amortised. Row numbers keep counting.
        """
        self.base.evict(below)

    def expected_matches(self, signature: Signature) -> float:
        """Return a guess, before any was seen, of the matches a tuple finds here.

        A key that meets this relation at all meets rows / distinct keys of it; the chance to meet
        it is taken to be the share of the relation that its own filters left. While tuples still come
        that share is an estimate, and keys count of which none has come yet. An inequality is taken
        to pass a third.
        """
        held = self.store.held
        classes = self._graph.bound(signature.span, self.number)
        if not classes or not held:
            return held / float(3 ** len(self._searched(signature)))
        if not self.complete:
            return self._spec.passing * held / self._distinct_at_last(classes)
        kept = min(1.0, self._spec.passing * self.rows / max(1, self._spec.rows or self.rows))
        return kept * held / self._distinct(classes)

    def _searched(self, signature: Signature) -> list[Inequality]:
        """Return the inequalities, all of one column, that a probe of that signature can search by."""
        ready = [
            each
            for each in self._inequalities
            if signature.span >> each.other & 1
            and not signature.done >> each.number & 1
            and not self._graph.residuals_before[each.number] & ~signature.done
        ]
        columns = [(each.column, str(each.type)) for each in ready]
        best = max(columns, key=columns.count, default=None)
        return [each for each, column in zip(ready, columns, strict=True) if column == best]

    def _distinct(self, classes: Classes) -> int:
        """Return about how many keys there are: from the index if there is one, else from a sample."""
        held = self.store.held
        keys = tuple(self.layout.of_class[c] for c in classes)
        if self.base.has_index(keys):
            return max(1, self._index(classes).distinct)
        sample = self._sampled(classes)
        distinct = len(np.unique(sample))
        # Hardly a repetition in the sample says nothing of the whole: take the keys as unique.
        return held if distinct > 0.9 * len(sample) else distinct

    def _distinct_at_last(self, classes: Classes) -> float:
        """Return about how many keys there will be when all tuples have come.

        Where tuples come in no order, new keys grow fewer from one half of a sample to the other, by a factor
        that falls as e^(-n / keys) with n tuples. Where that might be chance, keys are taken to go on as
        they came. An estimate holds until an eighth more has come: a sample costs more than a decision.
        """
        until, known = self._coming.get(classes, (0, 0.0))
        if self.rows >= until:
            sample = self._sampled(classes)
            half = len(sample) // 2
            both, early = len(np.unique(sample)), len(np.unique(sample[:half]))
            late = both - early
            chance = 2 * math.sqrt(max(0.0, late * (1 - late / (len(sample) - half))))
            distinct = self._distinct(classes)
            expected = self._spec.rows or 0
            to_come = expected / self.rows if expected >= self.rows else 2.0  # else as many again
            fading = ((late + chance) / early) ** 2 if early else 1.0
            known = max(distinct, min(distinct * to_come, both / (1 - fading) if fading < 1 else math.inf))
            self._coming[classes] = self.rows + self.rows // 8 + 1, known
        return known

    def _sampled(self, classes: Classes) -> Array:
        """Return codes of the keys of some tuples, in the order in which these came."""
        held = self.store.held
        sample = np.linspace(0, held - 1, min(held, _SAMPLE)).astype(np.int64)
        return combined([self.store.codes(self.layout.of_class[c])[sample] for c in classes])

    def _index(self, classes: Classes) -> Multimap:
        return self.base.index(tuple(self.layout.of_class[c] for c in classes))

    def _verified(self, batch: TupleBatch, classes: Classes, left: Array, right: Array) -> Array:
        mine = {self.number: self.store}, {self.number: right}
        return self._matching.verified((batch.stores, batch.rows), mine, classes, left, None)

    def _fresh(self, chunk: pa.RecordBatch, coded: list[Array]) -> Array:
        """Return positions of the chunk's rows that are neither held already nor repeated in it."""
        keys = self.layout.keys
        if not keys:  # tuples without a column are all equal
            return np.arange(min(1, chunk.num_rows) if not self.rows else 0)
        exact = [
            c if k.exact else to_numpy(chunk.column(k.name).dictionary_encode().indices)
            for k, c in zip(keys, coded, strict=True)
        ]
        _, first = np.unique(np.stack(exact, axis=1), axis=0, return_index=True)
        first.sort()
        if not self.store.held or not len(first):
            return first
        everything = tuple(self.layout.of_class)
        own = RelationStore.single(chunk, keys, coded)
        candidates = TupleBatch(_ANY, {self.number: first.astype(np.int32)}, {self.number: own})
        codes = combined([coded[self.layout.of_class[c]][first] for c in everything])
        index = self._index(everything)
        walk = index.probe(codes, self.store.first - self.base.offset)
        known = np.zeros(len(first), np.bool_)
        while not walk.is_done:
            left, right = index.matches(walk, max(1024, len(codes)))
            right = right + np.int32(self.base.offset)
            known[left[self._verified(candidates, everything, left, right)]] = True
        return first[~known]


def singletons(stem: SteM, batch: pa.RecordBatch, alias: str, *, built: bool) -> TupleBatch:
    """Return the base tuples of a batch that can match at all.

    Args:
        stem: The relation's SteM, which knows its keys.
        batch: What has arrived.
        alias: The relation's alias.
        built: Whether they will not be built.
    """
    if len(stem.roles) > 1:
        batch, coded = stem.base.coded(batch)
    else:
        batch, coded = keyed(batch, stem.layout.keys, stem.layout.same)
    store = RelationStore.single(batch, stem.layout.keys, coded)
    rows = np.arange(batch.num_rows, dtype=np.int32)
    return TupleBatch(
        singleton(stem.number, built=built),
        {stem.number: rows},
        {stem.number: store},
        path=(alias,),
        origin=len(rows),
    )
