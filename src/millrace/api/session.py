"""``millrace.sql`` and its kin, and the session that holds what their calls would repeat."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pyspark.errors import AnalysisException
from pyspark.sql.types import StructType

from millrace.api.arguments import Args, formatted, parameters
from millrace.api.joining import Condition, Side, build_join
from millrace.api.predicates import where
from millrace.api.query import Query
from millrace.api.samples import estimate_predicates
from millrace.errors import InputError, MillraceError, QueryError, UnsupportedType
from millrace.lookups.declared import schema_of
from millrace.lookups.table import LookupTable, table_of
from millrace.options import Options, StorageOptions
from millrace.spark.frames import remember
from millrace.spark.session import alive, internal_query, session_of
from millrace.spark.types import arrow_schema
from millrace.sql.blocks.predicates import Calls
from millrace.sql.planner import plan_cache
from millrace.sql.planner.planner import Planner
from millrace.sql.session.functions import Predicates, by_name
from millrace.sql.session.tables import Tables, check_tables
from millrace.sql.syntax.parse import Statement, parse

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from millrace.api.hub import Hub
    from millrace.lookups.source import Source
    from millrace.spark.predicates import Predicate
    from millrace.sql.plan import Plan
    from millrace.streams.hub.delivery import Sink


class Session:
    """A Spark session with tables, predicates and options that its queries share.

    >>> tables = {"orders": "orders.parquet", "customer": customers}  # doctest: +SKIP
    >>> shop = millrace.Session(spark, tables)  # doctest: +SKIP
    >>> shop.sql("SELECT … FROM orders JOIN customer ON …").show()  # doctest: +SKIP

    Args:
        spark: The session; by default that of a DataFrame among the tables, the active one, or a new one.
        tables: As for :func:`millrace.sql`, for all queries.
        predicates: As for :func:`millrace.sql`, for all queries.
        options: Settings of all runs.

    Raises:
        MillraceError: A table, predicate or option cannot be used.
    """

    def __init__(
        self,
        spark: SparkSession | None = None,
        tables: Tables | None = None,
        predicates: Predicates | None = None,
        options: Options | dict[str, Any] | None = None,
    ) -> None:
        check_tables(tables)
        self._spark = spark
        self._tables = dict(tables or {})
        self._predicates = by_name(predicates)
        self._options = Options.of(options)

    @property
    def spark(self) -> SparkSession:
        """Spark's session."""
        self._spark = session_of(self._spark, self._tables)
        return self._spark

    def sql(
        self,
        query: str,
        args: Args | None = None,
        *,
        tables: Tables | None = None,
        predicates: Predicates | None = None,
        options: Options | dict[str, Any] | None = None,
        **values: Any,
    ) -> DataFrame:
        """Return the answer of a query as a DataFrame; see :func:`millrace.sql`.

        Tables, predicates and options are used beside those of the session, and before them.
        """
        return self.query(query, args, tables=tables, predicates=predicates, options=options, **values).df

    def query(
        self,
        query: str,
        args: Args | None = None,
        *,
        tables: Tables | None = None,
        predicates: Predicates | None = None,
        options: Options | dict[str, Any] | None = None,
        **values: Any,
    ) -> Query:
        """Return a query with its DataFrame, its explanation and its report; see :func:`millrace.query`."""
        check_tables(tables)
        settings = self._options.updated(options)
        text, own = formatted(query, values, self._spark)
        merged = _merged(self._tables, {**(tables or {}), **own})
        named = self._predicates | by_name(predicates)
        plan = partial(
            prepare, spark=self._spark, tables=merged, options=settings, args=args, judge=self._judge
        )
        made = plan(text, predicates=named)
        if named:
            # A query is what was planned; this is how to plan another like it.
            run = partial(estimate_predicates, text, named, lambda rest: plan(rest, predicates={}).df)
            object.__setattr__(made, "_estimating", run)
        return made

    def _judge(self, plan: Plan) -> None:
        """Raise for a plan that Spark is to run."""

    def where(
        self,
        df: DataFrame,
        *predicates: object,
        policy: Any = None,
        options: Options | dict[str, Any] | None = None,
    ) -> DataFrame:
        """Return the rows of a DataFrame that pass every predicate; see :func:`millrace.where`."""
        return where(df, *predicates, policy=policy, options=self._options.updated(options))

    def join(
        self,
        *relations: object,
        on: Condition | Iterable[Condition] = (),
        where: Side | Iterable[Side] = (),
        how: str = "inner",
        select: str | Iterable[str] | None = None,
        predicates: Predicates | None = None,
        options: Options | dict[str, Any] | None = None,
    ) -> DataFrame:
        """Return the join of several relations; see :func:`millrace.join`."""
        given = [each for r in relations for each in (r.values() if isinstance(r, Mapping) else [r])]
        spark = session_of(
            self._spark, {str(n): each for n, each in enumerate([*given, *self._tables.values()])}
        )
        with internal_query():
            storage = StorageOptions.of(self._options.updated(options).storage_options)
            made = build_join(spark, self._tables, relations, on, where, how, select, storage)
        query = Session(spark, self._tables, None, self._options).query(
            made.text, tables=made.tables, predicates=self._predicates | by_name(predicates), options=options
        )
        frame = made.filter_result(query.df)
        return remember(frame, query, query.runs, made.text)

    def hub(
        self,
        on: str,
        checkpoint: str | Path,
        *,
        streams: Mapping[str, DataFrame] | None = None,
        sinks: Mapping[str, Sink] | None = None,
        options: Options | dict[str, Any] | None = None,
    ) -> Hub:
        """Return a hub: many standing queries over one join of streams, run by one eddy for all of them.

        >>> shop = millrace.Session(spark, tables={"orders": orders, "payments": payments})  # doctest: +SKIP
        >>> hub = shop.hub(  # doctest: +SKIP
        ...     "orders o JOIN payments p ON o.id = p.id AND p.t BETWEEN o.t AND o.t + INTERVAL 1 HOUR",
        ...     checkpoint="hub",
        ... )
        >>> hub.add("large", "o.id, p.amount", "o.total > 1000", sink="large")  # doctest: +SKIP
        >>> hub.start()  # doctest: +SKIP
        >>> hub.add("late", "o.id", "o.region IN (3, 5)", sink=print, since="window")  # doctest: +SKIP

        Each query has the rows of ``SELECT select FROM on WHERE where`` run by :meth:`sql` alone. As in CACQ
        (Madden et al. 2002) the queries' conditions are grouped filters, tuples carry a bit for each query
        that may still want them, and all queries share the join's state; as in PSoup (Chandrasekaran &
        Franklin 2002) a new query may ask for what the window has. The session's state store has to be
        RocksDB, as for :meth:`sql` over streams.

        Args:
            on: The join that all queries share, as behind FROM: equalities, and ranges of event time.
            checkpoint: A folder for the queries and for Spark's checkpoint, which may be in an object store
                under the name that Spark has for it (``s3a://bucket/hub``); one that has a hub is gone on
                with. Queries are added and removed by one process.
            streams: Streaming DataFrames with watermarks, by name, beside the session's tables, and before
                them.
            sinks: Functions for queries that are there from before and give their rows to one, by name. Where
                a query has gone and another has its name, the function is the other's.
            options: Settings of the run, beside the session's, and before them.

        Raises:
            MillraceError: The join is none that an eddy runs as a whole, or the folder has another one.
            pyspark.errors.AnalysisException: Spark refuses it.
        """
        from millrace.api.hub import Hub

        check_tables(streams)
        tables = _merged(self._tables, streams or {})
        settings = self._options.updated(options)
        return Hub(session_of(self._spark, tables), tables, on, checkpoint, sinks or {}, settings)

    def lookup(self, name: str, schema: Any, bind: Any, via: Any, **settings: Any) -> LookupTable:
        """Declare a lookup table and keep it among the session's tables; see :func:`millrace.lookup`."""
        table = lookup(name, schema, bind, via, **settings)
        self._tables = _merged(self._tables, {name: table})
        return table


def sql(
    query: str,
    args: Args | None = None,
    *,
    spark: SparkSession | None = None,
    tables: Tables | None = None,
    options: Options | dict[str, Any] | None = None,
    predicates: Predicates | None = None,
    **values: Any,
) -> DataFrame:
    """Return the answer of a query as a DataFrame, its inner joins executed by eddies.

    >>> millrace.sql("SELECT … FROM {orders} o JOIN {people} p ON …", orders=df, people=df2)  # doctest: +SKIP

    Its writers, and those of what is derived from it, raise :class:`millrace.errors.InputError` where they
    would overwrite files that tasks read: Spark empties a folder before they do.

    Args:
        query: Any SELECT that Spark SQL accepts; set operations and WITH are fine.
        args: Values of the query's parameters: a dictionary for ``:name``, a list for ``?``.
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
        values: What stands for ``{name}`` in the text, as in PySpark's ``sql``: DataFrames, lookup tables
            too, are tables, ``{df.a}`` and ``{df[a]}`` columns of theirs; a string is a literal; anything
            else is written as ``str`` writes it. Where there are some, ``{{`` is a brace of SQL's own. Each
            has to stand in the text. None can have a name of the other arguments.

    Raises:
        MillraceError: A table, file, column, predicate, value or option cannot be used, or the query is no
            SELECT.
        pyspark.errors.AnalysisException: Spark refuses the query.
    """
    session = Session(spark)
    return session.sql(query, args, tables=tables, options=options, predicates=predicates, **values)


def query(
    query: str,
    args: Args | None = None,
    *,
    spark: SparkSession | None = None,
    tables: Tables | None = None,
    options: Options | dict[str, Any] | None = None,
    predicates: Predicates | None = None,
    **values: Any,
) -> Query:
    """Return the query with its ``df``, ``explain()`` and, after a run, ``report()``.

    Takes and raises what :func:`sql` does.
    """
    session = Session(spark)
    return session.query(query, args, tables=tables, options=options, predicates=predicates, **values)


def join(
    *relations: Any,
    on: Condition | Iterable[Condition] = (),
    where: Side | Iterable[Side] = (),
    how: str = "inner",
    select: str | Iterable[str] | None = None,
    spark: SparkSession | None = None,
    options: Options | dict[str, Any] | None = None,
    predicates: Predicates | None = None,
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
    return Session(spark).join(
        *relations, on=on, where=where, how=how, select=select, options=options, predicates=predicates
    )


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
    between: Sequence[str] | None = None,
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
    several indexes, the table is a set: equal rows from several of them are one, and no index may return a
    row twice.

    Args:
        name: What plans, reports and errors call it.
        schema: Its columns: Spark's DDL, an Arrow schema or a ``StructType``.
        bind: The columns whose values are sent; or several lists of them, one for each index. They may
            be integers, strings, booleans, decimals, dates and timestamps.
        via: What is asked: :func:`http`, :func:`database` or :func:`function`; a list gives each index
            its own.
        scan: A path of Parquet data, a DataFrame, or a source that can return all rows; or several of
            these, of which at most one is a path or DataFrame. It is read while the indexes are asked, a
            source once a job.
        on_error: What becomes of a key for which asking fails, after the source's retries: ``"fail"``
            fails the query, ``"skip"`` gives it no rows, ``"null"`` one row with nulls beside the key.
        cache: A folder, or a file that ends in ``.sqlite``, in which answers outlive the run.
        ttl: Seconds for which they do; None for ever.
        between: A column of which an interval is sent, in a list; an integer, date or timestamp. A query
            gives both ends by BETWEEN or comparisons in its type. Sources get them behind the bind columns
            (``{t.low}`` and ``{t.high}`` in templates), and return the rows from one to the other, these
            included. ``bind`` may be empty then.

    Raises:
        InputError: A column, source or scan cannot be used.
        OptionError: A setting is out of range.
    """
    if isinstance(schema, StructType):
        try:
            schema = arrow_schema(schema)
        except UnsupportedType as error:
            raise InputError(f"lookup table {name!r}: {error}") from None
    return table_of(name, schema_of(name, schema), bind, via, scan, on_error, cache, ttl, between)


def _merged(shared: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Return tables of a session and of a query; the query's hide those of the same name."""
    hidden = {name.lower() for name in own}
    return {name: each for name, each in shared.items() if name.lower() not in hidden} | dict(own)


def prepare(
    query: str,
    spark: SparkSession | None,
    tables: Tables,
    options: Options,
    predicates: Mapping[str, Predicate],
    args: Args | None,
    judge: Callable[[Plan], None],
) -> Query:
    """Return a query, ready to run; errors come without the frames and the log records of planning."""
    try:
        with internal_query():
            values = parameters(args)
            key = None if predicates else plan_cache.key_of(query, values, tables, options)
            statement = None
            if not plan_cache.is_known(key):
                statement = _parsed(query, predicates, args)  # before a session is made
                called = {name for _, name in statement.functions}
                predicates = {name: each for name, each in predicates.items() if name in called}
            session = alive(session_of(spark, tables))
            with closing(Planner(session, options, tables, predicates, values, judge)) as planner:
                own = plan_cache.find(key, planner.catalog)
                if own is not None:
                    prepared = own.prepared
                else:
                    prepared = planner.query(statement or _parsed(query, predicates, args))
                    prepared = replace(prepared, text=query)
                    own = plan_cache.keep(key, prepared, planner.catalog, lambda: planner.analysis)
                handle = Query(**vars(prepared))
                made = handle if own is None else Query(**vars(own.lend()))
                remember(made.df, handle, made.runs, query)
                return made
    except (MillraceError, AnalysisException) as error:
        raise error.with_traceback(None) from error.__cause__


def _parsed(query: str, predicates: Mapping[str, Predicate], args: Args | None) -> Statement:
    """Return a query's syntax, its calls and parameters checked."""
    statement = parse(query, predicates)
    Calls(statement, predicates)
    if isinstance(args, list) and len(args) < len(statement.parameters):
        raise QueryError(
            f"the query has {len(statement.parameters)} parameters (?), args have {len(args)}: expected one "
            "for each"
        )
    return statement
