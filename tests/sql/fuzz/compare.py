"""One query on plain Spark and on Millrace, and whether the answers agree.

Plain Spark reads temporary views of a session of its own. Millrace gets the same tables in one of three
ways: ``paths`` and ``frames`` run in a session whose views of the same names are empty, so that a table
that is taken from the wrong place is seen; ``views`` runs in Spark's own.
"""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException

import millrace
from tests.sql.compare import bag_of
from tests.sql.fuzz import tables

# Faults of Spark's own plans, and what it analyses but cannot plan: ours need not have them.
_INTERNAL = re.compile(r"SQLSTATE: XX|\[INTERNAL_ERROR|\[UNSUPPORTED_SUBQUERY_EXPRESSION_CATEGORY")
MODES = ("paths", "frames", "paths", "views")
"""Paths every other time, which are the fastest."""
FAILURES = ("rows", "names", "types", "error")
SECONDS = 60.0
"""After so long a query's jobs are cancelled."""

SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    # Tables have a handful of rows, and every query is new: what it costs is planning, tasks and compiling.
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.leafNodeDefaultParallelism": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}


@dataclass(frozen=True)
class Result:
    """What became of a query.

    Attributes:
        category: ``equal``; ``refused`` and ``failed``: by Spark, and by Millrace in the same way;
            ``slow``: Spark took too long; ``rows``, ``names``, ``types``, ``error``: the answers differ
            in that, or only one of the two has any.
        detail: What differed.
        explained: What Millrace says of the query.
    """

    category: str
    detail: str = ""
    explained: str = ""

    @property
    def failed(self) -> bool:
        """Whether the answers differ."""
        return self.category in FAILURES


class Comparison:
    """Two sessions with the same tables.

    Args:
        spark: A session; it is only asked for new ones.
        folder: Where to put the tables' files.
    """

    def __init__(self, spark: Any, folder: Path) -> None:
        self._spark, self._other = spark.newSession(), spark.newSession()
        for session in (self._spark, self._other):
            for key, value in SETTINGS.items():
                session.conf.set(key, value)
        tables.register(self._spark)
        tables.register(self._other, empty=True)
        self._paths = tables.write(folder)
        self._frames = tables.frames(self._other)

    def run(self, text: str, mode: str) -> Result:
        """Compare the two answers to a query; of rows only where Millrace joins any of it itself."""
        with self._watched():
            plain = _attempt(lambda: self._spark.sql(text))
            found = _attempt(lambda: self._prepare(text, mode))
        if plain.error is not None:
            return _refused(plain.error, found)
        if found.error is not None:
            return Result("error", f"Millrace refuses: {_brief(found.error)}")
        rows = ours = _Outcome([])
        if found.value.blocks:
            with self._watched():
                rows = _attempt(plain.value.collect)
            if _cancelled(rows.error):
                return Result("slow", "Spark took too long")
            with self._watched():
                ours = _attempt(found.value.df.collect)
        return _compared(plain.value, rows, found.value, ours)

    def _prepare(self, text: str, mode: str) -> millrace.Query:
        if mode == "views":
            return millrace.query(text, spark=self._spark)
        given = dict(self._frames)
        if mode == "paths":
            given |= self._paths
        return millrace.query(text, spark=self._other, tables=given)

    @contextmanager
    def _watched(self) -> Iterator[None]:
        timer = threading.Timer(SECONDS, self._spark.sparkContext.cancelAllJobs)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()


@dataclass(frozen=True)
class _Outcome:
    value: Any = None
    error: Exception | None = None


def _attempt(action: Callable[[], Any]) -> _Outcome:
    try:
        return _Outcome(action())
    except Exception as error:  # noqa: BLE001  # whatever is raised is what is compared
        return _Outcome(error=error)


def _refused(error: Exception, found: _Outcome) -> Result:
    """Compare what Millrace does with a query that Spark refuses."""
    if found.error is None:
        return Result("error", f"only Spark refuses: {_brief(error)}", explained=found.value.explain())
    if _condition(error) != _condition(found.error):
        return Result("error", f"Spark refuses: {_brief(error)}\nMillrace refuses: {_brief(found.error)}")
    return Result("refused", str(_condition(error)))


def _compared(plain: Any, rows: _Outcome, found: millrace.Query, ours: _Outcome) -> Result:
    """Compare answers: names, types, rows."""

    def differs(category: str, detail: str) -> Result:
        return Result(category, detail, found.explain())

    if found.df.columns != plain.columns:
        return differs("names", f"Spark:    {plain.columns}\nMillrace: {found.df.columns}")
    expected, seen = _types(plain), _types(found.df)
    if expected != seen:
        return differs("types", f"Spark:    {expected}\nMillrace: {seen}")
    if (rows.error is not None and ours.error is not None) or _INTERNAL.search(str(rows.error)):
        return Result("failed", _brief(rows.error))
    if rows.error is not None or ours.error is not None:
        who, error = ("Spark", rows.error) if rows.error else ("Millrace", ours.error)
        return differs("error", f"only {who} fails: {_brief(error)}")
    right, left = bag_of(rows.value), bag_of(ours.value)
    # Zeros of two signs are equal in SQL, and which of them a group has is chance.
    if _unsigned(right) != _unsigned(left):
        return differs("rows", _difference(right, left))
    return Result("equal")


def _unsigned(rows: Counter[str]) -> Counter[str]:
    found: Counter[str] = Counter()
    for row, count in rows.items():
        found[row.replace("-0.0", "0.0")] += count
    return found


def _difference(right: Counter[str], left: Counter[str]) -> str:
    lines = [f"Spark has {right.total()} rows, Millrace {left.total()}"]
    for name, more in (("Spark", right - left), ("Millrace", left - right)):
        lines += [f"only {name}: {count} of {row}" for row, count in list(more.items())[:3]]
    return "\n".join(lines)


def _types(frame: Any) -> list[str]:
    return [field.dataType.simpleString() for field in frame.schema]


def _condition(error: Exception | None) -> str:
    """Return what tells errors of Spark apart, or the name of another error's class."""
    named = error.getCondition() if isinstance(error, PySparkException) else None
    return named or type(error).__name__


def _cancelled(error: Exception | None) -> bool:
    return error is not None and "cancelled" in str(error)


def _brief(error: Exception | None) -> str:
    text = str(error).split("\n\n", 1)[0].split("\tat ", 1)[0]
    return f"{type(error).__name__}: {text[:600]}"
