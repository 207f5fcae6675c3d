"""Joins of made-up tables: their blocks, their answers by DuckDB, and data whose best order changes."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from millrace.engine.access.schedule import Source
from millrace.engine.eddy.context import RunContext
from millrace.engine.eddy.run import Run
from millrace.engine.figures import CellFigures
from millrace.engine.plan.expressions import ColumnRef, Predicate
from millrace.engine.plan.spec import Equality, JoinSpec, OutputColumn, RelationSpec
from millrace.engine.static_plan import StaticPlan
from millrace.options import Options


def block(
    tables: Mapping[str, pa.Table],
    *equalities: str,
    predicates: Sequence[Predicate] = (),
    all_columns: bool = False,
    rows: Mapping[str, int | None] | None = None,
) -> JoinSpec:
    """Return the block over some tables that counts its rows.

    Args:
        tables: By alias.
        equalities: Each such as ``r.a = s.a``; compared columns are of one type.
        predicates: Besides.
        all_columns: Return all columns, named ``r_a`` and so on, instead of counting.
        rows: Sizes of tables as the engine knows them, None for not at all; the truth by default.
    """
    sizes = {alias: table.num_rows for alias, table in tables.items()} | dict(rows or {})
    columns = [ColumnRef(alias, name) for alias, table in tables.items() for name in table.column_names]
    return JoinSpec(
        tuple(RelationSpec(alias, table.schema, rows=sizes[alias]) for alias, table in tables.items()),
        tuple(
            Equality(left, right, tables[left.relation].schema.field(left.column).type)
            for left, right in map(sides, equalities)
        ),
        residuals=tuple(predicates),
        output=tuple(OutputColumn(f"{c.relation}_{c.column}", c) for c in columns if all_columns),
        count_only=not all_columns,
    )


def sides(equality: str) -> tuple[ColumnRef, ColumnRef]:
    """Return the columns of an equality."""
    left, right = (ColumnRef(*side.split(".")) for side in equality.split(" = "))
    return left, right


def ends(equality: str) -> frozenset[str]:
    """Return the two aliases of an equality."""
    return frozenset(side.relation for side in sides(equality))


def draw_orders(
    aliases: Iterable[str], edges: Collection[frozenset[str]], count: int, seed: str
) -> list[tuple[str, ...]]:
    """Return up to ``count`` orders of a join without cross products, drawn with a seed, none twice.

    ``edges`` are two aliases each, and connect all of ``aliases``.
    """
    draw, names = random.Random(seed), list(aliases)
    found: dict[tuple[str, ...], None] = {}
    for _ in range(50 * count):
        order = [draw.choice(names)]
        while len(order) < len(names):
            touched = {alias for edge in edges if edge & {*order} for alias in edge}
            order.append(draw.choice(sorted(touched - {*order})))
        found[tuple(order)] = None
        if len(found) == count:
            break
    return list(found)


def sql(aliases: Iterable[str], conditions: Iterable[str]) -> str:
    """Return the query that counts a join's rows."""
    return f"SELECT count(*) FROM {', '.join(aliases)} WHERE {' AND '.join(conditions)}"


@contextmanager
def duckdb_counts(tables: Mapping[str, pa.Table | str]) -> Iterator[Callable[[str], int]]:
    """Give what answers a query that counts, by DuckDB on one thread; Arrow tables are copied first.

    Args:
        tables: Arrow tables, or paths of Parquet files, by name.
    """
    import duckdb

    with duckdb.connect() as connection:
        connection.execute("SET threads = 1")
        for name, table in tables.items():
            if isinstance(table, str):
                path = table.replace("'", "''")
                connection.execute(f"CREATE VIEW {name} AS SELECT * FROM read_parquet('{path}')")
            else:
                connection.register("arrived", table)
                connection.execute(f"CREATE TABLE {name} AS SELECT * FROM arrived")
                connection.unregister("arrived")

        def count(query: str) -> int:
            row = connection.execute(query).fetchone()
            assert row is not None
            return int(row[0])

        yield count


def rows_of(tables: Mapping[str, pa.Table], *equalities: str) -> int:
    """Return how many rows a join has, by DuckDB."""
    with duckdb_counts(tables) as count:
        return count(sql(tables, equalities))


def run_block(
    spec: JoinSpec, sources: Mapping[str, Source], options: Options, **given: Any
) -> tuple[int, CellFigures]:
    """Run a block; return how many rows it has, and what the engine did."""
    run = Run(spec, sources, options, **given)
    rows = sum(batch.column(0)[0].as_py() if spec.count_only else batch.num_rows for batch in run.run())
    return rows, run.figures()


def run_plan(spec: JoinSpec, sources: Mapping[str, Source], options: Options) -> int:
    """Run a static plan, also of one relation, which a Run has an eddy for; return how many rows it has."""
    context = RunContext(spec, sources, options, {})
    results = chain(StaticPlan(context).results(), context.output.finish())
    return sum(batch.column(0)[0].as_py() if spec.count_only else batch.num_rows for batch in results)


DRIFT = ("r.a = s.a", "s.b = t.b")


def drift(rows: int, seed: int) -> dict[str, pa.Table]:
    """Return R(a), S(a, b), T(b): each S tuple joins 5 of R and none of T, in the second half reversed.

    Deshpande & Hellerstein 2004, section 5.4.
    """
    draw, half = np.random.default_rng(seed), rows // 2
    values = max(1, half // 5)

    def column(*domains: int) -> np.ndarray:
        """Draw both halves; domains of the same number meet, and all lie in the same range."""
        sizes = (half, rows - half)
        drawn = [3 * draw.integers(0, values, n) + d for d, n in zip(domains, sizes, strict=True)]
        return np.concatenate(drawn)

    return {
        "r": pa.table({"a": column(0, 1)}),
        "s": pa.table({"a": column(0, 2), "b": column(0, 1)}),
        "t": pa.table({"b": column(2, 1)}),
    }
