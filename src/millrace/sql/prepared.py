"""What a query became: its DataFrame, what the eddies run of it, and what Spark does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from millrace.block import Block, ParquetInput
from millrace.expressions import show
from millrace.report import RunReport
from millrace.sql.context import Taken

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class Query:
    """A query that is ready to run.

    Attributes:
        df: Its result: the rows, names and types that ``spark.sql`` gives.
        taken: The blocks that eddies run, inner ones first, with their plans.
        reasons: Why something stayed with Spark, one sentence each.
        rewritten: The text that Spark runs above the blocks; the query itself when none is taken.
    """

    df: DataFrame
    taken: tuple[Taken, ...]
    reasons: list[str]
    rewritten: str
    _spark_plan: Callable[[], str] = field(repr=False, default=str)

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The blocks that eddies run, inner ones first."""
        return tuple(one.block for one in self.taken)

    def explain(self) -> str:
        """Return, as text, every block, what stays with Spark and why, and Spark's own plan."""
        lines: list[str] = []
        for one in self.taken:
            lines += _explain(one)
        if not self.taken:
            lines.append("no block: Spark runs the whole query")
        if self.reasons:
            lines.append("left to Spark")
            lines += [f"  {reason}" for reason in self.reasons]
        lines += ["text that Spark runs", f"  {self.rewritten}", "Spark's plan", self._spark_plan()]
        return "\n".join(lines)

    def report(self) -> RunReport:
        """Return the figures of the latest run of :attr:`df`; empty before it has run."""
        return RunReport({one.block.name: one.run.figures() for one in self.taken})


def _explain(one: Taken) -> list[str]:
    join = one.block.join
    lines = [f"block {one.block.name}"]
    scans = dict(one.scans)
    for relation in join.relations:
        given = one.block.inputs[relation.alias]
        direct = isinstance(given, ParquetInput)
        where = f"Parquet {given.table.path}" if isinstance(given, ParquetInput) else "a Spark DataFrame"
        text = f"  {relation.alias}: {where}, columns {', '.join(relation.schema.names) or 'none'}"
        if relation.distinct:
            text += ", each tuple once"
        if isinstance(given, ParquetInput) and given.filters:
            text += ", where " + " and ".join(show(p) for p in given.filters)
        if not direct and relation.alias in scans:
            text += f", where {scans[relation.alias]} (by Spark)"
        lines.append(text)
    lines += [f"  join on {equality}" for equality in join.equalities]
    lines += [f"  residual {show(predicate)}" for predicate in join.residuals]
    if join.count_only:
        lines.append("  only counts rows")
    else:
        lines.append("  gives " + ", ".join(f"{o.source} as {o.name}" for o in join.output))
    lines += [f"  Spark evaluates above it: {text}" for text in one.above]
    lines += ["  " + line for line in one.run.plan.split("\n")]
    return lines
