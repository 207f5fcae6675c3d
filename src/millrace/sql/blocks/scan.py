"""Where the rows of a block's relations come from: files that tasks read, or queries that Spark runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from millrace.engine.expressions import Value, columns_of
from millrace.engine.spec import RelationSpec
from millrace.parquet.types import fixed_width
from millrace.spark.block import FrameInput, ParquetInput
from millrace.sql.blocks.conditions import SplitConjuncts
from millrace.sql.blocks.join_graph import DerivedColumn, JoinInput
from millrace.sql.context import PlanContext
from millrace.sql.expr.types import Field
from millrace.sql.plan import show_scanned
from millrace.sql.syntax.parse import Unsupported


def rows_of(
    context: PlanContext,
    join_input: JoinInput,
    columns: list[Field],
    conditions: SplitConjuncts,
    *,
    in_cells: bool = False,
) -> tuple[RelationSpec, ParquetInput | FrameInput]:
    """Return the relation's spec, and where its rows come from.

    ``columns`` are those that the block reads or gives out, in the relation's order. ``in_cells`` says that
    it is one of several streams, which cells keep.

    Raises:
        Unsupported: A column has a type that a block cannot carry, or the relation cannot be read by itself.
    """
    table, alias = join_input.table, join_input.alias
    filters = tuple(dict.fromkeys(conditions.filters.get(alias, ())))
    read = {f.name for f in columns} | {ref.column for p in filters for ref in columns_of(p)}
    computed = [column for column in join_input.computed if column.field.name in read]
    by_spark = alias in conditions.spark_only or any(column.value is None for column in computed)
    if table is not None and not by_spark and table.parquet is not None:
        schema = schema_of(alias, columns)
        values = tuple((column.field.name, column.value) for column in computed if column.value is not None)
        direct = ParquetInput(table.parquet.with_computed(values), tuple(schema.names), filters)
        return RelationSpec(alias, schema), direct
    if not columns:
        # Spark needs a column to send; the narrowest that can be sent will do.
        carried = [f for f in join_input.columns if f.arrow is not None]
        if not carried:
            raise Unsupported(f"no column of {alias} can pass through a join here")
        columns = [min(carried, key=lambda f: fixed_width(f.arrow) or 1 << 20)]
    context.reasons += [
        f"Spark computes {column.field.name}, as null and without an error where it has no value of its type"
        for column in computed
        if column.hides_errors
    ]
    schema = schema_of(alias, columns)
    where = list(dict.fromkeys(conditions.texts.get(alias, ())))
    on_arrival = _computed_on_arrival(columns, computed) if in_cells else {}
    query = context.whole(join_input.relation, context.text.edited)
    if barred := context.catalog.barred(query):
        raise Unsupported(f"it reads {' and '.join(barred)}, of which Spark has no rows")
    rows = read_from(query, join_input, [f for f in columns if f.name not in on_arrival], where)
    why = "" if table is None or by_spark else table.why
    judged = None if alias in conditions.spark_only else filters
    return RelationSpec(alias, schema), replace(
        rows, why=why, filters=judged, computed=tuple(on_arrival.items())
    )


def read_from(
    query: str, join_input: JoinInput, columns: Sequence[Field], where: Sequence[str]
) -> FrameInput:
    """Return how Spark reads columns of an input, filtered, of a query for all of its columns."""
    condition = " AND ".join(where)
    template = join_input.scan(query, join_input.texts(columns)) + (f" WHERE {condition}" if where else "")
    return FrameInput(template, where=show_scanned(condition, join_input.names))


def _computed_on_arrival(columns: Sequence[Field], computed: Sequence[DerivedColumn]) -> dict[str, Value]:
    """Return the columns of a stream that cells compute of what travels, so that less does."""
    values = {column.field.name: column.value for column in computed if column.value is not None}
    travel = {column.name for column in columns} - set(values)
    return {name: v for name, v in values.items() if {ref.column for ref in columns_of(v)} <= travel}


def schema_of(alias: str, columns: Sequence[Field]) -> pa.Schema:
    """Return columns of a relation in a block's types; raises Unsupported where it cannot carry one."""
    for column in columns:
        if column.arrow is None:
            raise Unsupported(
                f"column {alias}.{column.name} has type {column.type.simpleString()}, "
                "which cannot pass through a join here"
            )
    return pa.schema([pa.field(f.name, f.arrow) for f in columns])
