"""Filters that order themselves: ``millrace.where``, and an eddy over predicates as one function of Spark.

The function gets the argument columns and returns for each row whether it stays. Rows never leave
the JVM, their order is kept, Catalyst goes on pushing and pruning around it, and it works wherever
an expression does: on streams, on Spark Connect, inside SQL text.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession, functions as sf

from millrace.engine.expressions import Call, Column as ColumnOf, ColumnRef
from millrace.engine.policies import default_policy
from millrace.engine.runs.eddy_run import EddyRun
from millrace.engine.runs.output import Mask as KeepMask
from millrace.engine.spec import JoinSpec, RelationSpec
from millrace.errors import InputError, MillraceError, MillraceWarning, PredicateError, near
from millrace.options import Options
from millrace.predicates import PredicateSpec
from millrace.reports.planned import Explanation, Planned, settings
from millrace.reports.run_report import RunReport
from millrace.spark.failures import shortened
from millrace.spark.handles import remember
from millrace.spark.limits import Limits
from millrace.spark.patches import noted
from millrace.spark.plans import Mode, explained, planned
from millrace.spark.predicates import Applied, Predicate, check_sendable
from millrace.spark.reports import FileWarmStart, Reports, Sink, task_name
from millrace.spark.session import alive, internal_query
from millrace.spark.values import SparkValues, spark_values
from millrace.spark.worker import low_latency, partition_number

_ROWS = "rows"
_MASK = "__millrace_mask"
_NAME = "filter"
_SHOWN = (
    "batch", "retries", "timeout", "max_in_flight", "per_second", "dedupe", "max_requests", "max_cost",
    "limit_group",
)  # fmt: skip
"""Settings of a predicate that plans show."""

Condition = Applied | Column | str


def where(
    df: DataFrame,
    *predicates: object,
    policy: str | None = None,
    options: Options | dict[str, Any] | None = None,
) -> DataFrame:
    """Return the rows that pass all predicates; see :func:`millrace.where`."""
    if not hasattr(df, "sparkSession"):
        raise InputError(f"where filters a DataFrame of Spark, got a {type(df).__name__}")
    settings = Options.of(options)
    if policy is not None:
        settings = replace(settings, policy=policy)
    conditions = conditions_of(predicates)
    try:
        with internal_query():
            return _filter(df, conditions, settings)
    except MillraceError:
        raise
    except Exception:
        alive(df.sparkSession)  # raises if the session has stopped, which explains it
        raise


def conditions_of(given: Sequence[object]) -> list[Condition]:
    """Return predicates applied to columns, and what Spark evaluates itself."""
    conditions: list[Condition] = []
    for place, condition in enumerate(given, 1):
        call = noted(condition)
        if isinstance(condition, Applied | str):
            conditions.append(condition)
        elif call is not None:
            arguments = tuple(call.arguments)
            conditions.append(Applied.of(Predicate.of(call.function).spec, arguments, call.named))
        elif isinstance(condition, Column):
            conditions.append(condition)
        elif isinstance(condition, Predicate) and condition.columns:
            conditions.append(condition())
        elif isinstance(condition, tuple) and condition:
            conditions.append(Predicate.of(condition[0])(*condition[1:]))
        elif isinstance(condition, Predicate) or callable(condition):
            own = isinstance(condition, Predicate)
            name = condition.name if own else getattr(condition, "__name__", "predicate")
            raise PredicateError(
                f"predicate {place}, {name!r}, is applied to no column: write {name}('column')"
            )
        else:
            raise PredicateError(
                f"predicate {place} is {condition!r}: expected a predicate or udf applied to columns, a "
                "Column, or a condition in SQL"
            )
    return conditions


def _filter(df: DataFrame, conditions: Sequence[Condition], options: Options) -> DataFrame:
    """Return the filtered DataFrame; nothing runs yet.

    What Spark evaluates itself comes first, save what is written behind a predicate that is not
    deterministic: that one meets the rows that it would have met.

    Raises:
        InputError: A column is unknown.
        PredicateError: A predicate cannot be sent to the tasks.
    """
    applied = [c for c in conditions if isinstance(c, Applied)]
    pinned = next((i for i, c in enumerate(conditions) if _is_pinned(c)), len(conditions))
    native = [(i, c) for i, c in enumerate(conditions) if not isinstance(c, Applied)]
    filtered, mask = df, None
    for place, condition in native:
        _warn_of_unseen(df, condition, place + 1)
    for place, condition in native:
        if place < pinned:
            filtered = _analysed(filtered, condition)
    if applied:
        slots, columns, labels = _slots(df, applied)
        # A stream on Spark Connect has nothing that could bring figures back.
        mask = Mask.of(df.sparkSession, slots, options, labels, reporting=not df.isStreaming)
        column = mask.function(*columns)
        if mask.reports.sink.hidden:
            filtered = mask.reports.attach_mask(filtered.withColumn(_MASK, column), _MASK)
        else:
            filtered = _analysed(filtered, column)
    for place, condition in native:
        if place > pinned:
            filtered = _analysed(filtered, condition)
    if filtered is df:
        filtered = df.select("*")
    handle = Filtered(filtered, mask, tuple(str(c) for _, c in native), options)
    runs = {} if mask is None else {mask.reports.sink.run: _NAME}
    title = "filter by " + ", ".join(f"{each.spec.name}({', '.join(each.labels)})" for each in applied)
    return remember(filtered, handle, runs, title)


def _slots(df: DataFrame, applied: Sequence[Applied]) -> tuple[list[Slot], list[Column], list[str]]:
    """Return predicates over argument columns, these columns, and what to call them."""
    slots = []
    columns: list[Column] = []
    labels: list[str] = []
    places: dict[str, int] = {}
    for call in applied:
        check_sendable(call.spec)
        reads = []
        for argument, column, label in zip(call.arguments, call.columns(), call.labels, strict=True):
            if isinstance(argument, str):
                _check_column(df, argument)
                if argument in places:
                    reads.append(places[argument])
                    continue
                places[argument] = len(columns)
            reads.append(len(columns))
            columns.append(column)
            labels.append(label)
        slots.append(Slot(call.spec, tuple(reads)))
    return slots, columns, labels


def _check_column(df: DataFrame, name: str) -> None:
    """Refuse a plain name that is no column's; paths into structs and quoted names are for Spark."""
    known = [column.lower() for column in df.columns]
    if name.lower() not in known and not any(c in name for c in ".`[(*"):
        raise InputError(f"there is no column {name!r} to filter by: {near(name, df.columns)}")


def _analysed(frame: DataFrame, condition: Column | str) -> DataFrame:
    try:
        filtered = frame.where(condition)
        _ = filtered.schema  # on Spark Connect this is when it is analysed
    except AnalysisException as error:
        raise InputError(f"Spark refuses the filter: {error}") from error
    return filtered


def _warn_of_unseen(df: DataFrame, condition: Column | str, place: int) -> None:
    """Warn of a function of Python that Spark calls, in an expression or applied before it could be noted."""
    if not isinstance(condition, Column) or df.isStreaming:
        return
    if not re.match(r"Column<'[^\s(]+\(", str(condition)):
        return
    if "EvalPython" in explained(df.where(condition)):
        warnings.warn(
            f"a Python function in condition {place} is called by Spark for every row: it is part of a "
            "larger expression, or its Column was made before Millrace was first used. Give each function "
            'as a condition of its own, as (function, "column", …)',
            MillraceWarning,
            stacklevel=5,
        )


def _is_pinned(condition: Condition) -> bool:
    return isinstance(condition, Applied) and not condition.spec.deterministic


@dataclass(frozen=True, eq=False)
class Filtered:
    """The handle of a filtered DataFrame.

    Attributes:
        df: The DataFrame.
        mask: The eddy over its predicates, None where all conditions are Spark's.
        native: What Spark evaluates, as text.
        options: Settings of the run.
    """

    df: DataFrame
    mask: Mask | None
    native: tuple[str, ...]
    options: Options

    @property
    def tasks(self) -> dict[str, int]:
        """Nothing: of a DataFrame's partitions Spark alone knows, and not before it runs."""
        return {}

    def explain(self, mode: Mode = "simple") -> Explanation:
        """Return what the eddies do and what Spark does, as text."""
        lines = ["no predicate of Python" if self.mask is None else self.mask.plan]
        lines += [f"  Spark evaluates {text}" for text in self.native]
        return Explanation("\n".join([*lines, "Spark's plan", planned(self.df, mode)]))

    def report(self, executed: DataFrame | None = None) -> RunReport:
        """Return the figures of the latest run."""
        figures = {} if self.mask is None else {_NAME: self.mask.reports.figures(executed)}
        return replace(self.beside(), blocks=figures)

    def beside(self) -> RunReport:
        """Return what is known beside figures, at any time."""
        planned = Planned(settings=settings(self.options))
        if self.mask is None:
            return RunReport({}, planned)
        limits = self.mask.limits
        planned = replace(planned, weaker=limits.weakened_guarantees)
        return RunReport({}, planned, budgets=tuple(limits.spent()), calls=tuple(limits.progress()))


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
        limits: Of its predicates.
    """

    function: Any
    reports: Reports
    plan: str
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

        Args:
            spark: The session.
            slots: The predicates.
            options: Settings of the run.
            labels: What errors and reports call the argument columns.
            reporting: On Spark Connect, let the function return its figures beside the mask; without it
                there are none there.
        """
        reports = Reports(spark, options, wanted=options.report, carried=reporting)
        run = reports.sink.run
        limits = Limits.of(spark, run, dict(enumerate(slot.spec for slot in slots)), options)
        warm_start, values = FileWarmStart(run), spark_values(spark)
        task = MaskTask(tuple(slots), tuple(labels), options, values, limits, warm_start, reports.sink)

        @shortened
        @low_latency
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
        """Yield, for every batch of argument columns, which rows stay."""
        arrivals = map(_batch, batches)
        first = next(arrivals, None)
        if first is None:
            return
        join = self._join(first.schema)
        schema = join.relations[0].schema
        rows = (
            pa.RecordBatch.from_arrays(batch.columns, schema=schema) for batch in chain([first], arrivals)
        )
        eddy = EddyRun(
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
            yield from _with_reports(eddy) if self.sink.hidden else eddy.run()
        if self.sink.accumulator is not None:
            self.sink.add(name, eddy.figures(number).to_json())

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
        lines += [f"  weaker: {guarantee}" for guarantee in self.limits.weakened_guarantees]
        return "\n".join(lines)

    def _join(self, schema: pa.Schema) -> JoinSpec:
        names: list[str] = []
        for place in range(len(schema)):
            name = self.labels[place] if place < len(self.labels) else f"argument {place + 1}"
            names.append(f"{name} ({place + 1})" if name in names else name)
        fields = [pa.field(name, f.type) for name, f in zip(names, schema, strict=True)]
        calls = tuple(
            Call(
                slot.spec,
                tuple(ColumnOf(ColumnRef(_ROWS, names[c])) for c in slot.columns or range(len(names))),
                self.values,
            )
            for slot in self.slots
        )
        return JoinSpec((RelationSpec(_ROWS, pa.schema(fields)),), residuals=calls)


def _with_reports(eddy: EddyRun) -> Iterator[pa.Array]:
    """Yield masks as structs with a report, which stands in the very last row."""
    waiting: pa.Array | None = None
    for kept in eddy.run():
        if waiting is not None:
            yield _with_report(waiting, None)
        waiting = kept
    if waiting is not None:
        yield _with_report(waiting, eddy.figures(partition_number()).to_json())


def _with_report(kept: pa.Array, report: str | None) -> pa.Array:
    texts = pa.nulls(len(kept), pa.string())
    if report is not None and len(kept):
        texts = pa.concat_arrays([texts.slice(1), pa.array([report])])
    return pa.StructArray.from_arrays([kept, texts], names=["keep", "report"])


def _batch(arguments: Any) -> pa.RecordBatch:
    """Return the argument columns as a batch; Spark passes a single one bare."""
    arrays = list(arguments) if isinstance(arguments, tuple) else [arguments]
    return pa.RecordBatch.from_arrays(arrays, [str(i) for i in range(len(arrays))])
