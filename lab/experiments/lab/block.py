"""The one builder of blocks: tables by alias, equalities as text, and selections that take their time.

A selection has a declared cost and a known selectivity. Avnur & Hellerstein 2000, section 3.3: a spin loop,
then a randomized decision. The decisions are drawn before and stand in a column, so that every run of a
comparison meets the same ones; the spin loop is the clock's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from lab.experiments.lab.costs import Cost
from millrace.engine.expressions import Call, Column, ColumnRef, Predicate
from millrace.engine.spec import Equality, JoinSpec, OutputColumn, RelationSpec
from millrace.limits.clock import VirtualClock
from millrace.predicates import PredicateSpec


def block(
    tables: Mapping[str, pa.Table],
    *equalities: str,
    predicates: Sequence[Predicate] = (),
    all_columns: bool = False,
    rows: Mapping[str, int | None] | None = None,
) -> JoinSpec:
    """Return the block over some tables that counts its rows.

    Args:
        tables: By alias; compared columns are all of one type.
        equalities: Each such as ``r.a = s.a``.
        predicates: Besides.
        all_columns: Return all columns, named ``r_a`` and so on, instead of counting.
        rows: What the engine is told of tables' sizes, None for nothing; the truth by default.
    """
    told = {alias: table.num_rows for alias, table in tables.items()} | dict(rows or {})
    columns = [ColumnRef(alias, name) for alias, table in tables.items() for name in table.column_names]
    pairs = [[ColumnRef(*side.strip().split(".")) for side in text.split("=")] for text in equalities]
    return JoinSpec(
        tuple(RelationSpec(alias, table.schema, rows=told[alias]) for alias, table in tables.items()),
        tuple(
            Equality(left, right, tables[left.relation].schema.field(left.column).type)
            for left, right in pairs
        ),
        residuals=tuple(predicates),
        output=tuple(OutputColumn(f"{c.relation}_{c.column}", c) for c in columns if all_columns),
        count_only=not all_columns,
    )


def selection(alias: str, column: str, cost: Cost, clock: VirtualClock) -> Call:
    """Return a predicate that keeps the tuples whose column says so.

    Args:
        alias: The relation.
        column: A column of booleans; also the predicate's name.
        cost: Seconds of the clock for each tuple.
        clock: Moves while the predicate works.
    """

    def decide(kept: pa.Array) -> pa.Array:
        clock.advance(len(kept) * (cost() if callable(cost) else cost))
        return kept

    return Call(PredicateSpec(column, decide, "arrow"), (Column(ColumnRef(alias, column)),))
