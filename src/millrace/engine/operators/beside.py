"""Relations beside the join: what tuples find in them is all there is, so that "no match" is certain.

They are built before the first tuple comes; or an index is asked for the keys of tuples, which then wait for
its answers. Tuples of the join look for matches by keys, and by what else has to be true of a match. Nulls
are SQL's: a null key matches nothing, and a condition that is not known is no match.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np
import pyarrow as pa

from millrace.engine.access.modules import IndexAM, Waking, check_schema, expect_bytes, keep_asked
from millrace.engine.arrays import Array, is_true, to_arrow
from millrace.engine.figures import StateFigures
from millrace.engine.kernels import Multimap, Walk
from millrace.engine.operators.selection import columns_by_relation, gather
from millrace.engine.plan.evaluation import evaluate
from millrace.engine.plan.expressions import (
    And,
    Exists,
    LeftJoin,
    Predicate,
    and_all,
    beside,
    columns_of,
    relations_of,
)
from millrace.engine.stems.bindings import BindingSet, as_compared
from millrace.engine.stems.conditions import combine_codes
from millrace.engine.tuples import BATCH_BYTES, KeyColumn, RelationStore, codes, keyed, slices
from millrace.engine.tuples.batch import TupleBatch
from millrace.engine.tuples.keys import Values
from millrace.errors import ExecutionError, InputError
from millrace.limits.clock import Clock


@dataclass(eq=False)
class Search:
    """Tuples that look for their matches.

    Attributes:
        columns: What the tuples are looked up by, an array a key,
        coded: and its codes.
        asking: Positions of the tuples without a null key.
        matched: Of which tuples a match is known.
        walk: How far they have got, from when they have begun.
        missing: Number of one that still waits for an answer, of those without a null key; -1 for none known.
    """

    batch: TupleBatch
    columns: Sequence[pa.Array]
    coded: Sequence[Array]
    asking: Array
    walk: Walk = field(init=False)
    has_begun: bool = False
    missing: int = -1

    def __post_init__(self) -> None:
        self.matched = np.zeros(self.batch.size, np.bool_)

    def known(self, key: int) -> Array:
        """Return the codes of a key for the tuples without a null key."""
        codes = self.coded[key]
        return codes if len(self.asking) == len(codes) else codes[self.asking]


@dataclass(eq=False)
class Marks:
    """Which tuples have matches in the parts of a relation that they look into one after the other.

    Attributes:
        relation: Number of one whose rows tell the tuples apart.
        is_last: Whether the present part is the last one.
    """

    relation: int
    is_last: bool = False
    _found: dict[RelationStore, Array] = field(default_factory=dict)

    def add(self, batch: TupleBatch, matched: Array) -> Array:
        """Note which tuples have a match in the present part, and return which have one in any so far."""
        store, rows = batch.stores[self.relation], batch.rows[self.relation]
        found = self._found.setdefault(store, np.zeros(store.rows, np.bool_))
        found[rows] |= matched
        return found[rows]


class BesideRelation:
    """A relation beside the join, or a part of one.

    Args:
        asks: What a match is.
        read: For a left join, the columns that are read of matches; None for what only asks for them.

    Attributes:
        rows: Tuples of it that have come.
        has_null: Whether some of them has a null key.
        decided: Whether equal codes are a match.
        index: The tuples without a null key by their keys' codes.
        marks: What was found in parts of the relation; None where it is one.
        store: What is read of these tuples; nothing where equal codes decide and nothing is read. For a left
            join its first row, number 0, is the one of nulls that tuples without a match get.
    """

    def __init__(
        self,
        asks: Exists | LeftJoin,
        schema: pa.Schema,
        aliases: Sequence[str],
        name: str,
        read: Collection[str] | None = None,
    ) -> None:
        self.name = name
        self.rows = 0
        self.has_null = False
        self.marks: Marks | None = None
        self.index = Multimap()
        self._asks = asks
        self._condition = asks.condition
        self._number = {alias: i for i, alias in enumerate(aliases)}
        columns = [(key.left.ref, key.right.ref.column) for key in asks.keys]  # type: ignore[union-attr]
        kinds = [key.type for key in asks.keys]
        self._outer = [ref for ref, _ in columns]
        self._keys = [KeyColumn(name, kind) for (_, name), kind in zip(columns, kinds, strict=True)]
        # What equal codes decide needs no look at the tuples, so they are not kept.
        same = len(self._keys) == 1 and self._keys[0].exact
        self.decided = same and asks.condition is None
        kept = {key.name for key in self._keys if not key.exact} | set(read or ())
        if asks.condition is not None:
            kept |= {r.column for r in columns_of(asks.condition) if r.relation == asks.relation}
        self._reads = columns_by_relation(columns_of(asks), aliases)
        self._compared = [name for name in beside(asks) if name in kept]
        self._kept = [name for name in schema.names if name in kept]
        self._coded = () if same else tuple(self._keys)
        self.store = RelationStore(pa.schema([schema.field(name) for name in self._kept]), self._coded)
        self._first = 0 if read is None else 1
        if self._first and (self._kept or self._coded):
            self.store.append(null_row(self.store.schema), [np.zeros(1, np.int64)] * len(self._coded))

    def take(self, batch: pa.RecordBatch) -> None:
        """Take tuples of the relation; all of them come before the first tuple of the join."""
        self.rows += batch.num_rows
        chunk, coded = keyed(batch, self._keys)
        self.has_null |= chunk.num_rows < batch.num_rows
        if not chunk.num_rows:
            return
        self.index.insert(combine_codes(coded))
        if self._kept or self._coded:
            self.store.append(chunk.select(self._kept), coded if self._coded else [])

    def search(self, batch: TupleBatch) -> Search:
        search = self.prepare(batch)
        self.begin(search)
        return search

    def prepare(self, batch: TupleBatch) -> Search:
        """Return what tuples are to be looked up by."""
        columns = [gather(batch, ref, self._number) for ref in self._outer]
        coded = [codes(column, key.type) for column, key in zip(columns, self._keys, strict=True)]
        valid = np.ones(batch.size, np.bool_)
        for _, known in coded:
            if known is not None:
                valid &= known
        return Search(batch, columns, [c for c, _ in coded], np.flatnonzero(valid))

    def begin(self, search: Search) -> None:
        """Begin to look for matches, all of which are here."""
        search.walk = self.index.probe(combine_codes(list(map(search.known, range(len(self._keys))))))
        search.has_begun = True

    def matches(self, search: Search, limit: int) -> Iterator[tuple[Array, Array]]:
        """Yield the next matches, of about ``limit`` pairs: positions of tuples, and rows of the relation."""
        left, right = search.walk.pairs(limit)
        left, right = search.asking[left], right + np.int32(self._first)
        if self.decided:
            yield left, right
            return
        for part in slices(self._widths(search.batch, left, right), len(left), BATCH_BYTES):
            yield self._matching(search, left[part], right[part])

    def _widths(self, batch: TupleBatch, left: Array, right: Array) -> Iterator[Array | None]:
        yield self.store.widths(self._compared, right, BATCH_BYTES)
        for relation, names in self._reads.items():
            yield batch.stores[relation].widths(names, batch.rows[relation][left], BATCH_BYTES)

    def _matching(self, search: Search, left: Array, right: Array) -> tuple[Array, Array]:
        """Return the pairs that match, of those whose keys' codes are alike."""
        if self._coded:
            places = range(len(self._keys))
            same = self.store.agree(self._keys, places, search.coded, search.columns.__getitem__, left, right)
            left, right = left[same], right[same]
        if self._condition is not None and len(left):
            true = self._satisfied(search.batch, left, right)
            left, right = left[true], right[true]
        return left, right

    def _satisfied(self, batch: TupleBatch, left: Array, right: Array) -> Array:
        """Return for which pairs the condition is true."""
        assert self._condition is not None
        values = {}
        for ref in set(columns_of(self._condition)):
            if ref.relation == self._asks.relation:
                values[ref] = self.store.gather(ref.column, right)
            else:
                values[ref] = gather(batch, ref, self._number, left)
        return is_true(evaluate(self._condition, values))

    @property
    def nbytes(self) -> int:
        """Memory of what is kept of it, in bytes."""
        return self.store.nbytes + self.index.nbytes

    @property
    def least(self) -> int:
        """The part of :attr:`nbytes` that indexes take however few tuples there are."""
        return self.index.least

    def figures(self) -> StateFigures:
        return StateFigures(self.name, self.index.rows, self.nbytes, inserted=self.rows)


class AskedRelation(BesideRelation):
    """A relation beside the join whose tuples an index returns as they are needed, for a left join.

    Each binding is asked for once. Its end (EOT; Raman, Deshpande & Hellerstein 2003, section 2.1.3) makes it
    certain that there is no other match.

    Args:
        woken: What the index sets when something has come.

    Raises:
        InputError: The index has other bind columns.
    """

    def __init__(
        self,
        join: LeftJoin,
        schema: pa.Schema,
        aliases: Sequence[str],
        name: str,
        read: Collection[str],
        index: IndexAM,
        clock: Clock,
        woken: threading.Event,
    ) -> None:
        super().__init__(join, schema, aliases, name, read)
        if tuple(index.columns) != join.bind:
            raise InputError(
                f"the left join with {join.relation!r} binds {list(join.bind)}, but index {index.name!r} "
                f"binds {list(index.columns)}; expected the same columns"
            )
        names = [key.name for key in self._keys]
        self._bound = [names.index(column) for column in join.bind]
        self._schema = schema
        self._module = index
        self._clock = clock
        self._woken = woken
        self._answered, self._came = 1, expect_bytes(schema)  # bindings, and bytes of their rows
        keys = [self._keys[place] for place in self._bound]
        self._asked, self._ended = BindingSet(keys), BindingSet(keys)
        condition, terms = join.condition, tuple[Predicate, ...]()
        if condition is not None:
            terms = condition.arguments if isinstance(condition, And) else (condition,)
        self._needed = and_all(tuple(term for term in terms if join.relation not in relations_of(term)))
        if isinstance(index, Waking):
            index.wake_by(woken)

    @property
    def nbytes(self) -> int:
        """Memory of what is kept of it, and of the bindings that were asked for, in bytes."""
        return super().nbytes + self._asked.nbytes + self._ended.nbytes

    @property
    def least(self) -> int:
        return super().least + self._asked.least + self._ended.least

    def prepare(self, batch: TupleBatch) -> Search:
        """Return what tuples are to be looked up by; those that can have no match look for none."""
        search = super().prepare(batch)
        if self._needed is not None:
            values = {ref: gather(batch, ref, self._number) for ref in columns_of(self._needed)}
            search.asking = search.asking[is_true(evaluate(self._needed, values))[search.asking]]
        return search

    def ask(self, search: Search) -> None:
        """Submit the bindings of tuples that the index was not asked for yet."""
        fresh = self._asked.add(*self._bindings(search))
        if fresh.num_rows:
            self._module.submit(fresh)

    def take_answers(self) -> bool:
        """Take what the index has returned; tell whether it was anything."""
        answers = self._module.poll()
        for answer in answers:
            rows = check_schema(self._module.name, self._schema, answer.rows)
            self._answered += answer.bindings.num_rows
            self._came += int(rows.nbytes)
            self.take(keep_asked(rows, answer.bindings, self._asked.keys))
            self._ended.add_rows(answer.bindings)
        return bool(answers)

    @property
    def answer_bytes(self) -> float:
        """Bytes that the answer to one binding has, on average."""
        return self._came / self._answered

    def is_answered(self, search: Search) -> bool:
        """Tell whether all bindings of tuples have ended."""
        if not self._module.pending:
            return True
        coded, values = self._bindings(search)
        if search.missing >= 0:
            one = slice(search.missing, search.missing + 1)
            if not self._ended.contains([c[one] for c in coded], lambda place: values(place)[one]).all():
                return False
        missing = np.flatnonzero(~self._ended.contains(coded, values))
        # Answers come in the order of questions, more or less: behind the last one there are few.
        search.missing = int(missing[-1]) if len(missing) else -1
        return not len(missing)

    @property
    def is_full(self) -> bool:
        """Whether the index should not be asked for more before it has answered some."""
        return self._module.is_full

    def wait(self, search: Search) -> None:
        """Wait until all bindings of tuples have ended.

        Raises:
            ExecutionError: Nothing will come any more.
        """
        while not self.is_answered(search):
            if self.take_answers():
                continue
            due = self._module.due()
            if due == math.inf:
                raise ExecutionError(
                    f"nothing will come any more, although index {self._module.name!r} has not answered "
                    "everything; give its relation another source"
                )
            self._clock.wait(None if due is None else due - self._clock.now(), self._woken)

    def _bindings(self, search: Search) -> tuple[list[Array], Values]:
        """Return the bindings of the tuples that look for matches."""

        @cache
        def values(place: int) -> pa.Array:
            column = search.columns[self._bound[place]].take(to_arrow(search.asking))
            return as_compared(column, self._asked.keys[place].type)

        return list(map(search.known, self._bound)), values

    def close(self) -> None:
        """Let go of the index; what is pending is not wanted any more."""
        self._module.close()


def null_row(schema: pa.Schema) -> pa.RecordBatch:
    """Return one row of nulls; without columns too."""
    columns = [pa.nulls(1), *(pa.nulls(1, field.type) for field in schema)]
    rows = pa.record_batch(columns, ["", *schema.names]).select(schema.names)
    fields = [field.with_nullable(True) for field in schema]
    return rows.cast(pa.schema(fields)) if fields else rows
