"""Millrace: joins, lookups and expensive predicates on Spark through eddies.

>>> import millrace
>>> millrace.sql("SELECT …", tables={"orders": "orders.parquet"}).show()  # doctest: +SKIP

The functions load Spark and the SQL front when they are first called, so that the engine inside
Spark's Python workers starts without them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from millrace.errors import MillraceError
from millrace.options import Options

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from millrace.api.enabling import Enabled
    from millrace.api.hub import hub
    from millrace.api.joining import Condition, Side
    from millrace.api.live import live
    from millrace.api.llm import llm_filter, llm_lookup
    from millrace.api.predicates import cascade, estimate, filter, predicate, where  # noqa: A004
    from millrace.api.query import Query
    from millrace.api.session import Session
    from millrace.api.streams import feed, stream_log, stream_report, watch_streams
    from millrace.limits.progress import LookupProgress
    from millrace.lookups.database import database
    from millrace.lookups.function import function
    from millrace.lookups.http import http
    from millrace.lookups.source import Source
    from millrace.lookups.table import LookupTable
    from millrace.reports.comparison import Comparison
    from millrace.reports.explanation import Explanation
    from millrace.reports.run_report import RunReport
    from millrace.spark.plans import Mode

__version__ = "0.1.0"
__all__ = [
    "MillraceError",
    "Options",
    "Session",
    "__version__",
    "cascade",
    "compare",
    "database",
    "enable",
    "estimate",
    "explain",
    "failed_keys",
    "feed",
    "filter",
    "function",
    "http",
    "hub",
    "join",
    "live",
    "llm_filter",
    "llm_lookup",
    "lookup",
    "lookup_progress",
    "predicate",
    "progress",
    "query",
    "report",
    "sql",
    "stream_log",
    "stream_report",
    "stream_results",
    "watch_streams",
    "where",
]

import_module("millrace.sql")  # loaded before the function of its name, which has the name from then on

Tables = Mapping[str, "str | Path | DataFrame | LookupTable"]
_LATER = {name: f"millrace.lookups.{name}" for name in ("database", "function", "http")}
_LATER |= dict.fromkeys(("cascade", "estimate", "filter", "predicate", "where"), "millrace.api.predicates")
_LATER |= dict.fromkeys(("llm_filter", "llm_lookup"), "millrace.api.llm")
_LATER |= dict.fromkeys(("feed", "stream_log", "stream_report", "watch_streams"), "millrace.api.streams")
_LATER["Session"] = "millrace.api.session"
_LATER |= {"hub": "millrace.api.hub", "live": "millrace.api.live"}
# What takes functions that are applied to columns, which has to be seen from now on.
_WATCHING = ("Session", "cascade", "estimate", "filter", "predicate", "where")


def __getattr__(name: str) -> Any:
    """Load what needs Spark, or a client of something, when it is first used."""
    if name in _WATCHING:
        import_module("millrace.spark.patches").watch()
    if name in _LATER:
        return getattr(import_module(_LATER[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def enable(
    spark: SparkSession | None = None,
    options: Options | dict[str, Any] | None = None,
    predicates: Mapping[str, object] | Iterable[object] | None = None,
) -> Enabled:
    """Let a session's own ``sql``, ``filter``, ``where`` and ``join`` go through Millrace where it pays.

    >>> with millrace.enable(spark):  # doctest: +SKIP
    ...     spark.sql("SELECT … FROM orders JOIN customer ON …").show()
    ...     mails.filter(is_spam("text")).filter(is_ours("text")).count()
    ...     orders.filter("status = 'open'").join(customer, orders.custkey == customer.id).count()

    Without ``with`` it holds until ``disable()`` of what it returns. Rows are Spark's in every case. Taken
    are queries of ``spark.sql``, chains of ``filter`` by functions of Python, and chains of inner joins,
    with filters by SQL text below and, without dotted names, above: joins by names of columns (one, or a
    list), and on equalities of columns (one, several with ``&``, or a list). A column there is taken of a
    DataFrame that is joined (``orders.custkey``, ``orders["custkey"]``) while the session is enabled, or is
    ``col("custkey")`` of a name that one of them has. Other comparisons stay with Spark, and so does, on
    Spark Connect, whatever is derived from a join by columns of the DataFrames that were joined
    (``orders.total``, in place of ``"total"``). A chain of joins has to keep few rows, or small ones: all
    its columns leave the tasks. :func:`explain` of a DataFrame says why it was left to Spark, and so does the
    log ``millrace``, at the level INFO. A session that is enabled several times stays so until each is over.

    Args:
        spark: The session; by default the active one, or a new one.
        options: Settings of all runs.
        predicates: As for :func:`sql`, to call in ``spark.sql``.

    Raises:
        MillraceError: An argument cannot be used.
    """
    from millrace.api.enabling import enable as enabled

    return enabled(spark, options, predicates)


def progress(spark: SparkSession | None = None, *, shown: bool | None = None) -> AbstractContextManager[None]:
    """Show a line of progress while the body runs: tasks, rows and their rate, the orders in use.

    >>> with millrace.progress():  # doctest: +SKIP
    ...     kept.write.parquet("kept")

    It stands on standard error where that is a terminal, below the cell in a notebook, and nowhere else. Rows
    are those of tasks that have ended; Spark Connect tells of tasks only.

    Args:
        spark: The session; by default the active one.
        shown: False for no line, True for one also where there is no terminal.
    """
    from millrace.api.progress import progress as watched

    return watched(spark, shown=shown)


def load_ipython_extension(shell: Any) -> None:
    """Give a notebook the magic ``%%millrace``; called by ``%load_ext millrace``."""
    from millrace.api.magic import register

    register(shell)


def explain(df: DataFrame, mode: Mode = "simple") -> Explanation:
    """Return, as text (in notebooks by parts), what Millrace does for a DataFrame, and what Spark does.

    Args:
        df: One that Millrace returned, or one derived from it.
        mode: Of Spark's plan: ``"simple"`` is the physical one, ``"extended"`` all of them, ``"cost"`` with
            Spark's estimates.

    Raises:
        MillraceError: Millrace has no part in it, or the mode is another.
    """
    from millrace.spark.handles import handle_of

    return handle_of(df).explain(mode)


def report(df: DataFrame) -> RunReport:
    """Return the figures of the latest run of a DataFrame that Millrace returned, or of one derived from it.

    Raises:
        MillraceError: Millrace has no part in it, it has not run yet, or the option ``report`` is off.
    """
    from millrace.spark.handles import handle_of, running

    return handle_of(df).report(running(df))


def compare(first: RunReport, second: RunReport) -> Comparison:
    """Return how the figures of two runs differ, for example of two settings or of two days.

    >>> print(millrace.compare(report_a, report_b))  # doctest: +SKIP
    """
    from millrace.reports.comparison import compare as compared

    return compared(first, second)


def lookup(
    name: str,
    schema: str | pa.Schema | StructType,
    bind: Sequence[str] | Sequence[Sequence[str]],
    via: Source | Sequence[Source],
    *,
    scan: object = None,
    on_error: Literal["fail", "skip", "null"] = "fail",
    cache: str | Path | None = None,
    ttl: float | None = None,
) -> LookupTable:
    """Declare a table whose rows are got by asking for keys, to be joined in :func:`sql` like any other.

    >>> prices = millrace.lookup(  # doctest: +SKIP
    ...     "prices", "sku string, price double", bind=["sku"],
    ...     via=millrace.http("https://api.example/price/{sku}", per_second=50),
    ... )
    >>> millrace.sql("SELECT … FROM orders o JOIN prices p ON o.sku = p.sku",  # doctest: +SKIP
    ...              tables={"orders": "orders.parquet", "prices": prices})

    A query gives the keys: by equalities with other relations (of inner, outer, semi and anti joins),
    by constants, or by ``IN (SELECT …)``. Each distinct key is asked once per run. With a scan, or with
    several indexes, the table is a set: equal rows from several of them are one, and none of them may
    return a row twice.

    Args:
        name: What plans, reports and errors call it.
        schema: Its columns: Spark's DDL, an Arrow schema or a ``StructType``.
        bind: The columns whose values are sent; or several lists of them, one for each index. They may
            be integers, strings, booleans, decimals, dates and timestamps.
        via: What is asked: :func:`http`, :func:`database` or :func:`function`; a list gives each index
            its own.
        scan: A path of Parquet data, a DataFrame, or a source that can return all rows; or several of
            these, of which at most one is a path or DataFrame. It is read while the indexes are asked.
        on_error: What becomes of a key for which asking fails, after the source's retries: ``"fail"``
            fails the query, ``"skip"`` gives it no rows, ``"null"`` one row with nulls beside the key.
        cache: A folder, or a file that ends in ``.sqlite``, in which answers outlive the run.
        ttl: Seconds for which they do; None for ever.

    Raises:
        InputError: A column, source or scan cannot be used.
        OptionError: A setting is out of range.
    """
    from millrace.api.session import lookup as declare

    return declare(name, schema, bind, via, scan=scan, on_error=on_error, cache=cache, ttl=ttl)


def lookup_progress(df: DataFrame) -> list[LookupProgress]:
    """Return how far the lookups of a DataFrame are that Millrace returned; at any time, also while it runs.

    Raises:
        MillraceError: Neither :func:`sql` nor :func:`join` returned it or what it is derived from.
    """
    from millrace.spark.handles import query_of

    found: list[LookupProgress] = query_of(df).lookups()
    return found


def failed_keys(df: DataFrame) -> pa.Table:
    """Return the keys that could not be looked up in the latest run of a DataFrame.

    Its columns are ``lookup``, ``key`` (the bind columns as JSON), ``error`` (what kind), ``message`` and
    ``attempts``.

    Raises:
        MillraceError: Neither :func:`sql` nor :func:`join` returned it or what it is derived from.
    """
    from millrace.spark.handles import query_of

    return query_of(df).failed_keys()


def stream_results(df: DataFrame, batch_size: int | None = None) -> Iterator[pa.RecordBatch]:
    """Run any DataFrame and yield its rows as they come, while Spark's tasks still run.

    Their order is that in which they come. Closing the iterator, or Ctrl-C, cancels the job.

    Args:
        df: One that Millrace returned, or any other.
        batch_size: Rows in a batch, at most; None leaves batches as they come.

    Raises:
        MillraceError: ``batch_size`` is out of range, or a column's type cannot be sent.
        Exception: What the job raised, once the rows that came before are given out.
    """
    from millrace.api.results import frame_stream
    from millrace.spark.handles import known_query, running

    df = running(df)
    query = known_query(df)
    return frame_stream(df, None, batch_size) if query is None else query.stream_results(batch_size)


def sql(
    query: str,
    spark: SparkSession | None = None,
    tables: Tables | None = None,
    options: Options | dict[str, Any] | None = None,
    predicates: Mapping[str, object] | Iterable[object] | None = None,
    args: Mapping[str, Any] | list[Any] | None = None,
) -> DataFrame:
    """Return the answer of a query as a DataFrame, its inner joins executed by eddies.

    Args:
        query: Any SELECT that Spark SQL accepts; set operations and WITH are fine.
        spark: The session; by default the active one, or a new one.
        tables: Names that the query uses, each a path of Parquet, CSV (with a header), JSON or ORC data (a
            file, a folder, a glob), a DataFrame, or what :func:`lookup` returns. Paths may be in object
            stores (``s3://bucket/orders``), see the option ``storage_options``. Other names are looked up in
            the session's catalog and views.
        options: Settings of the run.
        predicates: Python predicates that the query calls by name: ``{name: predicate}``, or several
            that have names of their own, as :func:`where` takes them. Conditions that are a call of
            one are run by eddies, within joins and alone; the names become temporary functions of
            the session, so that the query may call them anywhere else too.
        args: Values of the query's parameters: a dictionary for ``:name``, a list for ``?``.

    Raises:
        MillraceError: A table, file, column, predicate or option cannot be used, or the query is no
            SELECT.
        pyspark.errors.AnalysisException: Spark refuses the query.
    """
    from millrace.api.session import Session

    return Session(spark).sql(query, args, tables=tables, options=options, predicates=predicates)


def query(
    query: str,
    spark: SparkSession | None = None,
    tables: Tables | None = None,
    options: Options | dict[str, Any] | None = None,
    predicates: Mapping[str, object] | Iterable[object] | None = None,
    args: Mapping[str, Any] | list[Any] | None = None,
) -> Query:
    """Return the query with its ``df``, ``explain()`` and, after a run, ``report()``.

    Takes and raises what :func:`sql` does.
    """
    from millrace.api.session import Session

    return Session(spark).query(query, args, tables=tables, options=options, predicates=predicates)


def join(
    *relations: Any,
    on: Condition | Iterable[Condition] = (),
    where: Side | Iterable[Side] = (),
    how: str = "inner",
    select: str | Iterable[str] | None = None,
    spark: SparkSession | None = None,
    options: Options | dict[str, Any] | None = None,
    predicates: Mapping[str, object] | Iterable[object] | None = None,
) -> DataFrame:
    """Return the join of several relations, without writing the query.

    >>> millrace.join(  # doctest: +SKIP
    ...     orders, customer, "nation.parquet",
    ...     on=[("o_custkey", "c_custkey"), ("c_nationkey", "n_nationkey")],
    ...     where=customer.c_acctbal > 0,
    ... )

    Args:
        relations: DataFrames, names of tables, paths of data and lookup tables, from left to right;
            or one mapping of names to these, for conditions in SQL.
        on: What joins them: the name of a column that two of them share, which is in the result once, as in
            PySpark; a pair of columns, each a name (``"c_custkey"`` or ``"customer.c_custkey"``) or a Column
            over one relation, of any expression; or a condition in SQL over the names of a mapping.
        where: Further conditions: Columns, predicates of Python that are applied to columns, or conditions in
            SQL. What reads one relation filters that before the join; in a left, right or full join, where
            that is not the same, the result.
        how: ``"inner"``, ``"cross"``, or ``"left"``, ``"right"``, ``"full"``, ``"semi"`` and ``"anti"``,
            which Spark evaluates.
        select: Result columns in SQL; all by default.
        spark: The session; by default that of a DataFrame among the relations, the active one, or a new one.
        options: Settings of the run.
        predicates: As for :func:`sql`, to call in conditions in SQL.

    Raises:
        MillraceError: As :func:`sql`; or nothing joins the relations, or it is not clear which of them a pair
            joins.
    """
    from millrace.api.session import Session

    return Session(spark).join(
        *relations, on=on, where=where, how=how, select=select, options=options, predicates=predicates
    )
