"""A block that saves less than starting Python takes is left to Spark.

Every join has a fixed cost in Spark, so a block of many small relations pays, and one of two may not; a join
of rows that come out of Spark's own operators pays nothing.
"""

from __future__ import annotations

from pyspark.sql import SparkSession
from sqlglot import exp

from millrace.spark import daemon
from millrace.spark.session import default_parallelism, start_seconds
from millrace.sql.aggregation import groups, is_windowed
from millrace.sql.blocks.join_graph import JoinGraph
from millrace.sql.blocks.subqueries import relations_beside
from millrace.sql.context import PlanContext
from millrace.sql.session.tables import Catalog, dotted
from millrace.sql.syntax.parse import Statement
from millrace.sql.syntax.scopes import base_tables, cte_of, definitions, tables_in

JOIN_SECONDS = 0.04
"""What Spark needs for a join of next to nothing, beyond a block that has it."""
ROWS_A_SECOND = 5_000_000
"""Rows with which a block saves a second on one core."""
LONG = 2.0
"""Seconds that starting Python never takes."""
RESTART = 1.2
"""Seconds until Spark's daemon has new workers: Spark ends those whose rows it does not read to the last."""

_REDUCING = (exp.Group, exp.AggFunc, exp.Distinct, exp.Limit)


def why_not_worth(graph: JoinGraph, group: list[str]) -> str | None:
    """Return why a block is left to Spark, None where it saves more than starting Python takes.

    Counted are the rows of the tables that its relations and those beside it read, before any filter. Those
    of a subquery that groups or limits its rows, or has a block, count nothing: they are with Spark already.
    So are those of an EXISTS or IN that joins.
    """
    context = graph.context
    inputs = [graph.inputs[alias] for alias in group]
    if context.settings.options.take_all or context.calls.nodes or graph.has_lookup(group):
        return None
    if any(context.is_streaming(each.relation.node) for each in inputs):
        return None
    left = (context.table(step.relation) for step in graph.source.steps if step.is_left and step.relation)
    if any(table.needs_keys for table in left if table is not None):
        return None
    counts = [each.table.rows if each.table else _rows(context, each.relation.node) for each in inputs]
    counts += [_rows(context, node, (*_REDUCING, exp.Join)) for node in relations_beside(graph)]
    if None in counts:
        return None
    rows = sum(count for count in counts if count is not None)
    joins = sum(count != 0 for count in counts) - 1
    return _why_not(context.catalog, rows, joins, is_cut=_is_cut(graph.scope.select))


def why_nothing_worth(catalog: Catalog, statement: Statement) -> str | None:
    """Return why no block of a query is worth it, None where one may be.

    Its files' footers tell how many rows it reads, and its text how many relations: no block has more.
    """
    assert statement.root is not None
    if catalog.settings.options.take_all:
        return None
    read = list(tables_in(statement.root))
    tables = [catalog.mapped(dotted(node)) for each in read for node in base_tables(each)]
    files = [None if table is None else table.files for table in tables]
    if None in files:
        return None
    return _why_not(catalog, sum(each.rows for each in files if each is not None), len(read) - 1)


def _is_cut(select: exp.Select) -> bool:
    """Tell whether LIMIT stops a SELECT's rows early, before anything has read all of them."""
    node: exp.Expr | None = select
    while isinstance(node, exp.Select):
        if groups(node) or is_windowed(node) or any(map(node.args.get, ("order", "sort", "cluster"))):
            return False
        if node.args.get("limit"):
            return node.find_ancestor(exp.Exists, exp.In) is None  # few rows there
        around = node.parent  # of a derived table: what reads it, if that joins it with nothing
        reader = around.parent if isinstance(around, exp.Subquery) else None
        node = reader.parent if isinstance(reader, exp.From) else None
        if node is not None and node.args.get("joins"):
            return False
    return False


def _why_not(catalog: Catalog, rows: int, joins: int, *, is_cut: bool = False) -> str | None:
    ends_workers = is_cut and catalog.settings.conf.get(daemon.SETTING, "") != daemon.MODULE
    saved = JOIN_SECONDS * joins + rows / ROWS_A_SECOND / default_parallelism(catalog.frames.spark)
    saved -= RESTART if ends_workers else 0.0
    if saved >= LONG or saved >= (start := start_seconds(catalog.frames.spark, saved)):
        return None
    if ends_workers:
        return (
            f"joining {rows:,} rows is not worth new Python workers, which Spark has to start when a LIMIT "
            f"has stopped those at work (set {daemon.SETTING} to {daemon.MODULE}, or option take_all)"
        )
    catalog.unworthy_seconds = max(catalog.unworthy_seconds, saved)
    return (
        f"joining {rows:,} rows is not worth a stage in Python, which takes {start:.2f} s to start "
        "(option take_all)"
    )


def is_unworthy(spark: SparkSession, saved: float) -> bool:
    """Tell whether a block that saves so many seconds is still left to Spark."""
    return saved < start_seconds(spark, saved)


def _rows(
    context: PlanContext, node: exp.Expr, reducing: tuple[type[exp.Expr], ...] = _REDUCING
) -> int | None:
    """Return how many rows a relation or query has at most, None where nothing tells; 0 of ``reducing``."""
    parts = [node, *definitions(node)]
    tables = [table for part in parts for table in tables_in(part)]
    if any(part.find(*reducing) for part in parts) or any(id(table) in context.placed for table in tables):
        return 0
    counts = [context.catalog.of(table).rows for table in tables if cte_of(table) is None]
    return None if None in counts else sum(count for count in counts if count is not None)
