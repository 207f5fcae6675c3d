"""Grouped filters: for each tuple of a relation, the queries whose conditions it passes, found by search.

As in CACQ (Madden, Shah, Hellerstein & Raman 2002, section 3.1) the conditions of all queries on a column are
one index. Their constants cut the column's values into points and the open intervals between them, and for
each of these it is written down, a bit a query, who lets it pass: a tuple costs one search a column, however
many queries there are. What is no comparison of a column with constants is evaluated as it stands, once for
all queries that have it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as t

from millrace.engine.plan.evaluation import evaluate, widen
from millrace.engine.plan.expressions import Column, ColumnRef, Compare, InList, Literal, Predicate
from millrace.streams.hub.query import terms
from millrace.streams.hub.registry import BITS

Array = np.ndarray[Any, np.dtype[Any]]
Test = tuple[str, tuple[Any, ...]]
"""An operator and its constants."""


class GroupedFilter:
    """The conditions of many queries over one relation.

    Args:
        wanted: The conditions of each query, by the place of its bit; a query without any lets all pass.
        words: Of a lineage.
    """

    def __init__(self, alias: str, wanted: Mapping[int, Sequence[Predicate]], words: int) -> None:
        self._alias = alias
        self._all = _word_bits(wanted, words)
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
        self._others = [(predicate, ~_word_bits(slots, words)) for predicate, slots in others.items()]

    def passed(self, rows: pa.RecordBatch) -> Array:
        """Return for each tuple the bits of the queries whose conditions it passes: ``uint64``, by words."""
        found = np.repeat(self._all[None, :], rows.num_rows, axis=0)
        for index in self._indexes:
            found &= index.passed(rows.column(index.column))
        if self._others:
            names = rows.schema.names
            columns = {ColumnRef(self._alias, name): rows.column(name) for name in names}
            for predicate, kept in self._others:
                truth = pc.fill_null(evaluate(predicate, columns), False)
                if isinstance(truth, pa.Scalar):
                    fails = np.full(rows.num_rows, not truth.as_py())
                else:
                    fails = ~truth.to_numpy(zero_copy_only=False)
                found[fails] &= kept
        return found


def _word_bits(slots: Iterable[int], words: int) -> Array:
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
        # Points and intervals in turn, an interval at each end; behind them, nulls.
        self._table = np.full((2 * len(points) + 2, words), ~np.uint64(0))
        lies = np.arange(2 * len(points) + 1)
        for slot, each in tests.items():
            passes = np.ones(len(lies), bool)
            for op, values in each:
                at = pc.index_in(self._constants(values), value_set=self._points).to_pylist()
                passes &= reduce(np.logical_or, (_TESTS[op](lies, 2 * one + 1) for one in at))
            kept = np.append(passes, False)
            self._table[~kept, slot // BITS] &= ~np.uint64(1 << slot % BITS)

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

    def passed(self, column: pa.Array) -> Array:
        """Return the bits of the queries that let a column's values pass."""
        values = widen(column, self._kind)
        if self._numbers is None:
            found = pc.index_in(values, value_set=self._points)
            lies = np.where(found.is_null(), 0, 2 * found.fill_null(0).to_numpy() + 1)
        else:
            numbers = self._as_numbers(values)
            first = np.searchsorted(self._numbers, numbers)  # NaN is behind all numbers, as in Spark
            same = self._numbers[np.minimum(first, len(self._numbers) - 1)] == numbers
            lies = 2 * first + same
        if values.null_count:
            lies = np.where(values.is_null(), len(self._table) - 1, lies)
        return self._table[lies]


_TESTS: dict[str, Any] = {
    "=": lambda lies, at: lies == at,
    "<>": lambda lies, at: lies != at,
    "<": lambda lies, at: lies < at,
    "<=": lambda lies, at: lies <= at,
    ">": lambda lies, at: lies > at,
    ">=": lambda lies, at: lies >= at,
}
