"""Selections by whether a relation beside the join has a match: semijoins and antijoins.

The relation is built before the first tuple comes, so that "no match" is certain when it is said. A tuple is
asked about, never multiplied: this is a predicate of what the tuple has already, legal wherever its columns
are, and its place among joins and other predicates is the policy's to choose.

Nulls are SQL's: a null key matches nothing, a condition that is not known is no match. ``NOT IN`` is another
matter (``Exists.null_aware``): with a null among the keys nothing is certainly not in, and a null is
certainly not in an empty relation only.

Several may stand in one predicate, with others: ``EXISTS (…) OR a.x = 1``. Each then marks the tuples, and
the predicate is evaluated over the marks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace.engine.arrays import Array, is_true, to_arrow
from millrace.engine.evaluation import evaluate, widen
from millrace.engine.expressions import (
    And,
    Column,
    ColumnRef,
    Exists,
    Or,
    Predicate,
    Truth,
    beside,
    columns_of,
    exists_in,
    show,
)
from millrace.engine.figures import StateFigures
from millrace.engine.kernels import Multimap
from millrace.engine.operators.selection import Verdict, columns_by_relation
from millrace.engine.relations import BATCH_BYTES, KeyColumn, RelationStore, codes, keyed, slices
from millrace.engine.state.matching import combined
from millrace.engine.tuples import TupleBatch
from millrace.limits.clock import Clock

_PAIRS = 16_384
"""Pairs that are looked at together, at least."""


class Matches:
    """A relation beside the join, and which tuples have a match in it.

    Args:
        predicate: What a match is, and whether there must be one or none.
        schema: The columns of the relation beside the join.
        aliases: The block's relations, by number.

    Attributes:
        rows: Tuples of it that have come.
    """

    def __init__(self, predicate: Exists, schema: pa.Schema, aliases: Sequence[str]) -> None:
        self.name = f"{'Anti' if predicate.negated else 'Semi'}({predicate.relation})"
        self.label = f"{'¬' if predicate.negated else ''}∃{predicate.relation}"
        self.rows = 0
        self._predicate = predicate
        self._number = {alias: i for i, alias in enumerate(aliases)}
        columns = [(key.left.ref, key.right.ref.column) for key in predicate.keys]  # type: ignore[union-attr]
        kinds = [key.type for key in predicate.keys]
        self._outer = [ref for ref, _ in columns]
        keys = [KeyColumn(name, kind) for (_, name), kind in zip(columns, kinds, strict=True)]
        # What equal codes decide needs no look at the tuples, so they are not kept.
        self._decided = len(keys) == 1 and keys[0].exact
        read = {key.name for key in keys if not key.exact}
        if predicate.condition is not None:
            read |= {r.column for r in columns_of(predicate.condition) if r.relation == predicate.relation}
        self._reads = columns_by_relation(columns_of(predicate), aliases)
        self._kept = [name for name in beside(predicate) if name in read]
        kept = pa.schema([schema.field(name) for name in self._kept])
        self._store = RelationStore(kept, () if self._decided else keys)
        self._keys = keys
        self._index = Multimap()
        self._has_null = False

    def take(self, batch: pa.RecordBatch) -> None:
        """Take tuples of the relation; all of them come before the first tuple of the join."""
        self.rows += batch.num_rows
        chunk, coded = keyed(batch, self._keys)
        self._has_null |= chunk.num_rows < batch.num_rows
        if not chunk.num_rows:
            return
        self._index.insert(combined(coded))
        if self._kept or not self._decided:
            self._store.append(chunk.select(self._kept), [] if self._decided else coded)

    def truth(self, batch: TupleBatch) -> Array:
        """Return for every tuple whether the predicate is true."""
        columns = [_gathered(batch, ref, self._number) for ref in self._outer]
        coded = [codes(column, key.type) for column, key in zip(columns, self._keys, strict=True)]
        valid = np.ones(batch.size, np.bool_)
        for _, known in coded:
            if known is not None:
                valid &= known
        found = self._found(batch, columns, [c for c, _ in coded], np.flatnonzero(valid))
        if not self._predicate.negated:
            return found
        if not self._predicate.null_aware or not self.rows:
            return ~found
        return valid & ~found & (not self._has_null)

    def _found(
        self, batch: TupleBatch, columns: Sequence[pa.Array], coded: Sequence[Array], asking: Array
    ) -> Array:
        """Return which tuples have a match; ``asking`` are the positions of those without a null key."""
        found = np.zeros(batch.size, np.bool_)
        walk = self._index.probe(combined([c if len(asking) == len(c) else c[asking] for c in coded]))
        condition = self._predicate.condition
        if self._decided and condition is None:
            found[asking[walk.probes[: walk.active]]] = True  # a chain is a match
            return found
        while not walk.is_done:
            left, right = self._index.matches(walk, max(walk.active, _PAIRS))
            left = asking[left]
            for part in slices(self._widths(batch, left, right), len(left), BATCH_BYTES):
                found[self._match(batch, columns, coded, left[part], right[part])] = True
            walk.narrow(~found[asking[walk.probes[: walk.active]]])
        return found

    def _widths(self, batch: TupleBatch, left: Array, right: Array) -> Iterator[Array | None]:
        yield self._store.widths(self._kept, right, BATCH_BYTES)
        for relation, names in self._reads.items():
            yield batch.stores[relation].widths(names, batch.rows[relation][left], BATCH_BYTES)

    def _match(
        self,
        batch: TupleBatch,
        columns: Sequence[pa.Array],
        coded: Sequence[Array],
        left: Array,
        right: Array,
    ) -> Array:
        """Return the positions of tuples in the pairs that match."""
        if not self._decided:
            same = self._same(columns, coded, left, right)
            left, right = left[same], right[same]
        if self._predicate.condition is not None and len(left):
            left = left[self._satisfied(batch, left, right)]
        return left

    def _same(self, columns: Sequence[pa.Array], coded: Sequence[Array], left: Array, right: Array) -> Array:
        """Return which pairs agree on every key."""
        same = np.ones(len(left), np.bool_)
        for number, (key, column, own) in enumerate(zip(self._keys, columns, coded, strict=True)):
            same &= own[left] == self._store.coded(number, right)
            if not key.exact:
                mine = widen(column.take(to_arrow(left)), key.type)
                equal = pc.equal(mine, widen(self._store.gather(key.name, right), key.type))
                same &= is_true(equal)
        return same

    def _satisfied(self, batch: TupleBatch, left: Array, right: Array) -> Array:
        """Return for which pairs the condition is true."""
        assert self._predicate.condition is not None
        values = {}
        for ref in set(columns_of(self._predicate.condition)):
            if ref.relation == self._predicate.relation:
                values[ref] = self._store.gather(ref.column, right)
            else:
                values[ref] = _gathered(batch, ref, self._number, left)
        truth = evaluate(self._predicate.condition, values)
        return is_true(truth)

    def figures(self) -> StateFigures:
        """Return what is held."""
        size = self._store.nbytes + self._index.nbytes
        return StateFigures(self.name, self._index.rows, size, inserted=self.rows)


class ExistsSelection:
    """A selection by whether relations beside the join have matches.

    Args:
        number: Place among the block's residual predicates.
        predicate: What is asked of them; one Exists, or ANDs and ORs of some and of other predicates.
        schemas: The columns of the relations beside the join, by alias.
        aliases: The block's relations, by number.
        clock: What its time is measured by.

    Attributes:
        matches: The relations beside the join that it asks, by alias.
    """

    evaluated = 0

    def __init__(
        self,
        number: int,
        predicate: Predicate,
        schemas: Mapping[str, pa.Schema],
        aliases: Sequence[str],
        clock: Clock,
    ) -> None:
        self.number = number
        self.worked = 0.0
        asked = exists_in(predicate)
        self.matches = {each.relation: Matches(each, schemas[each.relation], aliases) for each in asked}
        one = self.matches[predicate.relation] if isinstance(predicate, Exists) else None
        self.name = f"Selection({show(predicate)})" if one is None else one.name
        self.label = f"σ{number + 1}" if one is None else one.label
        self._clock = clock
        self._predicate = _marked(predicate)
        self._number = {alias: i for i, alias in enumerate(aliases)}
        self._columns = set(columns_of(predicate))
        self._reads = columns_by_relation(columns_of(predicate), aliases)

    def judge(self, batch: TupleBatch) -> Verdict:
        """Return the truth for every tuple."""
        began = self._clock.now()
        truths = [self._judge(piece) for piece in batch.pieces(self._reads, BATCH_BYTES)]
        self.worked += self._clock.now() - began
        return (truths[0] if len(truths) == 1 else np.concatenate(truths)).astype(np.int8), None

    def _judge(self, batch: TupleBatch) -> Array:
        truths = {_mark(alias): each.truth(batch) for alias, each in self.matches.items()}
        if isinstance(self._predicate, Truth):
            return truths[self._predicate.operand.ref]
        values = {ref: _gathered(batch, ref, self._number) for ref in self._columns}
        truth = evaluate(self._predicate, values | {ref: to_arrow(each) for ref, each in truths.items()})
        return is_true(truth)

    def remember(self, built: TupleBatch) -> None:
        """Nothing: asking again costs little."""

    def close(self) -> None:
        """Nothing to let go of."""


def _mark(alias: str) -> ColumnRef:
    """Return the column that marks each tuple by what its matches in a relation say."""
    return ColumnRef(alias, "")


def _marked(node: Predicate) -> Predicate:
    """Return a predicate over the marks that its Exists make."""
    match node:
        case Exists(relation):
            return Truth(Column(_mark(relation)))
        case And(arguments) | Or(arguments):
            return type(node)(tuple(map(_marked, arguments)))
    return node


def _gathered(
    batch: TupleBatch, ref: ColumnRef, number: Mapping[str, int], positions: Array | None = None
) -> pa.Array:
    """Return a column of the join for every tuple, or for those at some positions."""
    relation = number[ref.relation]
    rows = batch.rows[relation]
    return batch.stores[relation].gather(ref.column, rows if positions is None else rows[positions])
