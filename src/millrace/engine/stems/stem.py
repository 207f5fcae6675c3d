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

Relations of a block that are the same data (a self-join) are *roles* of it: each has its SteM, and all these
SteMs share one set of tuples and indexes, so that a tuple is stored and indexed once (section 2.2).

Rows are numbered in the order of building. Evicted rows are never matched again; the indexes are made anew
when they hold more evicted rows than others.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from millrace.engine.arrays import Array, to_arrow, to_numpy
from millrace.engine.figures import StateFigures
from millrace.engine.kernels import Multimap, Walk
from millrace.engine.plan.spec import JoinSpec, RelationSpec
from millrace.engine.stems.bindings import BindingSet, bound, find_matches
from millrace.engine.stems.conditions import Classes, Matching, combine_codes
from millrace.engine.stems.index import Cursor, Inequality, OrderedIndex, Product, inequalities
from millrace.engine.tuples import CodeColumn, KeyColumn, RelationStore, codes, is_key_type, keyed
from millrace.engine.tuples.batch import Signature, TupleBatch, singleton
from millrace.engine.tuples.keys import are_identical, are_tied, first_of_equal
from millrace.errors import InputError, UnsupportedType

if TYPE_CHECKING:
    from millrace.engine.access.paths import Paths

_SAMPLE = 1024

_NULL = np.int64(0x6E756C6C)
"""The code of nulls where whole tuples are compared."""

_WHOLE = KeyColumn("", pa.int64())
"""Stands behind a store's keys where whole tuples are compared: one code for all of a tuple's columns."""

Keys = tuple[int, ...]

LiveRows = Callable[[int, int], frozenset[int]]
"""Returns the relations of whose components something may be read yet, by a tuple's span and done bits."""


@dataclass(frozen=True, eq=False)
class Probe:
    """A probe that may be under way: resumable, so that no probe's output outgrows a batch.

    Attributes:
        undecided: The attribute classes on which matches of the search do not agree for certain.
        end: Rows that the SteM had when the probe began.
        decided: Bit set of the residual predicates that every match satisfies.
    """

    batch: TupleBatch
    undecided: Classes
    walk: Cursor
    end: int
    decided: int

    @property
    def is_done(self) -> bool:
        return self.walk.is_done


class SteM:
    """The state module of one relation.

    ``paths`` say how its tuples come. In a self-join ``shared`` is the SteM of the relation whose tuples this
    one shares.

    Attributes:
        matching: Has the codes of keys; all SteMs of a block share it.
        roles: The relations that share the tuples, this one among them.
        eots: The bindings for which an index has returned everything, by the columns and types bound.
        lookups: For each lookup by an index, the classes that bind it, and its bindings out of these.

    Raises:
        InputError: A set is not joined on every column.
        UnsupportedType: Whole tuples are compared, and a column cannot be.
    """

    def __init__(
        self, number: int, block: JoinSpec, matching: Matching, paths: Paths, shared: SteM | None = None
    ) -> None:
        if shared is not None:  # what it holds is never another object: these are one for all roles
            vars(self).update(vars(shared))
        spec, graph = block.relations[number], matching.graph
        self.number = number
        self.name = f"SteM({spec.alias})"
        self.scanned = bool(paths.scanned >> number & 1)
        self.matching = matching
        self.layout = matching.layouts[number]
        self._spec = spec
        self._graph = graph
        self._inequalities = inequalities(block, number)
        self._coming: dict[Classes, tuple[int, float]] = {}
        if shared is None:
            self.roles = graph.roles(number) if spec.same_as is None else (number,)
            self._compared: tuple[KeyColumn, ...] | None = None  # what equal tuples of a set agree on
            self._found_by: Keys = ()  # the keys of the index that finds them
            keys = self.layout.keys
            if spec.distinct and len(self.roles) == 1:
                self._compared = self._joined_keys()
                self._found_by = tuple(self.layout.of_class.values())
            elif spec.distinct or paths.sets >> number & 1:
                self._compared = _whole(spec)
                if self._compared:
                    self._found_by, keys = (len(keys),), (*keys, _WHOLE)
            self.store = RelationStore(spec.schema, keys, spec.rows or 0)
            self.eots: dict[tuple[tuple[str, str], ...], BindingSet] = {}
            self._stamps = CodeColumn()  # of the rows from ``store.base`` on, if the run needs timestamps
            self._bits = CodeColumn()  # as bit sets, the roles in which they can match, if there are several
            self._indexes: dict[Keys, Multimap] = {}
            self._ordered: dict[tuple[str, str], OrderedIndex] = {}
        self._role = self.roles.index(number)
        asked = (each for each in paths.lookups if each.relation == number)
        self.lookups = [(each.classes, self.eot(each.keys)) for each in asked]

    @property
    def rows(self) -> int:
        """Number of tuples built: the row number that the next one gets."""
        return self.store.rows

    @property
    def complete(self) -> bool:
        """Whether a scan has returned all there is (the EOT of the relation)."""
        return self.store.complete

    @complete.setter
    def complete(self, complete: bool) -> None:
        self.store.complete = complete

    @property
    def nbytes(self) -> int:
        """Memory of tuples, codes, timestamps, roles, indexes and EOT tuples in bytes."""
        size = self.store.nbytes + 8 * (self._stamps.size + self._bits.size)
        size += sum(index.nbytes for index in self._indexes.values())
        size += sum(ordered.nbytes for ordered in self._ordered.values())
        return size + sum(eots.nbytes for eots in self.eots.values())

    @property
    def least(self) -> int:
        """The part of :attr:`nbytes` that indexes take however few rows they have."""
        size = sum(index.least for index in self._indexes.values())
        return size + sum(eots.least for eots in self.eots.values())

    def figures(self) -> StateFigures:
        store = self.store
        return StateFigures(self.name, store.held, self.nbytes, inserted=store.rows, evicted=store.first)

    def admit(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, list[Array]]:
        """Return the rows that can match, in some role, and their key codes."""
        if len(self.roles) == 1:
            return keyed(batch, self.layout.keys, self.layout.same)
        coded = [codes(batch.column(key.name), key.type)[0] for key in self.layout.keys]
        some = self._roles_of(batch, coded) != 0
        if some.all():
            return batch, coded
        return batch.filter(to_arrow(some)), [c[some] for c in coded]

    def build(self, batch: TupleBatch, stamp: int | None) -> TupleBatch:
        """Insert singletons and bounce back those that were not duplicates (BuildFirst, SteM BounceBack).

        They come in a store of their own, and go on pointing into the SteM. ``stamp`` is the timestamp of the
        first, the rest count up from it by the number of roles; None when no tuple of the run needs one.
        """
        source = batch.stores[self.number]
        rows = batch.rows[self.number]
        chunk = source.chunk(rows)
        coded = [source.coded(k, rows) for k in range(len(self.layout.keys))]
        failures = batch.failures
        if self._compared is not None:
            if self._found_by == (len(coded),):
                own = [_coded(chunk.column(key.name), key) for key in self._compared]
                coded.append(combine_codes(own))
            else:
                own = [coded[k] for k in self._found_by]
            kept = self._fresh(chunk, own, coded)
            if len(kept) < chunk.num_rows:
                chunk, coded = chunk.take(to_arrow(kept)), [c[kept] for c in coded]
                failures = batch.take(kept).failures
        first = self.rows
        self.store.append(chunk, coded)
        for keys, index in self._indexes.items():
            index.insert(combine_codes([coded[k] for k in keys]))
        for (column, _), ordered in self._ordered.items():
            ordered.insert(chunk.column(column))
        numbers = np.arange(first, self.rows, dtype=np.int32)
        if len(self.roles) > 1:
            self._bits.append(self._roles_of(chunk, coded))
        if stamp is not None:
            self._stamps.append(stamp + np.arange(len(numbers)) * len(self.roles))
        return TupleBatch(
            batch.signature.having(built=True),
            {self.number: numbers},
            {self.number: self.store},
            None if stamp is None else self._stamped(numbers),
            path=batch.path,
            origin=len(numbers),
            failures=failures,
        )

    def in_role(self, built: TupleBatch) -> TupleBatch:
        """Return singletons just built as tuples of this relation, one of those that share them."""
        if len(self.roles) == 1:
            return built
        (rows,) = built.rows.values()
        mine = self._fits(rows)
        rows = rows if mine is None else rows[mine]
        return replace(
            built,
            signature=built.signature.having(span=1 << self.number),
            rows={self.number: rows},
            stores={self.number: self.store},
            stamps=None if built.stamps is None else self._stamped(rows),
            path=(self._spec.alias,),
            origin=len(rows),
        )

    def start(self, batch: TupleBatch) -> Probe:
        """Begin to probe with tuples that do not span this relation."""
        classes = self._graph.bound(batch.signature.span, self.number)
        high = None if batch.stamps is None else self._older(batch.stamps)
        low = max(batch.seen, self.store.first)
        walk: Cursor
        decided = 0
        if classes:
            codes = self.matching.codes((batch.stores, batch.rows), classes)
            walk = self.index(classes).probe(codes, low, high)
        elif searched := self._searched(batch.signature):
            walk = self._ordered_by(searched[0].column, searched[0].type).probe(searched, batch, low, high)
            decided = sum(1 << each.number for each in searched)
        else:
            walk = Product(batch.size, low, self.rows, high)
        undecided = classes if classes and not self.matching.decides(self.number, classes) else ()
        return Probe(batch, undecided, walk, self.rows, decided)

    def probe(self, probe: Probe, limit: int, live: LiveRows | None = None) -> TupleBatch:
        """Return the next concatenated matches, at most ``limit``; ``probe.walk`` knows the rest.

        They have the row numbers of those relations that are ``live``, by default of all; of this one, if of
        none.
        """
        batch, walk = probe.batch, probe.walk
        is_new = walk.is_new
        left, right = walk.pairs(limit)
        in_order = is_new and isinstance(walk, Walk) and len(left) == batch.size and walk.table.unique
        mine = self._fits(right)
        if mine is not None:
            left, right = left[mine], right[mine]
        own = {self.number: self.store}, {self.number: right}
        keep = self.matching.agree((batch.stores, batch.rows), own, probe.undecided, left, None)
        if keep is not None:
            left, right = left[keep], right[keep]
        old = batch.signature
        signature = old.having(span=old.span | 1 << self.number, prior=None, done=old.done | probe.decided)
        rows = dict(batch.rows)
        kept = None if live is None else live(signature.span, signature.done)
        if kept is not None:
            rows = {relation: numbers for relation, numbers in rows.items() if relation in kept}
        if in_order and len(left) == batch.size:
            # Exactly one match for each tuple: what the batch has stays as it is.
            stamps, failures = batch.stamps, batch.failures
        else:
            rows = {relation: numbers[left] for relation, numbers in rows.items()}
            stamps = None if batch.stamps is None else batch.stamps[left]
            failures = {i: f[left] for i, f in batch.failures.items()}
        if kept is None or self.number in kept or not rows:
            rows[self.number] = right
        return TupleBatch(
            signature,
            rows,
            {**batch.stores, self.number: self.store},
            stamps,
            path=(*batch.path, self._spec.alias),
            origin=batch.origin if is_new else 0,
            failures=failures,
        )

    def meets(self, batch: TupleBatch) -> Array:
        """Return positions, ascending, of the tuples that may have a match here: equal hashes are enough.

        The tuples do not span this relation, and are tied to it by an attribute class.
        """
        classes = self._graph.bound(batch.signature.span, self.number)
        walk = self.index(classes).probe(self.matching.codes((batch.stores, batch.rows), classes))
        return walk.probes[: walk.active]  # a chain is a match

    def is_key(self, signature: Signature) -> bool:
        """Whether no tuple of that signature finds more than one match here, by its attribute classes."""
        return self._distinct(self._graph.bound(signature.span, self.number)) == self.store.held

    def missing(self, batch: TupleBatch) -> Array:
        """Return positions of the tuples that some match may be missing for: no EOT here covers them."""
        if self.complete:
            return np.empty(0, np.int64)
        here = np.zeros(batch.size, np.bool_)
        for classes, eots in self.lookups:
            if eots.size and self._is_bound(batch, classes):
                here |= eots.contains(*bound(self.matching, batch, classes))
        return np.flatnonzero(~here)

    def bound_codes(self, batch: TupleBatch, classes: Classes) -> Array | None:
        """Return a code for what each tuple binds of these classes; None where they do not bind all."""
        if not self._is_bound(batch, classes):
            return None
        return self.matching.codes((batch.stores, batch.rows), classes)

    def eot(self, keys: tuple[KeyColumn, ...]) -> BindingSet:
        """Return the bindings of these columns for which every match is here."""
        name = tuple((key.name, str(key.type)) for key in keys)
        if name not in self.eots:
            self.eots[name] = BindingSet(keys)
        return self.eots[name]

    def index(self, classes: Classes) -> Multimap:
        """Return the index on these attribute classes together."""
        return self._index(self._keys(classes))

    def evict(self, below: int) -> None:
        """Drop the tuples with row numbers below this one, whose window has passed.

        No probe matches them any more; their memory is freed, amortised. Row numbers keep counting.
        """
        base = self.store.base
        self.store.forget(below)
        freed = self.store.base - base
        if not freed:
            return
        self._stamps.drop(freed)
        self._bits.drop(freed)
        # The next probe that needs an index makes it, of what is still here.
        self._indexes.clear()
        for ordered in self._ordered.values():
            ordered.evict(self.store.first)

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
        index = self._indexes.get(self._keys(classes))
        if index is not None:
            return max(1, index.distinct)
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
        return combine_codes([self.store.codes(key)[sample] for key in self._keys(classes)])

    # Indexes

    def _keys(self, classes: Classes) -> Keys:
        return tuple(self.layout.of_class[c] for c in classes)

    def _index(self, keys: Keys) -> Multimap:
        """Return the index on these keys together."""
        index = self._indexes.get(keys)
        if index is None:
            index = self._indexes[keys] = Multimap(self.store.held, self.store.first)
            if self.store.held:
                index.insert(combine_codes([self.store.codes(k) for k in keys]))
        return index

    def _ordered_by(self, column: str, kind: pa.DataType) -> OrderedIndex:
        ordered = self._ordered.get((column, str(kind)))
        if ordered is None:
            first = self.store.first
            ordered = self._ordered[column, str(kind)] = OrderedIndex(kind, first)
            if self.rows > first:
                ordered.insert(self.store.gather(column, np.arange(first, self.rows)))
        return ordered

    def _is_bound(self, batch: TupleBatch, classes: Classes) -> bool:
        return set(classes) <= set(self._graph.bound(batch.signature.span, self.number))

    # Roles and timestamps

    def _stamped(self, rows: Array) -> Array:
        """Return the timestamps of rows in this role: a tuple comes later in a later role."""
        stamps: Array = self._stamps.all()[rows - self.store.base] + self._role
        return stamps

    def _older(self, stamps: Array) -> Array:
        """Return for each timestamp the number of the first row that is not older in this role, ``int32``."""
        return (np.searchsorted(self._stamps.all(), stamps - self._role) + self.store.base).astype(np.int32)

    def _fits(self, rows: Array) -> Array | None:
        """Return which rows can match in this role; None when there is but one."""
        if len(self.roles) == 1:
            return None
        bits: Array = self._bits.all()[rows - self.store.base] >> self._role & 1
        return bits.astype(np.bool_)

    def _roles_of(self, chunk: pa.RecordBatch, coded: list[Array]) -> Array:
        """Return for each row the bit set of roles whose keys are not null and agree within their classes."""
        found = np.zeros(chunk.num_rows, np.int64)
        for role, number in enumerate(self.roles):
            layout = self.matching.layouts[number]
            fits = are_tied(chunk, layout.keys, coded, layout.same)
            timed = () if layout.time is None else (layout.time,)
            for key in {*layout.of_class.values(), *(k for pair in layout.same for k in pair), *timed}:
                fits &= to_numpy(chunk.column(layout.keys[key].name).is_valid())
            found |= fits.astype(np.int64) << role
        return found

    # Set semantics

    def _joined_keys(self) -> tuple[KeyColumn, ...]:
        """Return the keys that have all columns of a set: its tuples are equal where the joins say so."""
        spec, keys = self._spec, self.layout.keys
        if {k.name for k in keys} != set(spec.schema.names):
            raise InputError(
                f"relation {spec.alias!r} has set semantics: every column of it must be joined on, "
                f"got {spec.schema.names} with {[k.name for k in keys]} joined"
            )
        return tuple(keys[k] for k in self.layout.of_class.values())

    def _fresh(self, chunk: pa.RecordBatch, own: list[Array], coded: list[Array]) -> Array:
        """Return positions of the chunk's rows that are neither held already nor repeated in it.

        Where a relation has several access modules, the same tuple may come from each of them; the SteM
        removes any build tuple identical to another (section 3.2). Nulls are identical to nulls, NaN to NaN,
        and -0.0 to 0.0. ``own`` are codes of what is compared, ``coded`` those of the store's keys.
        """
        keys = self._compared
        if not keys:  # tuples without a column are all equal
            return np.arange(min(1, chunk.num_rows) if not self.rows else 0)
        columns = [chunk.column(key.name) for key in keys]
        nulls = (to_numpy(column.is_null()) for column in columns if column.null_count)
        first = first_of_equal(keys, own, columns.__getitem__, *nulls)
        if not self.store.held or not len(first):
            return first

        is_joined = self._found_by[0] < len(self.layout.keys)  # then no value is null, and codes are kept
        decided = len(keys) == 1 and keys[0].exact and is_joined

        def identical(left: Array, right: Array) -> Array:
            keep = np.ones(len(left), np.bool_)
            if decided:
                return keep
            mine = first[left]
            if is_joined:
                return self.store.agree(keys, self._found_by, own, columns.__getitem__, mine, right)
            for key, column in zip(keys, columns, strict=True):
                theirs = self.store.gather(key.name, right)
                keep &= are_identical(key, column.take(to_arrow(mine)), theirs)
            return keep

        index = self._index(self._found_by)
        sought = combine_codes([coded[k][first] for k in self._found_by])
        found, _ = find_matches(index, sought, identical, self.store.first)
        known = np.zeros(len(first), np.bool_)
        known[found] = True
        return first[~known]


def singletons(stem: SteM, batch: pa.RecordBatch, alias: str, *, built: bool) -> TupleBatch:
    """Return the base tuples of a batch that can match at all; ``built`` if they will not be built."""
    batch, coded = stem.admit(batch)
    rows = np.arange(batch.num_rows, dtype=np.int32)
    return TupleBatch(
        singleton(stem.number, built=built),
        {stem.number: rows},
        {stem.number: RelationStore.single(batch, stem.layout.keys, coded)},
        path=(alias,),
        origin=len(rows),
    )


def _whole(spec: RelationSpec) -> tuple[KeyColumn, ...]:
    """Return every column, to compare whole tuples by."""
    for field in spec.schema:
        if not is_key_type(field.type):
            raise UnsupportedType(
                f"relation {spec.alias!r} has several access modules or is a set, so its tuples are compared "
                f"to find duplicates, but column {field.name!r} is of type {field.type}; expected a "
                "number, string, binary, boolean, date or timestamp; leave the column out"
            )
    return tuple(KeyColumn(field.name, field.type) for field in spec.schema)


def _coded(column: pa.Array, key: KeyColumn) -> Array:
    """Return codes in which nulls have one code too."""
    coded, valid = codes(column, key.type)
    return coded if valid is None else np.where(valid, coded, _NULL)
