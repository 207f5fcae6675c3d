"""Relations beside the join under a memory budget: kept while all fit, else joined at the end, by partition.

They are read before the first tuple comes. One that does not fit goes to files, in partitions by the hash of
one of its keys. The block then runs without what asks it, and tuples that would be results go to partitions
by the same key, with the columns that are still read. Each pair of partitions is finished by an eddy of its
own: a match has equal keys, so that what a tuple finds in its own partition is all there is (Grace hash
join). A tuple with a null key may go to any partition, for it has a match in none.

Several such relations are passed one after the other, left joins first, as later ones may read what those
add. Each pass is a run of the whole block in which only its own predicates and left joins are legal:

* A predicate or ON that reads columns of a left-joined relation waits for that pass, or for a later one.
* A user's predicate waits for the last pass that may reject a tuple, which is not to raise what another
  predicate spares it.
* A predicate that asks several relations is judged in the pass of the last one. The passes before it judge
  nothing: each marks the tuples by what their matches say, in a column that the next one carries on.
* What no key divides is met a part at a time by tuples that stay in memory, as many as fit; who has found
  nothing is known behind the last part.
* NOT IN has to know whether the relation has a row, and a null, anywhere: partitions are told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

import numpy as np
import pyarrow as pa

from millrace.engine.arrays import Array, to_arrow
from millrace.engine.operators.beside import BesideRelation, Marks
from millrace.engine.operators.exists import mark_of
from millrace.engine.plan.expressions import Call, ColumnRef, Exists, LeftJoin, columns_of, exists_in
from millrace.engine.plan.graph import QueryGraph, members
from millrace.engine.plan.spec import Equality, JoinSpec, OutputColumn, RelationSpec
from millrace.engine.spill.algorithms import Sources
from millrace.engine.spill.context import Budget, Chunk, ChunkStats, SpillContext, sized, total
from millrace.engine.spill.folder import SpillFolder, Tally
from millrace.engine.spill.partitions import DEEPEST, Partitioner, cut_up, fan_out, partition_count
from millrace.engine.tuples import RelationStore, keyed
from millrace.engine.tuples.batch import Signature, TupleBatch
from millrace.errors import InputError
from millrace.limits.clock import Clock
from millrace.options import Options

KEPT_SHARE = 1 / 2
"""Of the budget, for relations beside the join that stay in memory."""

Part = Callable[[], Iterator[pa.RecordBatch]]
"""Yields the tuples of a part of a relation, as often as it is called."""

_TUPLES, _OWN = 0, 1
"""Numbers of what is divided for a pass: tuples of the block, and the relation beside it."""


def asked_in(spec: JoinSpec) -> list[Exists | LeftJoin]:
    """Return what asks relations beside the join, in the order of passes.

    Raises:
        InputError: Some of it could not wait for a pass of its own.
    """
    asked: list[Exists | LeftJoin] = [*spec.outer]
    is_pinned = False
    for predicate in spec.residuals:
        own = [*exists_in(predicate)]
        if own and is_pinned:
            raise InputError(
                f"option memory_budget is set for a predicate that asks for matches in {own[0].relation!r} "
                "and comes behind one that is not deterministic, so that it cannot wait until the rest of "
                "the join is done; expected it before that one, or no memory_budget"
            )
        asked += own
        is_pinned |= isinstance(predicate, Call) and not predicate.spec.deterministic
    return asked


class Passes:
    """Which pass does what of a block: the join itself is pass 0, and relations ``late`` have one each."""

    def __init__(self, spec: JoinSpec, late: Sequence[str]) -> None:
        self._spec = spec
        self._nodes = (*spec.residuals, *spec.outer)
        self._numbers = {relation.alias: number for number, relation in enumerate(spec.sources)}
        before = QueryGraph.of(spec).residuals_before
        asked = [[p.relation for p in exists_in(each)] for each in spec.residuals]
        asked += [[join.relation] for join in spec.outer]
        self._marks: dict[int, tuple[str, int]] = {}
        for relations in asked:
            *earlier, last = [late.index(alias) + 1 for alias in relations if alias in late] or [0]
            self._marks |= {number: (late[number - 1], last) for number in earlier}

        def find_pass(number: int) -> int:
            own = (late.index(alias) + 1 for alias in asked[number] if alias in late)
            return max([*own, *map(find_pass, members(before[number]))], default=0)

        self._widening = sum(join.relation in late for join in spec.outer)  # left joins come first
        last = max(map(find_pass, range(len(spec.residuals))), default=0)
        self._of = [last if isinstance(node, Call) else find_pass(n) for n, node in enumerate(self._nodes)]

    def before(self, number: int) -> int:
        """Return the bit set of the predicates and left joins of earlier passes."""
        return sum(1 << n for n, own in enumerate(self._of) if own < number)

    def later(self, number: int, marks: Marks | None = None) -> int:
        """Return the bit set of those that wait for a later pass.

        Users' predicates wait for the last of several parts in which a tuple looks for a match only to stay.
        """
        found = sum(1 << n for n, own in enumerate(self._of) if own > number)
        if marks is None or marks.is_last or number <= self._widening:
            return found
        return found | sum(1 << n for n, node in enumerate(self._nodes) if isinstance(node, Call))

    def carry(self, number: int) -> JoinSpec:
        """Return the block, whose result is what a pass leaves for the next one to read."""
        spec = self._spec
        waiting = [node for node, own in zip(self._nodes, self._of, strict=True) if own > number]
        refs = [each.source for each in spec.output] + [ref for node in waiting for ref in columns_of(node)]
        absent = {node.relation for node in waiting if isinstance(node, LeftJoin)}
        left = (ref for ref in dict.fromkeys(refs) if ref.relation not in absent)
        columns = [OutputColumn(self._name(ref), ref) for ref in left]
        return replace(spec, output=tuple(columns), count_only=False)

    def is_marking(self, number: int) -> bool:
        """Whether a pass only marks the tuples, for that of another relation of the same predicate."""
        return number in self._marks

    def describe(self, number: int) -> pa.Schema:
        """Return the columns of what a pass leaves, marks among them."""
        schema = self.carry(number).output_schema
        for place, (alias, last) in self._marks.items():
            if place <= number < last:
                schema = schema.append(pa.field(self._name(mark_of(alias)), pa.bool_()))
        return schema

    def mark(self, batch: TupleBatch, number: int, truth: Array) -> pa.RecordBatch:
        """Return the tuples of a pass with its mark."""
        columns = {
            name_carried(relation, name): store.gather(name, batch.rows[relation])
            for relation, store in batch.stores.items()
            for name in store.schema.names
        }
        columns[self._name(mark_of(self._marks[number][0]))] = to_arrow(truth)
        schema = self.describe(number)
        return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)

    def restore(self, batch: pa.RecordBatch, number: int) -> TupleBatch:
        """Return the tuples that a pass gets, of what was carried."""
        places: dict[int, dict[str, int]] = {}
        for place, name in enumerate(batch.schema.names):
            relation, column = read_carried(name)
            places.setdefault(relation, {})[column] = place
        stores = {}
        for relation, own in places.items():
            part = pa.RecordBatch.from_arrays([batch.column(place) for place in own.values()], [*own])
            stores[relation] = RelationStore.single(part, (), [])
        rows = np.arange(batch.num_rows, dtype=np.int32)
        everything = (1 << len(self._spec.relations)) - 1
        return TupleBatch(Signature(everything, self.before(number)), dict.fromkeys(stores, rows), stores)

    def _name(self, ref: ColumnRef) -> str:
        return name_carried(self._numbers[ref.relation], ref.column)


def name_carried(relation: int, column: str) -> str:
    """Return the name of a column that is carried, of the number of its relation and its own name."""
    return f"{relation} {column}"


def read_carried(name: str) -> tuple[int, str]:
    """Return the number of a carried column's relation, and its own name there."""
    relation, _, column = name.partition(" ")
    return int(relation), column


class BesideSource:
    """A relation beside the join: how it is read, and its partitions if it does not fit."""

    def __init__(
        self,
        spec: JoinSpec,
        asks: Exists | LeftJoin,
        source: Iterator[pa.RecordBatch],
        options: Options,
        budget: Budget,
        clock: Clock,
    ) -> None:
        self.alias, self.asks = asks.relation, asks
        own, tuples = spec.relation(self.alias), f"tuples for {self.alias}"
        keys, kinds = list[Equality](), dict[str, pa.DataType]()
        numbers = {relation.alias: number for number, relation in enumerate(spec.sources)}
        for key in asks.keys:
            left, right = key.left.ref, key.right.ref  # type: ignore[union-attr]
            name = name_carried(numbers[left.relation], left.column)
            kinds[name] = spec.relation(left.relation).schema.field(left.column).type
            keys.append(Equality(ColumnRef(tuples, name), ColumnRef(self.alias, right.column), key.type))
        both = JoinSpec((RelationSpec(tuples, pa.schema([*kinds.items()])), own), tuple(keys))
        self.tally = Tally(both.aliases)
        folder = SpillFolder(options.spill_folder, self.tally)
        self._context = SpillContext(both, options, folder, _TUPLES, (_OWN, _TUPLES), False, budget)
        self._source = Sources(self._context, {_OWN: source}, {}, clock)
        self._parts: Partitioner | None = None
        self._count = self._rows = 0
        self._has_null = False

    def read(self, into: BesideRelation, room: float, stack: ExitStack) -> bool:
        """Read all of its tuples, into memory while they fit, else into files; return whether they fit."""
        context, layout = self._context, self._context.layouts[_OWN]
        chunks, held = list[Chunk](), ChunkStats()
        for batch in self._source.raw(_OWN):
            joinable, _ = keyed(batch, layout.keys, layout.same)
            self._rows += batch.num_rows
            self._has_null |= joinable.num_rows < batch.num_rows
            if self._parts is not None:
                for piece in sized(joinable, context.budget.buffer):
                    self._parts.add(_OWN, piece)
                continue
            chunks.append(context.chunk(_OWN, joinable))
            held += chunks[-1].stats
            context.budget.wait(chunks[-1].stats.bytes)
            if context.state({_OWN: held}, None) > room:
                stack.enter_context(context.folder)
                self._count = partition_count(context, {_OWN: held})
                self._parts = Partitioner(context, 0, self._count).fill({_OWN: context.drained(chunks)})
        if self._parts is not None:
            self._parts.finish()
            return False
        for batch in context.drained(chunks):
            into.take(batch)
        self.tell(into)
        return True

    def tell(self, part: BesideRelation, marks: Marks | None = None) -> None:
        """Tell a part of the relation what NOT IN has to know of the whole, and what others found."""
        part.rows, part.has_null, part.marks = self._rows, self._has_null, marks

    def pair_up(
        self, carried: pa.Schema, results: Iterator[pa.RecordBatch]
    ) -> Iterator[tuple[Iterator[pa.RecordBatch], list[Part]]]:
        """Yield the tuples of the block, and the relation's, of one partition after the other.

        The relation's fit the budget; those that no key divides come in parts that take half of that.
        """
        before, self._parts = self._parts, None  # files go when no partition needs them
        assert before is not None
        tuples, relation = self._context.spec.relations
        spec = replace(self._context.spec, relations=(replace(tuples, schema=carried), relation))
        self._context = context = replace(self._context, spec=spec)
        parts = Partitioner(context, 0, self._count).fill({_TUPLES: results})
        both = zip(parts.everything(), before.everything(), strict=True)
        stack = [(those[_TUPLES], these[_OWN], 1) for those, these in both]
        del parts, before, both
        while stack:
            found, own, level = stack.pop()
            if not found:
                continue
            size, room = total(own), context.budget.state
            taken = context.state({_OWN: size}, None)
            if taken <= room:
                yield context.batches(_TUPLES, found), [partial(context.batches, _OWN, own)]
                continue
            keys = context.layouts[_OWN].of_class.items()
            dividing = [attribute for attribute, key in keys if size.lows[key] < size.highs[key]]
            if not dividing or level == DEEPEST:
                self.tally.splits_by_rows += 1
                groups = cut_up(own, size.rows * room // (2 * taken))
                yield context.batches(_TUPLES, found), [partial(context.batches, _OWN, g) for g in groups]
                continue
            self.tally.splits_by_key += 1
            parts = Partitioner(context, dividing[level % len(dividing)], fan_out(context, taken), level)
            parts.fill({_OWN: context.batches(_OWN, own), _TUPLES: context.batches(_TUPLES, found)})
            stack += [(each[_TUPLES], each[_OWN], level + 1) for each in parts.everything()]
            del parts


def in_memory(tuples: Iterable[TupleBatch], budget: Budget) -> Iterator[list[TupleBatch]]:
    """Yield tuples that are met by several parts of a relation, as many at a time as there is room for."""
    held, size = list[TupleBatch](), 0
    for batch in tuples:
        own = sum(store.nbytes for store in batch.stores.values())
        budget.wait(own)
        held.append(batch)
        size += own
        if size >= budget.state // 4:
            yield held
            budget.wait(-size)
            held, size = [], 0
    if held:
        yield held
        budget.wait(-size)
