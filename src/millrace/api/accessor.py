"""``df.millrace``: Millrace's functions as methods of any DataFrame, once this module is imported.

>>> import millrace.api.accessor  # doctest: +SKIP
>>> mails.millrace.where(is_spam("text"), "size < 100000").count()  # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

from pyspark.sql import DataFrame

from millrace.api import predicates, query as results, session
from millrace.spark.patches import watch


def _of_its_frame(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def method(self: Accessor, *arguments: Any, **named: Any) -> Any:
        return function(self._df, *arguments, **named)  # a method of it

    return method


class Accessor:
    """Millrace's functions with a DataFrame as their first argument."""

    def __init__(self, df: DataFrame) -> None:
        self._df = df

    where, join = _of_its_frame(predicates.where), _of_its_frame(session.join)
    explain, report = _of_its_frame(results.explain), _of_its_frame(results.report)
    to_batches = _of_its_frame(results.to_batches)

    def sql(self, query: str, name: str = "this", **settings: Any) -> DataFrame:
        """Return the answer of a query in which the DataFrame has a name; see :func:`millrace.sql`."""
        tables = {**settings.pop("tables", {}), name: self._df}
        return session.sql(query, spark=self._df.sparkSession, tables=tables, **settings)

    def __dir__(self) -> Iterable[str]:
        return [name for name in super().__dir__() if not name.startswith("_")]


watch()
DataFrame.millrace = property(Accessor)  # type: ignore[attr-defined]  # the parent of both kinds
