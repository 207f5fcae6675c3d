"""Random queries give Spark's answers, or its refusals."""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

import millrace
from tests.gate import examples
from tests.sql.answers import condition_of
from tests.sql.fuzz import tables
from tests.sql.fuzz.grammar import query

# Faults of Spark's own plans, and what it analyses but cannot plan: ours need not have them.
_INTERNAL = re.compile(r"SQLSTATE: XX|\[INTERNAL_ERROR|\[UNSUPPORTED_SUBQUERY_EXPRESSION_CATEGORY")
MODES = ("paths", "frames", "paths", "views")
"""Paths every other time, which are the fastest."""
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


class Comparison:
    """One query on plain Spark and on Millrace, and in what the answers differ.

    Plain Spark reads temporary views of a session of its own. Millrace gets the same tables in one of three
    ways: ``paths`` and ``frames`` run in a session whose views of the same names are empty, so that a table
    that is taken from the wrong place is seen; ``views`` runs in Spark's own.
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

    def difference(self, text: str, mode: str) -> str:
        """Say in what the answers differ, if they do: in rows only where Millrace joins any of it itself.

        Where Spark refuses a query, the answer is its error; queries that take it too long have none.
        """
        plain = self._attempt(lambda: self._spark.sql(text))
        found = self._attempt(lambda: self._prepare(text, mode))
        if isinstance(plain, Exception) and isinstance(found, Exception):
            return "" if condition_of(plain) == condition_of(found) else _both(plain, found)
        if isinstance(plain, Exception) or isinstance(found, Exception):
            return _both(plain, found)
        if plain.dtypes != found.df.dtypes:
            return _both(plain.dtypes, found.df.dtypes)
        if not found.blocks:
            return ""
        rows = self._attempt(plain.collect)
        if isinstance(rows, Exception) and ("cancelled" in str(rows) or _INTERNAL.search(str(rows))):
            return ""
        ours = self._attempt(found.df.collect)
        fails = [isinstance(each, Exception) for each in (rows, ours)]
        if any(fails):
            return "" if all(fails) else _both(rows, ours)
        right, left = _bag(rows), _bag(ours)
        return "" if right == left else f"{_both(right - left, left - right)}\n{found.explain()}"

    def _prepare(self, text: str, mode: str) -> millrace.Query:
        if mode == "views":
            return millrace.query(text, spark=self._spark)
        given = dict(self._frames)
        if mode == "paths":
            given |= self._paths
        return millrace.query(text, spark=self._other, tables=given)

    def _attempt(self, action: Callable[[], Any]) -> Any:
        """Return what an action gives or raises, before long."""
        timer = threading.Timer(SECONDS, self._spark.sparkContext.cancelAllJobs)
        timer.daemon = True
        timer.start()
        try:
            return action()
        except Exception as error:  # noqa: BLE001  # whatever is raised is what is compared
            return error
        finally:
            timer.cancel()


def _bag(rows: list[Any]) -> Counter[str]:
    """Return rows as a multiset. Zeros of two signs are equal in SQL, and which a group has is chance."""
    return Counter(repr(tuple(row)).replace("-0.0", "0.0") for row in rows)


def _both(plain: Any, found: Any) -> str:
    """Show what Spark has and Millrace has not, or the other way round."""
    shown = (
        f"{type(each).__name__} {str(each).split('JVM stacktrace', 1)[0][:900]}" for each in (plain, found)
    )
    return "Spark:    {}\nMillrace: {}".format(*shown)


@st.composite
def queries(draw: st.DrawFn) -> str:
    """Draw a query, number by number: a smaller one is a plainer one, so that what fails shrinks."""

    def below(count: int) -> int:
        # Of a wide range Hypothesis mostly draws small numbers; here all are as likely.
        hundreds = draw(st.integers(0, (count - 1) // 100))
        return min(100 * hundreds + draw(st.integers(0, min(count - 1, 99))), count - 1)

    return query(below)


@pytest.fixture(scope="module")
def compare(spark, tmp_path_factory):
    """Compare a query once, however often it is drawn."""
    return cache(Comparison(spark, tmp_path_factory.mktemp("fuzz")).difference)


@pytest.mark.law
@pytest.mark.slow
@settings(max_examples=examples(50, 400), suppress_health_check=list(HealthCheck))
@given(queries(), st.sampled_from(MODES))
def test_answers(compare, text, mode):
    """Names and types are Spark's, as are rows where any of the query is joined; refusals are alike."""
    found = compare(text, mode)
    assert not found, f"{text}\n{mode}\n{found}"
