"""Many queries over one join: for each tuple, a bit a query that may still want it.

A base tuple's lineage is what grouped filters say of it. A result's is the intersection of its components'
(CACQ's completion bits).

As in CACQ (Madden, Shah, Hellerstein & Raman 2002, section 3.1) the conditions of all queries on a column are
one index, a grouped filter. Their constants cut the column's values into points and the open intervals
between them, and for each of these it is written down, a bit a query, who lets it pass: a tuple costs one
search a column, however many queries there are. What is no comparison of a column with constants is evaluated
as it stands, once for all queries that have it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from itertools import combinations
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as t

from millrace.engine.plan.evaluation import evaluate, widen
from millrace.engine.plan.expressions import (
    And,
    Column,
    ColumnRef,
    Compare,
    Function,
    InList,
    Literal,
    Or,
    Predicate,
    relations_of,
    terms,
)
from millrace.engine.plan.spec import JoinSpec, OutputColumn

Array = np.ndarray[Any, np.dtype[Any]]
Test = tuple[str, tuple[Any, ...]]
"""An operator and its constants."""

_WORD = pa.uint64()
BITS = 64
"""The queries that a word of a lineage has room for."""

STEM = "__lineage_"
"""What the columns are called that carry a lineage, behind it the number of the word."""


def columns(words: int) -> list[str]:
    """Return the columns of a lineage."""
    return [f"{STEM}{word}" for word in range(words)]


def attach(rows: pa.RecordBatch, lineage: Array) -> pa.RecordBatch:
    """Return the tuples that some query wants, with their lineages behind their columns."""
    wanted = reduce(np.bitwise_or, lineage.T) != 0
    if not wanted.all():
        rows, lineage = rows.filter(pa.array(wanted)), lineage[wanted]
    arrays = [pa.array(np.ascontiguousarray(word)) for word in lineage.T]
    return pa.RecordBatch.from_arrays(
        [*rows.columns, *arrays], names=[*rows.schema.names, *columns(lineage.shape[1])]
    )


def rows_by_slot(rows: pa.RecordBatch, aliases: Sequence[str], wanted: Array) -> Iterator[tuple[int, Array]]:
    """Yield each wanted slot that is set in a result's lineage, with the rows that it is set in, in order.

    Args:
        rows: Results of the shared join. A lineage has the bits that all of its components have.
        aliases: The components.
        wanted: A lineage with the bits that are looked for.
    """
    for number, name in enumerate(columns(len(wanted))):
        words = [rows.column(name_of(ColumnRef(alias, name))).to_numpy() for alias in aliases]
        word = reduce(np.bitwise_and, words, wanted[number])
        if not word.any():
            continue
        bits = np.unpackbits(word.astype("<u8").view(np.uint8).reshape(-1, 8), axis=1, bitorder="little")
        slots, places = np.nonzero(bits.T)
        first = np.flatnonzero(np.diff(slots, prepend=-1))
        for start, end in zip(first, [*first[1:], len(slots)], strict=True):
            yield number * BITS + int(slots[start]), places[start:end]


def with_lineages(join: JoinSpec, words: int, reads: Collection[ColumnRef]) -> JoinSpec:
    """Return the join that an eddy runs for all queries: of tuples with lineages.

    Tuples of two relations without a query in common do not meet: what no query wants any more leaves the
    eddy as soon as that shows.

    Args:
        join: As the queries have it.
        words: Of a lineage.
        reads: The columns of results that some query reads.
    """
    fields = [pa.field(name, _WORD) for name in columns(words)]
    relations = tuple(replace(r, schema=pa.schema([*r.schema, *fields])) for r in join.relations)
    lineages = {a: tuple(Column(ColumnRef(a, f.name)) for f in fields) for a in join.aliases}
    residuals = list(join.residuals)
    spans = [relations_of(residual) for residual in residuals]
    for a, b in combinations(lineages, 2):
        shared_bits = (Function("&", _WORD, both) for both in zip(lineages[a], lineages[b], strict=True))
        overlap = Or(tuple(Compare("<>", bits, Literal(0, _WORD), _WORD) for bits in shared_bits))
        pair = frozenset((a, b))
        if pair in spans:
            # With the others over the same relations: each question by itself takes its time.
            residuals[spans.index(pair)] = And((*terms([residuals[spans.index(pair)]]), overlap))
        else:
            residuals.append(overlap)
    refs = sorted(reads, key=lambda ref: (ref.relation, ref.column))
    output = (*refs, *(each.ref for own in lineages.values() for each in own))
    named = tuple(OutputColumn(name_of(ref), ref) for ref in output)
    return JoinSpec(relations, join.equalities, tuple(residuals), named)


def name_of(ref: ColumnRef) -> str:
    """Return what a column is called in results of the shared join."""
    return f"{ref.relation}\0{ref.column}"


class GroupedFilter:
    """The conditions of many queries over one relation.

    Args:
        wanted: The conditions of each query, by the place of its bit; a query without any lets all pass.
        words: Of a lineage.
    """

    def __init__(self, alias: str, wanted: Mapping[int, Sequence[Predicate]], words: int) -> None:
        self._alias = alias
        self._all = word_bits(wanted, words)
        tests: dict[tuple[str, pa.DataType], dict[int, list[Test]]] = {}
        others: dict[Predicate, list[int]] = {}
        for slot, predicates in wanted.items():
            for term in terms(predicates):
                found = _as_test(term)
                if found is None:
                    others.setdefault(term, []).append(slot)
                else:
                    column, kind, test = found
                    tests.setdefault((column, kind), {}).setdefault(slot, []).append(test)
        self._indexes = [_Index(column, kind, each, words) for (column, kind), each in tests.items()]
        self._others = [(predicate, ~word_bits(slots, words)) for predicate, slots in others.items()]

    def evaluate(self, rows: pa.RecordBatch) -> Array:
        """Return for each tuple the bits of the queries whose conditions it passes: ``uint64``, by words."""
        found = np.empty((rows.num_rows, len(self._all)), np.uint64)
        found[:] = self._all
        for index in self._indexes:
            places = index.locate(rows.column(index.column))
            for word, bits in zip(found.T, index.bits, strict=True):
                word &= bits[places]
        if self._others:
            names = rows.schema.names
            columns = {ColumnRef(self._alias, name): rows.column(name) for name in names}
            for predicate, kept in self._others:
                truth = pc.fill_null(evaluate(predicate, columns), False)
                if isinstance(truth, pa.Scalar):
                    fails = np.full(rows.num_rows, not truth.as_py())
                else:
                    fails = ~truth.to_numpy(zero_copy_only=False)
                np.bitwise_and(found, kept, out=found, where=fails[:, None])
        return found


def word_bits(slots: Iterable[int], words: int) -> Array:
    """Return a lineage with the bits of these places set."""
    bits = np.zeros(words, np.uint64)
    for slot in slots:
        bits[slot // BITS] |= np.uint64(1 << slot % BITS)
    return bits


def _as_test(term: Predicate) -> tuple[str, pa.DataType, Test] | None:
    """Return a column, the type of comparison and the test where it is one that an index answers."""
    match term:
        case Compare(op, Column(ref), Literal(value, _), kind) if _is_indexed(kind, op, (value,)):
            return ref.column, kind, (op, (value,))
        case InList(Column(ref), values, kind) if _is_indexed(kind, "=", values):
            return ref.column, kind, ("=", values)
    return None


def _is_indexed(kind: pa.DataType, op: str, values: Sequence[Any]) -> bool:
    if op == "<=>" or any(value is None or value != value for value in values):  # NaN
        return False
    return _is_number(kind) or (t.is_string(kind) and op in ("=", "<>"))


def _is_number(kind: pa.DataType) -> bool:
    tests = (t.is_signed_integer, t.is_floating, t.is_timestamp, t.is_date32)
    return any(is_known(kind) for is_known in tests)


class _Index:
    """The comparisons of one column with constants: where a value lies among these says who lets it pass."""

    def __init__(
        self, column: str, kind: pa.DataType, tests: Mapping[int, Sequence[Test]], words: int
    ) -> None:
        self.column = column
        self._kind = kind
        constants = [value for each in tests.values() for _, values in each for value in values]
        points = pc.unique(self._constants(constants))
        self._points = points.take(pc.sort_indices(points)) if _is_number(kind) else points
        self._numbers = self._as_numbers(self._points) if _is_number(kind) else None
        # By word: points and intervals in turn, an interval at each end; behind them, nulls.
        self.bits = np.full((words, 2 * len(points) + 2), ~np.uint64(0))
        lies = np.arange(2 * len(points) + 1)
        for slot, each in tests.items():
            passes = np.ones(len(lies), bool)
            for op, values in each:
                at = pc.index_in(self._constants(values), value_set=self._points).to_pylist()
                passes &= reduce(np.logical_or, (_TESTS[op](lies, 2 * one + 1) for one in at))
            kept = np.append(passes, False)
            self.bits[slot // BITS, ~kept] &= ~np.uint64(1 << slot % BITS)

    def _constants(self, values: Sequence[Any]) -> pa.Array:
        if t.is_floating(self._kind):
            values = [value + 0.0 for value in values]  # -0.0 is 0.0
        return pa.array(values, self._kind)

    def _as_numbers(self, values: Any) -> Array:
        if t.is_floating(self._kind):
            floats: Array = values.cast(pa.float64()).to_numpy(zero_copy_only=False)
            return floats
        # By way of the type's own width: dates have 32 bits.
        whole = values.cast(pa.int32()) if t.is_date32(self._kind) else values
        whole = whole.cast(pa.int64())
        numbers: Array = whole.fill_null(0).to_numpy(zero_copy_only=False)
        return numbers

    def locate(self, column: pa.Array) -> Array:
        """Return the places, in the bits of each word, of a column's values."""
        values = widen(column, self._kind)
        if self._numbers is None:
            found = pc.index_in(values, value_set=self._points).fill_null(len(self._points)).to_numpy()
            lies: Array = np.append(2 * np.arange(len(self._points)) + 1, 0)[found]
        else:
            numbers = self._as_numbers(values)
            first = np.searchsorted(self._numbers, numbers)  # NaN is behind all numbers, as in Spark
            same = self._numbers[np.minimum(first, len(self._numbers) - 1)] == numbers
            lies = 2 * first + same
        if values.null_count:
            lies = np.where(values.is_null(), self.bits.shape[1] - 1, lies)
        return lies


_TESTS: dict[str, Any] = {
    "=": lambda lies, at: lies == at,
    "<>": lambda lies, at: lies != at,
    "<": lambda lies, at: lies < at,
    "<=": lambda lies, at: lies <= at,
    ">": lambda lies, at: lies > at,
    ">=": lambda lies, at: lies >= at,
}
