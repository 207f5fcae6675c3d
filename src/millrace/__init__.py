"""Millrace: joins on Spark through eddies.

>>> import millrace
>>> millrace.sql("SELECT …", tables={"orders": "orders.parquet"}).show()  # doctest: +SKIP

The functions load Spark and the SQL front when they are first called, so that the engine inside
Spark's Python workers starts without them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from millrace.errors import MillraceError
from millrace.options import Options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from millrace.front.prepared import Query

__version__ = "0.1.0"
__all__ = ["MillraceError", "Options", "__version__", "join", "query", "sql"]


def sql(
    query: str,
    spark: SparkSession | None = None,
    tables: Mapping[str, str | Path | DataFrame] | None = None,
    options: Options | dict[str, Any] | None = None,
) -> DataFrame:
    """Return the answer of a query as a DataFrame, its inner joins executed by eddies.

    Args:
        query: Any SELECT that Spark SQL accepts; set operations and WITH are fine.
        spark: The session; by default the active one, or a new one.
        tables: Names that the query uses, each a path of Parquet data (a file, a folder, a glob)
            or a DataFrame. Other names are looked up in the session's catalog and views.
        options: Settings of the run.

    Raises:
        MillraceError: A table, file, column or option cannot be used, or the query is no SELECT.
        pyspark.errors.AnalysisException: Spark refuses the query.
    """
    from millrace.front.frontend import sql as run

    return run(query, spark, tables, options)


def query(
    query: str,
    spark: SparkSession | None = None,
    tables: Mapping[str, str | Path | DataFrame] | None = None,
    options: Options | dict[str, Any] | None = None,
) -> Query:
    """Return the query with its ``df``, ``explain()`` and, after a run, ``report()``.

    Takes and raises what :func:`sql` does.
    """
    from millrace.front.frontend import query as make

    return make(query, spark, tables, options)


def join(
    relations: Mapping[str, str | Path | DataFrame],
    on: Iterable[str] = (),
    where: Iterable[str] = (),
    select: Iterable[str] = ("*",),
    spark: SparkSession | None = None,
    options: Options | dict[str, Any] | None = None,
) -> DataFrame:
    """Return the inner join of several relations, without writing the query.

    >>> millrace.join({"c": df, "o": "orders.parquet"}, on=["c.k = o.k"])  # doctest: +SKIP

    Args:
        relations: Alias of each relation, and its Parquet path or DataFrame.
        on: Join conditions in SQL, over the aliases; all must hold.
        where: Further conditions in SQL.
        select: Result columns in SQL; all columns by default.
        spark: The session; by default the active one, or a new one.
        options: Settings of the run.

    Raises:
        MillraceError: As :func:`sql`.
    """
    from millrace.front.frontend import join as run

    return run(relations, on, where, select, spark, options)
