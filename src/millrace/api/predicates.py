"""``millrace.where``: filters that order themselves; what runs is in :mod:`millrace.spark.mask`."""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame

from millrace.api.monitor import by_default
from millrace.errors import InputError, MillraceError, MillraceWarning, PredicateError, near
from millrace.options import Options
from millrace.reports.planned import Planned, now, settings
from millrace.reports.run_report import RunReport
from millrace.spark.frames import Scans, remember
from millrace.spark.mask import Mask, Slot
from millrace.spark.patches import noted, watch
from millrace.spark.predicates import Applied, Predicate, check_sendable
from millrace.spark.session import alive, explained, internal_query

_MASK = "__millrace_mask"
_NAME = "filter"
_PACKAGE = str(Path(__file__).parents[1])

Condition = Applied | Column | str

by_default()  # before there is a DataFrame to run


def where(
    df: DataFrame,
    *predicates: object,
    policy: Any = None,
    options: Options | dict[str, Any] | None = None,
) -> DataFrame:
    """Return the rows of a DataFrame that pass every predicate, cheapest way found while it runs.

    The rows are those of Spark's ``where`` with the conditions joined by AND, in their order within
    a partition. The order in which predicates are called is found and changed during the run; the
    order as written is where it begins.

    >>> millrace.where(df, is_spam("text"), in_stock("id", "day"), "price > 3")  # doctest: +SKIP

    Args:
        df: Any DataFrame, streaming ones too.
        predicates: Each a function made by :func:`predicate` or by PySpark's ``udf``, ``pandas_udf``
            or ``arrow_udf`` that is applied to columns (or a tuple of the function and its columns),
            or a condition that Spark evaluates: a Column or SQL text. Functions in a larger
            expression, such as ``a("x") | b("x")``, stay with Spark.
        policy: Routing policy; overrides that of the options.
        options: Settings of the run.

    Raises:
        MillraceError: A predicate, column, option or policy cannot be used.
    """
    watch()  # a session on Spark Connect may have come since
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


def filter(  # noqa: A001  # named as PySpark's
    *predicates: object,
    policy: Any = None,
    options: Options | dict[str, Any] | None = None,
) -> Callable[[DataFrame], DataFrame]:
    """Return :func:`where` as a step of a chain.

    >>> mails.transform(millrace.filter(is_spam("text"), in_stock("id"))).count()  # doctest: +SKIP
    """
    return lambda df: where(df, *predicates, policy=policy, options=options)


def conditions_of(predicates: Sequence[object]) -> list[Condition]:
    """Return predicates applied to columns, and what Spark evaluates itself."""
    conditions: list[Condition] = []
    for place, condition in enumerate(predicates, 1):
        call = noted(condition)
        if call is not None:
            conditions.append(Applied.of(Predicate.of(call.function).spec, call.arguments, call.named))
        elif isinstance(condition, Applied | Column | str):
            conditions.append(condition)
        elif isinstance(condition, Predicate) and condition.columns:
            conditions.append(condition())
        elif isinstance(condition, tuple) and condition:
            conditions.append(Predicate.of(condition[0])(*condition[1:]))
        elif isinstance(condition, Predicate) or callable(condition):
            is_ours = isinstance(condition, Predicate)
            name = getattr(condition, "name" if is_ours else "__name__", "predicate")
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
    """
    applied = [c for c in conditions if isinstance(c, Applied)]
    is_pinned = (isinstance(c, Applied) and not c.spec.deterministic for c in conditions)
    pinned = next((i for i, pins in enumerate(is_pinned) if pins), len(conditions))
    native = [(i, c) for i, c in enumerate(conditions) if not isinstance(c, Applied)]
    filtered = df
    mask: Mask | None = None
    for place, condition in native:
        _warn_of_unseen(df, condition, place + 1)
        if place < pinned:
            filtered = _analyse(filtered, condition)
    if applied:
        slots, columns, labels = _slots(df, applied)
        # A stream on Spark Connect has nothing that could bring figures back.
        is_stream = df.isStreaming
        mask = Mask.of(df.sparkSession, slots, options, labels, reporting=not is_stream)
        if is_stream:
            mask.limits.keep()
        column = mask.function(*columns)
        if mask.reports.sink.hidden:
            filtered = mask.reports.attach_mask(filtered.withColumn(_MASK, column), _MASK)
        else:
            filtered = _analyse(filtered, column)
    for place, condition in native:
        if place > pinned:
            filtered = _analyse(filtered, condition)
    if filtered is df:
        filtered = df.select("*")
    title = "filter by " + ", ".join(f"{each.spec.name}({', '.join(each.labels)})" for each in applied)
    handle = Filtered(filtered, mask, tuple(str(c) for _, c in native), options, title)
    runs = {} if mask is None else {mask.reports.sink.run: _NAME}
    return remember(filtered, handle, runs, title)


def _slots(df: DataFrame, applied: Sequence[Applied]) -> tuple[list[Slot], list[Column], list[str]]:
    """Return predicates over argument columns, these columns, and what to call them."""
    slots: list[Slot] = []
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


def _analyse(frame: DataFrame, condition: Column | str) -> DataFrame:
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
        ours = [frame for frame in inspect.stack(0) if frame.filename.startswith(_PACKAGE)]
        warnings.warn(
            f"a Python function in condition {place} is called by Spark for every row: it is part of a "
            "larger expression, or its Column was made before Millrace was first used. Give each function "
            'as a condition of its own, as (function, "column", …)',
            MillraceWarning,
            stacklevel=1 + len(ours),
        )


@dataclass(frozen=True, eq=False)
class Filtered:
    """The handle of a filtered DataFrame, with what people know it by and what Spark evaluates of it."""

    df: DataFrame
    mask: Mask | None
    native: tuple[str, ...]
    options: Options
    title: str

    @property
    def tasks(self) -> dict[str, int]:
        """Nothing: of a DataFrame's partitions Spark alone knows, and not before it runs."""
        return {}

    @property
    def scans(self) -> Scans:
        """Nothing: Spark reads all."""
        return {}

    def explain_lines(self) -> list[str]:
        lines = ["no predicate of Python" if self.mask is None else self.mask.plan]
        lines += [f"  Spark evaluates {text}" for text in self.native]
        return lines

    def report(self, executed: DataFrame | None = None) -> RunReport:
        figures = {} if self.mask is None else {_NAME: self.mask.reports.figures(executed)}
        return replace(self.status(), blocks=figures)

    def status(self) -> RunReport:
        planned = Planned(settings=settings(self.options), query=self.title, made=now())
        if self.mask is None:
            return RunReport({}, planned)
        limits = self.mask.limits
        planned = replace(planned, weaker=limits.weakened_guarantees)
        return RunReport({}, planned, budgets=tuple(limits.spent()), calls=tuple(limits.progress()))
