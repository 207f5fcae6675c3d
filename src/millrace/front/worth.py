"""A block over few rows is left to Spark, which has joined them before a Python worker has begun."""

from __future__ import annotations

from sqlglot import exp

from millrace.front.clause import Clause
from millrace.front.ctes import cte_of, definitions, tables_in
from millrace.front.lookups.binding import lookup_of
from millrace.front.members import Member
from millrace.spark.start_cost import start_seconds

FEW = 5_000
"""Rows that are never worth it."""
MANY = 200_000
"""Rows that always are."""
ROWS_A_SECOND = 200_000
"""Rows that a block has to have for each second that starting Python takes."""

_REDUCING = (exp.Group, exp.AggFunc, exp.Distinct, exp.Limit)


def why_not_worth(clause: Clause, group: list[str]) -> str | None:
    """Return why a block is left to Spark, None where it has rows enough.

    Counted are the rows of the tables that its relations read, before any filter. Those of a subquery that
    groups or limits its rows, or has a block, count nothing: they are with Spark already.
    """
    planning = clause.planning
    members = [clause.members[alias] for alias in group]
    least = planning.settings.options.least_rows
    if least == 0 or any(lookup_of(member) is not None for member in members) or planning.calls.found:
        return None
    counts = [_rows(clause, member) for member in members]
    rows = sum(count for count in counts if count is not None)
    if None in counts or (least is None and rows >= MANY):
        return None
    if least is None:
        least = FEW if rows < FEW else min(MANY, round(start_seconds(planning.frames.spark) * ROWS_A_SECOND))
    if rows >= least:
        return None
    told = f"joining {rows:,} rows is not worth a stage in Python"
    return f"{told}, which pays from {least:,} on (option least_rows)"


def _rows(clause: Clause, member: Member) -> int | None:
    """Return how many rows a relation has at most, None where nothing tells."""
    if member.table is not None:
        return member.table.rows
    planning = clause.planning
    parts = [member.relation.node, *definitions(member.relation.node)]
    tables = [table for part in parts for table in tables_in(part)]
    if any(part.find(*_REDUCING) for part in parts) or any(id(table) in planning.placed for table in tables):
        return 0
    counts = [planning.catalog.of(table).rows for table in tables if cte_of(table) is None]
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None
