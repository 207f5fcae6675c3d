"""What a query became: its DataFrame, what eddies run of it, and what Spark does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from millrace.block import Block, FrameInput, LookupInput
from millrace.errors import ExecutionError
from millrace.expressions import show
from millrace.figures import CellFigures
from millrace.front.context import Filter, Taken
from millrace.options import Options
from millrace.run_report import RunReport

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from millrace.front.direct import Direct
    from millrace.limits import LookupProgress


@dataclass(frozen=True)
class Query:
    """A query that is ready to run.

    Attributes:
        df: Its result: the rows, names and types that ``spark.sql`` gives.
        taken: The blocks that eddies run, inner ones first, with their plans.
        reasons: Why something stayed with Spark, one sentence each.
        rewritten: The text that Spark runs above the blocks; the query itself when nothing is taken.
        filters: The predicates that eddies run inside Spark's filters, inner ones first.
        options: Settings of the run.
        direct: How the result is a block's, when Spark does nothing above it.
    """

    df: DataFrame
    taken: tuple[Taken, ...]
    reasons: list[str]
    rewritten: str
    _spark_plan: Callable[[], str] = field(repr=False, default=str)
    filters: tuple[Filter, ...] = ()
    options: Options = field(default_factory=Options)
    direct: Direct | None = None

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

    def stream_results(self, batch_size: int | None = None) -> Iterator[pa.RecordBatch]:
        """Run the query and yield its rows as they come, while the tasks still run.

        Their order is that in which they come, also with an ORDER BY. Closing the iterator, or Ctrl-C,
        cancels the job.

        Args:
            batch_size: Rows in a batch, at most; None leaves batches as they come.

        Raises:
            OptionError: ``batch_size`` is out of range.
            UnsupportedType: A column has a type that cannot be sent.
            Exception: What the job raised, once the rows that came before are given out.
        """
        from millrace.front.direct import stream

        return stream(self, batch_size)

    def lookups(self) -> list[LookupProgress]:
        """Return how far the query's lookups are, at any time, also while it runs."""
        return [each for one in self.taken for each in one.run.progress()]

    def failed_keys(self) -> pa.Table:
        """Return the keys that could not be looked up in the latest run.

        Its columns are ``lookup``, ``key`` (the bind columns as JSON), ``error`` (what kind), ``message`` and
        ``attempts``. With ``on_error="fail"`` the first failure ends the query.
        """
        failed = [each for one in self.taken for each in one.run.failed()]
        columns = [
            [getattr(f, name) for f in failed] for name in ("name", "key", "kind", "message", "attempts")
        ]
        return pa.table(
            [pa.array(column, f.type) for column, f in zip(columns, FAILED_KEYS, strict=True)], FAILED_KEYS
        )

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


FAILED_KEYS = pa.schema(
    [
        pa.field("lookup", pa.string()),
        pa.field("key", pa.string()),
        pa.field("error", pa.string()),
        pa.field("message", pa.string()),
        pa.field("attempts", pa.int64()),
    ]
)
"""The columns of :meth:`Query.failed_keys`."""


def _explain(one: Taken) -> list[str]:
    """Return what eddies do for a block, and what of its conditions Spark does."""
    join = one.block.join
    lines = one.run.plan.split("\n")
    lines += [
        f"  {alias}: Spark filters it by {where}" for alias, where in one.scans if _is_frame(one, alias)
    ]
    for alias, given in one.block.inputs.items():
        if isinstance(given, LookupInput):
            lines += _explain_lookup(alias, given)
    if join.count_only:
        lines.append("  only counts rows")
    else:
        lines.append("  gives " + ", ".join(f"{o.source} as {o.name}" for o in join.output))
    lines += [f"  Spark evaluates above it: {text}" for text in one.above]
    return lines


def _explain_lookup(alias: str, given: LookupInput) -> list[str]:
    """Return how a lookup table is asked, without secrets."""
    lines = [f"  {alias} is looked up"]
    for index in given.indexes:
        source, terms = index.source, index.source.terms
        text = f"    by {', '.join(index.columns)} via {source.kind}: {source.describe()}; at most "
        text += f"{terms.max_in_flight} requests at once"
        text += "" if terms.per_second is None else f" and {terms.per_second:g} a second"
        text += f", {terms.batch} keys each" if terms.batch > 1 else ""
        text += f", timeout {terms.timeout:g} s, retries {terms.retries}"
        lines.append(f"{text}; on_error={index.on_error}")
        kept = "for ever" if index.ttl is None else f"for {index.ttl:g} s"
        lines.append("    no cache" if index.cache is None else f"    cache {index.cache}, kept {kept}")
    lines += [f"    scan via {source.kind}: {source.describe()}" for source in given.sources]
    if given.scan is not None:
        lines.append(
            f"    scan of {'a DataFrame' if isinstance(given.scan, FrameInput) else given.scan.table.path}"
        )
    if given.filters:
        lines.append(f"    keeps rows where {' AND '.join(map(show, given.filters))}")
    return lines


def _is_frame(one: Taken, alias: str) -> bool:
    return isinstance(one.block.inputs[alias], FrameInput)
