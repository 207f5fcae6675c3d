"""Aggregates that begin inside a block's tasks: partial results per group, which Spark puts together.

What a block aggregates is frozen, and it pickles. The rows of a block that agree in the *keys* become one
row with *partials*: sums, counts, least and greatest values. Whoever reads the block sums up the sums and
counts, and takes the least of the least. So it does not matter how rows are divided among partial rows: a
task may give out several for one group.

Many rows go in, few come out, and there is never much work for nothing. Rows gather to chunks; each row
becomes a partial row of its own, and those of a chunk with equal keys are merged. What chunks leave is
held, and merged again when it has become much. A task whose keys hardly repeat hands partial rows on as
they are, and looks again some chunks later.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as t

from millrace.engine.figures import ModuleFigures
from millrace.engine.plan.evaluation import Evaluation
from millrace.engine.plan.expressions import Column, ColumnRef, Value

How = Literal["sum", "count", "min", "max"]


@dataclass(frozen=True)
class Partial:
    """A column of partial results.

    Attributes:
        name: Unlike any other in the block.
        how: ``"count"`` counts the rows whose value is not null.
        value: None counts rows.
        type: Of the column: for sums of whole numbers ``int64``, of doubles ``double``, of decimals one of
            the same scale and, up to 38, more digits.
        weight: The column that says how many rows a row stands for; None where each is one.
    """

    name: str
    how: How
    value: Value | None
    type: pa.DataType
    weight: str | None = None


@dataclass(frozen=True)
class AggregateSpec:
    """How the rows of a join become partial rows.

    Partial rows keep the join's columns ``keys``; rows with equal ones may become one.
    """

    keys: tuple[str, ...]
    partials: tuple[Partial, ...]

    def schema(self, joined: pa.Schema) -> pa.Schema:
        """Return the columns of the partial rows, from those of the join."""
        partials = [pa.field(p.name, p.type) for p in self.partials]
        return pa.schema([*(joined.field(key) for key in self.keys), *partials])


CHUNK = 131_072
"""Rows that are merged at once."""

_HELD = 2
_HELD_BYTES = 64 * 1024 * 1024
# A chunk whose groups are as many as this of its rows will not repeat them in what can be held either.
_HOPELESS = 0.85
_POOR = 0.5
_PASSED = 16
WEIGHT_DIGITS = 10
"""A weight has no more digits: no task reads as many rows of one key."""

_KERNELS = {"sum": "sum", "count": "sum", "min": "min", "max": "max"}


class PartialAggregation:
    """One task's partial aggregation of rows with the columns ``joined``.

    It merges ``chunk`` rows at once. At most twice as many partial rows are held, and 64 MB of them.
    """

    def __init__(self, spec: AggregateSpec, joined: pa.Schema, chunk: int = CHUNK) -> None:
        self._spec = spec
        self._joined = joined
        self._schema = spec.schema(joined)
        self._chunk = chunk
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = self._waiting_bytes = 0
        self._held: list[pa.Table] = []
        self._merged_in = 0  # rows that what is held stands for
        self._passing = 0  # chunks that are still to be handed on as they are
        self._calls = 0
        self._seconds = 0.0
        self.rows_in = 0
        self.rows_out = 0

    def over(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            self.rows_in += batch.num_rows
            self._waiting.append(batch)
            self._waiting_rows += batch.num_rows
            self._waiting_bytes += int(batch.nbytes)
            if self._waiting_rows >= self._chunk or self._waiting_bytes >= _HELD_BYTES:
                yield from self._given(self._take())
        yield from self._given([*self._take(), *self._let_go()])

    def figures(self, labels: Mapping[str, str]) -> ModuleFigures:
        """Return what was done; ``labels`` are what people call the join's columns."""
        keys = ", ".join(labels.get(key, key) for key in self._spec.keys)
        return ModuleFigures(
            f"Aggregate({keys})", "aggregate", self.rows_in, self.rows_out, self._calls, self._seconds
        )

    def _given(self, tables: Iterable[pa.Table]) -> Iterator[pa.RecordBatch]:
        for table in tables:
            self.rows_out += table.num_rows
            yield from table.to_batches(self._chunk)

    def _take(self) -> list[pa.Table]:
        """Take in the rows that wait; return what is to be given out."""
        if not self._waiting_rows:
            return []
        began = time.perf_counter()
        self._calls += 1
        rows = pa.Table.from_batches(self._waiting, self._joined)
        self._waiting, self._waiting_rows, self._waiting_bytes = [], 0, 0
        out = self._added(self._lifted(rows))
        self._seconds += time.perf_counter() - began
        return out

    def _added(self, lifted: pa.Table) -> list[pa.Table]:
        if self._passing:
            self._passing -= 1
            return [lifted]
        merged = self._merged(lifted)
        if merged is None:
            return [lifted]
        if lifted.num_rows >= self._chunk and merged.num_rows > _HOPELESS * lifted.num_rows:
            self._passing = _PASSED
            return [merged]
        self._held.append(merged)
        self._merged_in += lifted.num_rows
        if not self._is_much(self._held):
            return []
        tables, stood_for = self._let_go(), self._merged_in
        left = sum(table.num_rows for table in tables)
        if len(tables) == 1 and not self._is_much([*tables, *tables]):
            self._held = tables
            return []
        self._merged_in = 0
        if left > _POOR * stood_for:
            self._passing = _PASSED
        return tables

    def _is_much(self, tables: list[pa.Table]) -> bool:
        rows, size = sum(table.num_rows for table in tables), sum(table.nbytes for table in tables)
        return bool(rows > _HELD * self._chunk or size > _HELD_BYTES)

    def _let_go(self) -> list[pa.Table]:
        """Return what is held, merged where it can be, and hold nothing."""
        held, self._held = self._held, []
        if len(held) < 2:
            return held
        merged = self._merged(pa.concat_tables(held))
        return held if merged is None else [merged]

    def _lifted(self, rows: pa.Table) -> pa.Table:
        """Return each row as a partial row."""
        own = {ColumnRef("", name): rows.column(name) for name in rows.column_names}
        values = Evaluation(own, rows.num_rows)
        columns = [rows.column(key) for key in self._spec.keys]
        columns += [self._alone(values, partial, rows.num_rows) for partial in self._spec.partials]
        if not columns:
            return rows.select([])
        return pa.table(columns, self._schema)

    @staticmethod
    def _alone(values: Evaluation, partial: Partial, rows: int) -> pa.ChunkedArray:
        """Return the partial results of single rows."""
        weights = None if partial.weight is None else values.column(Column(ColumnRef("", partial.weight)))
        if partial.value is None:
            if weights is not None:
                return weights
            return pa.chunked_array([pa.repeat(pa.scalar(1, pa.int64()), rows)])
        column = values.column(partial.value)
        if isinstance(column, pa.Array):
            column = pa.chunked_array([column])
        if partial.how == "count":
            counts = pc.cast(pc.is_valid(column), pa.int64())
            return counts if weights is None else pc.multiply(counts, weights)
        if partial.how in ("min", "max"):
            return column
        if weights is not None:
            return _times(column, weights, partial.type)
        return with_digits(column, partial.type) if t.is_decimal(partial.type) else column.cast(partial.type)

    def _merged(self, table: pa.Table) -> pa.Table | None:
        """Return partial rows with those of equal keys made one; None where a sum might not fit its type."""
        spec, rows = self._spec, table.num_rows
        count = len(spec.keys)
        if not all(_fits(table.column(count + n), p, rows) for n, p in enumerate(spec.partials)):
            return None
        columns = list(table.columns)
        for place, partial in enumerate(spec.partials, count):
            if _is_ordered(partial):
                columns[place] = in_order(columns[place])
        # Plain names: the block's are any text. Arrow tells NaNs by their bits and -0.0 from 0.0, and so
        # makes more groups than Spark, never fewer.
        names = [str(place) for place in range(len(columns))]
        wanted = [(names[count + n], _KERNELS[p.how]) for n, p in enumerate(spec.partials)]
        grouped = pa.table(columns, names).group_by(names[:count], use_threads=False).aggregate(wanted)
        columns = list(grouped.columns)
        for place, partial in enumerate(spec.partials, count):
            if _is_ordered(partial):
                columns[place] = out_of_order(columns[place], partial.type)
            elif t.is_decimal(partial.type):
                columns[place] = with_digits(columns[place], partial.type)
        return pa.table(columns, self._schema)


def _times(column: pa.ChunkedArray, weights: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Return values times weights, in a type that they are known to fit."""
    if not t.is_decimal(kind):
        return pc.multiply(column.cast(kind), weights.cast(kind))
    factors = with_digits(weights.cast(pa.decimal128(19, 0)), pa.decimal128(WEIGHT_DIGITS, 0))
    return with_digits(pc.multiply(column, factors), kind)


def _is_ordered(partial: Partial) -> bool:
    return partial.how in ("min", "max") and t.is_floating(partial.type)


def _fits(column: pa.ChunkedArray, partial: Partial, rows: int) -> bool:
    """Tell whether no sum of the column's values can leave its type; Arrow would not notice."""
    if partial.how != "sum" or t.is_floating(partial.type):
        return True
    ends = pc.min_max(column).as_py()
    if ends["min"] is None:
        return True
    largest = max(_digits(end) for end in ends.values())
    return largest * rows < (10**partial.type.precision if t.is_decimal(partial.type) else 1 << 63)


def _digits(value: int | Decimal) -> int:
    """Return a number without its sign and its decimal point. (Python's own arithmetic would round it.)"""
    return abs(value) if isinstance(value, int) else int("".join(map(str, value.as_tuple().digits)))


def with_digits(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Return decimals of the same scale under another precision, which their values are known to fit.

    A cast would look at every value, which takes longer than to sum them up.
    """
    if column.type == kind:
        return column
    chunks = [pa.Array.from_buffers(kind, len(c), c.buffers(), c.null_count, c.offset) for c in column.chunks]
    return pa.chunked_array(chunks, kind)


def in_order(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return floating-point numbers as whole numbers in Spark's order, in which NaN is the greatest.

    The same again turns them back (:func:`out_of_order`).
    """
    kind = pa.int64() if t.is_float64(column.type) else pa.int32()
    one_nan = pc.if_else(pc.is_nan(column), pa.scalar(float("nan"), column.type), column)
    return _flipped(pa.chunked_array([chunk.view(kind) for chunk in one_nan.chunks], kind))


def out_of_order(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Return what :func:`in_order` made as the numbers of type ``kind`` that it was."""
    return pa.chunked_array([chunk.view(kind) for chunk in _flipped(column).chunks], kind)


def _flipped(bits: pa.ChunkedArray) -> pa.ChunkedArray:
    """Flip all bits but the sign of the negative ones: greater negatives have smaller bits."""
    all_but_sign = pa.scalar((1 << (bits.type.bit_width - 1)) - 1, bits.type)
    mask = pc.if_else(pc.less(bits, pa.scalar(0, bits.type)), all_but_sign, pa.scalar(0, bits.type))
    return pc.bit_wise_xor(bits, mask)
