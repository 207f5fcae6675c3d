"""``millrace.where``: filters that order themselves."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame

from millrace.errors import InputError, MillraceError, MillraceWarning, PredicateError, near
from millrace.options import Options
from millrace.reports.planned import Explanation, Planned, settings
from millrace.reports.run_report import RunReport
from millrace.spark.frames import remember
from millrace.spark.patches import noted
from millrace.spark.plans import Mode, explained, planned
from millrace.spark.predicates import Applied, Predicate, check_sendable
from millrace.spark.session import alive, own_work
from millrace.spark.where import Mask, Slot, mask

_MASK = "__millrace_mask"
_NAME = "filter"


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
    filter_ = Filter(df, conditions_of(predicates), settings)
    try:
        with own_work():
            return filter_.frame()
    except MillraceError:
        raise
    except Exception:
        alive(df.sparkSession)  # raises if the session has stopped, which explains it
        raise


Condition = Applied | Column | str


def conditions_of(given: Sequence[object]) -> list[Condition]:
    """Return predicates applied to columns, and what Spark evaluates itself."""
    found: list[Condition] = []
    for place, each in enumerate(given, 1):
        call = noted(each)
        if isinstance(each, Applied | str):
            found.append(each)
        elif call is not None:
            arguments = tuple(call.arguments)
            found.append(Applied.of(Predicate.of(call.function).spec, arguments, call.named))
        elif isinstance(each, Column):
            found.append(each)
        elif isinstance(each, Predicate) and each.columns:
            found.append(each())
        elif isinstance(each, tuple) and each:
            found.append(Predicate.of(each[0])(*each[1:]))
        elif isinstance(each, Predicate) or callable(each):
            name = each.name if isinstance(each, Predicate) else getattr(each, "__name__", "predicate")
            raise PredicateError(
                f"predicate {place}, {name!r}, is applied to no column: write {name}('column')"
            )
        else:
            raise PredicateError(
                f"predicate {place} is {each!r}: expected a predicate or udf applied to columns, a "
                "Column, or a condition in SQL"
            )
    return found


@dataclass(frozen=True, eq=False)
class Filter:
    """A filter over one DataFrame.

    Attributes:
        df: What is filtered.
        conditions: In the order as written.
        options: Settings of the run.
    """

    df: DataFrame
    conditions: Sequence[Condition]
    options: Options

    def frame(self) -> DataFrame:
        """Return the filtered DataFrame; nothing runs yet.

        What Spark evaluates itself comes first, save what is written behind a predicate that is not
        deterministic: that one meets the rows that it would have met.

        Raises:
            InputError: A column is unknown.
            PredicateError: A predicate cannot be sent to the tasks.
        """
        applied = [c for c in self.conditions if isinstance(c, Applied)]
        pinned = next((i for i, c in enumerate(self.conditions) if _is_pinned(c)), len(self.conditions))
        native = [(i, c) for i, c in enumerate(self.conditions) if not isinstance(c, Applied)]
        filtered = self.df
        for place, condition in native:
            _warn_of_unseen(self.df, condition, place + 1)
        for _, condition in (each for each in native if each[0] < pinned):
            filtered = self._analysed(filtered, condition)
        made: Mask | None = None
        if applied:
            made, columns = self._mask(applied)
            filtered = self._masked(filtered, made, columns)
        for _, condition in (each for each in native if each[0] > pinned):
            filtered = self._analysed(filtered, condition)
        if filtered is self.df:
            filtered = self.df.select("*")
        handle = Filtered(filtered, made, tuple(str(c) for _, c in native), self.options)
        runs = {} if made is None else {made.reports.sink.run: _NAME}
        return remember(filtered, handle, runs, _title(applied))

    def _mask(self, applied: Sequence[Applied]) -> tuple[Mask, list[Column]]:
        """Return the predicates as one function, and the columns to call it with."""
        slots = []
        columns: list[Column] = []
        labels: list[str] = []
        places: dict[str, int] = {}
        for each in applied:
            check_sendable(each.spec)
            reads = []
            for argument, column, label in zip(each.arguments, each.columns(), each.labels, strict=True):
                if isinstance(argument, str):
                    self._check_column(argument)
                    if argument in places:
                        reads.append(places[argument])
                        continue
                    places[argument] = len(columns)
                reads.append(len(columns))
                columns.append(column)
                labels.append(label)
            slots.append(Slot(each.spec, tuple(reads)))
        # A stream on Spark Connect has nothing that could bring figures back.
        reporting = not self.df.isStreaming
        return mask(self.df.sparkSession, slots, self.options, labels, reporting=reporting), columns

    def _check_column(self, name: str) -> None:
        """Refuse a plain name that is no column's; paths into structs and quoted names are for Spark."""
        known = [column.lower() for column in self.df.columns]
        if name.lower() not in known and not any(c in name for c in ".`[(*"):
            raise InputError(f"there is no column {name!r} to filter by: {near(name, self.df.columns)}")

    def _masked(self, frame: DataFrame, made: Mask, columns: Sequence[Column]) -> DataFrame:
        column = made.function(*columns)
        if made.reports.sink.hidden:
            return made.reports.attach_mask(frame.withColumn(_MASK, column), _MASK)
        return self._analysed(frame, column)

    def _analysed(self, frame: DataFrame, condition: Column | str) -> DataFrame:
        try:
            filtered = frame.where(condition)
            _ = filtered.schema  # on Spark Connect this is when it is analysed
        except AnalysisException as error:
            raise InputError(f"Spark refuses the filter: {error}") from error
        return filtered


@dataclass(frozen=True, eq=False)
class Filtered:
    """What is known of a filtered DataFrame.

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
        found = {} if self.mask is None else {_NAME: self.mask.reports.figures(executed)}
        return replace(self.beside(), blocks=found)

    def beside(self) -> RunReport:
        """Return what is known beside figures, at any time."""
        planned = Planned(settings=settings(self.options))
        if self.mask is None:
            return RunReport({}, planned)
        planned = replace(planned, weaker=self.mask.weaker)
        spent, calls = tuple(self.mask.spent()), tuple(self.mask.calls())
        return RunReport({}, planned, budgets=spent, calls=calls)


def _title(applied: Sequence[Applied]) -> str:
    """Return what people know a filter by."""
    return "filter by " + ", ".join(f"{each.spec.name}({', '.join(each.labels)})" for each in applied)


def _warn_of_unseen(df: DataFrame, condition: Condition, place: int) -> None:
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
