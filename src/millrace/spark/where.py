"""An eddy over predicates as one function of Spark.

The function gets the argument columns and returns for each row whether it stays. Rows never leave
the JVM, their order is kept, Catalyst goes on pushing and pruning around it, and it works wherever
an expression does: on streams, on Spark Connect, inside SQL text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession, functions as sf

from millrace.engine.expressions import Call, Column, ColumnRef
from millrace.engine.policies import default_policy
from millrace.engine.runs.eddy_run import EddyRun
from millrace.engine.runs.output import Mask as KeepMask
from millrace.engine.spec import JoinSpec, RelationSpec
from millrace.limits.budget import Spent
from millrace.options import Options
from millrace.predicates import PredicateSpec
from millrace.spark.failures import shortened
from millrace.spark.frames import task_name
from millrace.spark.limits import Limits
from millrace.spark.reports import FileWarmStart, Reports, Sink
from millrace.spark.values import SparkValues, spark_values
from millrace.spark.worker import prompt

if TYPE_CHECKING:
    from millrace.limits.progress import LookupProgress

_ROWS = "rows"


_SHOWN = (
    "batch", "retries", "timeout", "max_in_flight", "per_second", "dedupe", "max_requests", "max_cost",
    "limit_group",
)  # fmt: skip
"""Settings of a predicate that plans tell."""


@dataclass(frozen=True)
class Slot:
    """One predicate of a filter.

    Attributes:
        spec: The predicate.
        columns: Which of the filter's argument columns it reads, in its order; none means all.
    """

    spec: PredicateSpec
    columns: tuple[int, ...] = ()


@dataclass(frozen=True)
class Mask:
    """A filter that is ready for use.

    Attributes:
        function: An ``arrow_udf``: takes the argument columns, returns a boolean column without nulls,
            or, on Spark Connect where figures are wanted, a struct of ``keep`` and ``report``.
        reports: Where its figures arrive.
        plan: What it does, as text.
        weaker: What is promised less of limits because tasks do not reach the coordinator.
        spent: Returns what was spent of budgets.
        calls: Returns what calls of predicates with limits have come to.
    """

    function: Any
    reports: Reports
    plan: str
    weaker: tuple[str, ...] = ()
    spent: Callable[[], list[Spent]] = list
    calls: Callable[[], list[LookupProgress]] = list


def mask(
    spark: SparkSession,
    slots: Sequence[Slot],
    options: Options,
    labels: Sequence[str] = (),
    *,
    reporting: bool = False,
) -> Mask:
    """Return predicates as one function of Spark.

    Args:
        spark: The session.
        slots: The predicates, in the order as written.
        options: Settings of the run.
        labels: What errors and reports call the argument columns.
        reporting: On Spark Connect, let the function return its figures beside the mask; without it
            there are none there.
    """
    reports = Reports(spark, wanted=options.report, carried=reporting, options=options)
    task = MaskTask(
        tuple(slots),
        tuple(labels),
        options,
        spark_values(spark),
        Limits.of(spark, reports.sink.run, dict(enumerate(slot.spec for slot in slots)), options),
        FileWarmStart(reports.sink.run),
        reports.sink,
    )

    @shortened
    @prompt
    def keep(batches: Iterator[tuple[pa.Array, ...]]) -> Iterator[pa.Array]:
        yield from task(batches)

    keep.__name__ = task_name(reports.sink.run)
    hidden = reports.sink.hidden
    make: Any = sf.arrow_udf  # type: ignore[attr-defined]  # PySpark's stubs lack it
    function = make(keep, "keep boolean, report string" if hidden else "boolean")
    if not all(slot.spec.deterministic for slot in slots):
        function = function.asNondeterministic()
    limits = task.limits
    return Mask(function, reports, task.plan(), limits.weaker, limits.spent, limits.progress)


@dataclass(frozen=True)
class MaskTask:
    """Runs the eddy of one task; travels there inside the function.

    Attributes:
        slots: The predicates.
        labels: Names of the argument columns, as far as there are any.
        options: The run's settings.
        values: How arguments are converted.
        limits: How the tasks agree on limits.
        warm_start: What tasks on this machine have learned.
        sink: Where the figures go.
    """

    slots: tuple[Slot, ...]
    labels: tuple[str, ...]
    options: Options
    values: SparkValues
    limits: Limits
    warm_start: FileWarmStart
    sink: Sink = field(repr=False)

    def __call__(self, batches: Iterator[Any]) -> Iterator[pa.Array]:
        """Yield, for every batch of argument columns, which rows stay."""
        arrivals = (_batch(each) for each in batches)
        first = next(arrivals, None)
        if first is None:
            return
        names = _distinct(self.labels, first.num_columns)
        join = self._join(first.schema, names)
        eddy = EddyRun(
            join,
            {_ROWS: _named([first], arrivals, join.relations[0].schema)},
            self.options,
            stream=_ROWS,
            output=KeepMask(),
            callers=self.limits.caller,
            warm_start=self.warm_start,
        )
        name = f"mask {_task()}"
        with self.sink.telling(name, lambda: eddy.figures(_task())):
            yield from _reported(eddy) if self.sink.hidden else eddy.run()
        if self.sink.accumulator is not None:
            self.sink.add(name, eddy.figures(_task()).to_json())

    def plan(self) -> str:
        """Return what it does, as text."""
        policy = self.options.policy or default_policy(joins=False, predicates=True)
        lines = [f"filter by an eddy in each task, policy {policy}"]
        for number, slot in enumerate(self.slots, 1):
            spec = slot.spec
            names = [self.labels[c] if c < len(self.labels) else f"argument {c + 1}" for c in slot.columns]
            text = f"  {number}. {spec.name}({', '.join(names) or '…'}), kind {spec.kind}"
            text += "" if spec.deterministic else ", not deterministic: keeps its place"
            for setting in _SHOWN:
                if getattr(spec, setting):
                    text += f", {setting}={getattr(spec, setting)}"
            text += "" if spec.answers is None else f", answers kept in {str(spec.answers)!r}"
            lines.append(text + (", on_error=null" if spec.on_error == "null" else ""))
        lines += [f"  weaker: {each}" for each in self.limits.weaker]
        return "\n".join(lines)

    def _join(self, schema: pa.Schema, names: Sequence[str]) -> JoinSpec:
        fields = [pa.field(name, f.type) for name, f in zip(names, schema, strict=True)]
        calls = tuple(
            Call(
                slot.spec,
                tuple(Column(ColumnRef(_ROWS, names[c])) for c in slot.columns or range(len(names))),
                self.values,
            )
            for slot in self.slots
        )
        return JoinSpec((RelationSpec(_ROWS, pa.schema(fields)),), residuals=calls)


def _task() -> int:
    context = TaskContext.get()
    return 0 if context is None else context.partitionId()


def _reported(eddy: EddyRun) -> Iterator[pa.Array]:
    """Yield masks as structs with a report, which stands in the very last row."""
    held: pa.Array | None = None
    for kept in eddy.run():
        if held is not None:
            yield _with_report(held, None)
        held = kept
    if held is not None:
        yield _with_report(held, eddy.figures(_task()).to_json())


def _with_report(kept: pa.Array, report: str | None) -> pa.Array:
    texts = pa.nulls(len(kept), pa.string())
    if report is not None and len(kept):
        texts = pa.concat_arrays([texts.slice(1), pa.array([report])])
    return pa.StructArray.from_arrays([kept, texts], names=["keep", "report"])


def _batch(arguments: Any) -> pa.RecordBatch:
    """Return the argument columns as a batch; Spark passes a single one bare."""
    arrays = list(arguments) if isinstance(arguments, tuple) else [arguments]
    return pa.RecordBatch.from_arrays(arrays, [str(i) for i in range(len(arrays))])


def _named(
    first: list[pa.RecordBatch], rest: Iterator[pa.RecordBatch], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    for batch in chain(first, rest):
        yield pa.RecordBatch.from_arrays(batch.columns, schema=schema)


def _distinct(labels: Sequence[str], count: int) -> list[str]:
    """Return a name for each argument column, no two the same."""
    names: list[str] = []
    for place in range(count):
        name = labels[place] if place < len(labels) else f"argument {place + 1}"
        names.append(f"{name} ({place + 1})" if name in names else name)
    return names
