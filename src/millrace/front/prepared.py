"""What a query became: its DataFrame, what eddies run of it, and what Spark does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from millrace.block import Block, FrameInput
from millrace.errors import ExecutionError
from millrace.figures import CellFigures
from millrace.front.context import Filter, Taken
from millrace.run_report import RunReport

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class Query:
    """A query that is ready to run.

    Attributes:
        df: Its result: the rows, names and types that ``spark.sql`` gives.
        taken: The blocks that eddies run, inner ones first, with their plans.
        reasons: Why something stayed with Spark, one sentence each.
        rewritten: The text that Spark runs above the blocks; the query itself when nothing is taken.
        filters: The predicates that eddies run inside Spark's filters, inner ones first.
    """

    df: DataFrame
    taken: tuple[Taken, ...]
    reasons: list[str]
    rewritten: str
    _spark_plan: Callable[[], str] = field(repr=False, default=str)
    filters: tuple[Filter, ...] = ()

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The blocks that eddies run, inner ones first."""
        return tuple(one.block for one in self.taken)

    def explain(self) -> str:
        """Return, as text, every block and filter, what stays with Spark and why, and Spark's own plan."""
        lines: list[str] = []
        for one in self.taken:
            lines += _explain(one)
        for filter_ in self.filters:
            first, *rest = filter_.mask.plan.split("\n")
            lines += [f"{filter_.name}: {first}", *rest]
            lines += [f"  stands for {' AND '.join(filter_.calls)}"] if filter_.calls else []
        if not self.taken:
            lines.append(f"no block: Spark runs the {'rest of the' if self.filters else 'whole'} query")
        if self.reasons:
            lines.append("left to Spark")
            lines += [f"  {reason}" for reason in self.reasons]
        lines += ["text that Spark runs", f"  {self.rewritten}", "Spark's plan", self._spark_plan()]
        return "\n".join(lines)

    def report(self) -> RunReport:
        """Return the figures of the latest run of :attr:`df`.

        A filter that no row reached has none.

        Raises:
            ExecutionError: ``df`` has not run yet, or the option ``report`` is off.
        """
        found: dict[str, list[CellFigures]] = {}
        for one in self.taken:
            found[one.block.name] = one.run.figures(self.df)
        nothing: ExecutionError | None = None
        for filter_ in self.filters:
            try:
                found[filter_.name] = filter_.mask.reports.figures(self.df)
            except ExecutionError as error:
                nothing = error
        if nothing is not None and not found:
            raise nothing
        return RunReport(found)


def _explain(one: Taken) -> list[str]:
    """Return what eddies do for a block, and what of its conditions Spark does."""
    join = one.block.join
    lines = one.run.plan.split("\n")
    lines += [
        f"  {alias}: Spark filters it by {where}" for alias, where in one.scans if _is_frame(one, alias)
    ]
    if join.count_only:
        lines.append("  only counts rows")
    else:
        lines.append("  gives " + ", ".join(f"{o.source} as {o.name}" for o in join.output))
    lines += [f"  Spark evaluates above it: {text}" for text in one.above]
    return lines


def _is_frame(one: Taken, alias: str) -> bool:
    return isinstance(one.block.inputs[alias], FrameInput)
