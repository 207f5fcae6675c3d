"""An eddy over predicates as one function of Spark.

The function gets the argument columns and returns for each row whether it stays. Rows never leave
the JVM, their order is kept, Catalyst goes on pushing and pruning around it, and it works wherever
an expression does: on streams, on Spark Connect, inside SQL text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession, functions as sf

from millrace.engine.arrays import array_of
from millrace.engine.eddy.output import Mask as KeepMask
from millrace.engine.eddy.run import Run
from millrace.engine.plan.expressions import Call, Column, ColumnRef
from millrace.engine.plan.spec import JoinSpec, RelationSpec
from millrace.engine.policies import default_policy
from millrace.options import Options, name_of
from millrace.predicates import PredicateSpec
from millrace.spark.coordinator import Limits
from millrace.spark.frames import task_name
from millrace.spark.reports import FileWarmStart, Reports, Sink
from millrace.spark.values import SparkValues, spark_values
from millrace.spark.worker import partition_number, worker_task

_ROWS = "rows"


@dataclass(frozen=True)
class Slot:
    """A predicate of a filter, and which of the filter's argument columns it reads; none means all."""

    spec: PredicateSpec
    columns: tuple[int, ...] = ()


@dataclass(frozen=True)
class Mask:
    """A filter that is ready for use.

    ``function`` is an ``arrow_udf``: it takes the argument columns and returns booleans without nulls, or, on
    Spark Connect where figures are wanted, a struct of ``keep`` and ``report``.
    """

    function: Any
    reports: Reports
    plan: str  # what it does
    limits: Limits

    @classmethod
    def of(
        cls,
        spark: SparkSession,
        slots: Sequence[Slot],
        options: Options,
        labels: Sequence[str] = (),
        *,
        reporting: bool = False,
    ) -> Mask:
        """Return predicates, in the order as written, as one function of Spark.

        On Spark Connect the function returns its figures beside the mask if it is ``reporting``; without
        that there are none there.
        """
        reports = Reports(spark, options, wanted=options.report, carried=reporting)
        run = reports.sink.run
        limits = Limits.of(spark, run, dict(enumerate(slot.spec for slot in slots)), options)
        warm_start, values = FileWarmStart(run), spark_values(spark)
        task = MaskTask(tuple(slots), tuple(labels), options, values, limits, warm_start, reports.sink)

        @worker_task
        def keep(batches: Iterator[tuple[pa.Array, ...]]) -> Iterator[pa.Array]:
            yield from task(batches)

        keep.__name__ = task_name(run)
        make: Any = sf.arrow_udf  # type: ignore[attr-defined]  # PySpark's stubs lack it
        function = make(keep, "keep boolean, report string" if reports.sink.hidden else "boolean")
        if not all(slot.spec.deterministic for slot in slots):
            function = function.asNondeterministic()
        return cls(function, reports, task.plan(), limits)


@dataclass(frozen=True)
class MaskTask:
    """Runs the eddy of one task; travels there inside the function."""

    slots: tuple[Slot, ...]
    labels: tuple[str, ...]
    options: Options
    values: SparkValues
    limits: Limits
    warm_start: FileWarmStart
    sink: Sink = field(repr=False)

    def __call__(self, batches: Iterator[Any]) -> Iterator[pa.Array]:
        # Spark passes a single column bare.
        arrivals = ([*arrays] if isinstance(arrays, tuple) else [arrays] for arrays in batches)
        first = next(arrivals, None)
        if first is None:
            return
        join = self._join([column.type for column in first])
        schema = join.relations[0].schema
        rows = (pa.RecordBatch.from_arrays(arrays, schema=schema) for arrays in chain([first], arrivals))
        eddy = Run(
            join,
            {_ROWS: rows},
            self.options,
            stream=_ROWS,
            output=KeepMask(),
            callers=self.limits.caller,
            warm_start=self.warm_start,
        )
        number = partition_number()
        name = f"mask {number}"
        with self.sink.report_live(name, lambda: eddy.figures(number)):
            yield from _with_reports(eddy, number) if self.sink.hidden else eddy.run()
        if self.sink.accumulator is not None:
            self.sink.add(name, eddy.figures(number).to_json())

    def plan(self) -> str:
        policy = self.options.policy or default_policy(joins=False, predicates=True)
        lines = [f"filter by an eddy in each task, policy {name_of(policy)}"]
        for number, slot in enumerate(self.slots, 1):
            spec = slot.spec
            names = map(self._label, slot.columns)
            text = f"  {number}. {spec.name}({', '.join(names) or '…'}), kind {spec.kind}"
            text += "" if spec.deterministic else ", not deterministic: keeps its place"
            told = spec.describe()
            text += f", {told}" if told else ""
            text += "" if spec.answers is None else f", answers kept in {str(spec.answers)!r}"
            lines.append(text + (", on_error=null" if spec.on_error == "null" else ""))
        lines += [f"  weaker: {guarantee}" for guarantee in self.limits.weakened_guarantees]
        return "\n".join(lines)

    def _label(self, column: int) -> str:
        return self.labels[column] if column < len(self.labels) else f"argument {column + 1}"

    def _join(self, types: Sequence[pa.DataType]) -> JoinSpec:
        names: list[str] = []
        for place in range(len(types)):
            name = self._label(place)
            names.append(f"{name} ({place + 1})" if name in names else name)
        columns = [Column(ColumnRef(_ROWS, name)) for name in names]
        calls = tuple(
            Call(slot.spec, tuple(columns[c] for c in slot.columns or range(len(names))), self.values)
            for slot in self.slots
        )
        schema = pa.schema(list(zip(names, types, strict=True)))
        return JoinSpec((RelationSpec(_ROWS, schema),), residuals=calls)


def _with_reports(eddy: Run, number: int) -> Iterator[pa.Array]:
    """Yield masks as structs with a report, which stands in the very last row."""
    waiting: pa.Array | None = None
    for kept in chain(eddy.run(), [None]):
        if waiting is not None:
            texts = pa.nulls(len(waiting), pa.string())
            if kept is None and len(waiting):
                report = array_of([eddy.figures(number).to_json()], pa.string())
                texts = pa.concat_arrays([texts.slice(1), report])
            yield pa.StructArray.from_arrays([waiting, texts], names=["keep", "report"])
        waiting = kept
