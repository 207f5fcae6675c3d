"""``millrace.sql`` and its kin, and the session that holds what their calls would repeat."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from millrace.api.estimating import estimate_of
from millrace.api.joining import Condition, Side, joining
from millrace.api.progress import by_default
from millrace.api.query import Query
from millrace.errors import InputError, MillraceError, QueryError, UnsupportedType
from millrace.lookups.declared import lookup as declare
from millrace.options import Options, StorageOptions
from millrace.spark.filter import where
from millrace.spark.handles import remember
from millrace.spark.patches import watch
from millrace.spark.session import alive, own_work
from millrace.spark.types import arrow_schema
from millrace.sql import kept
from millrace.sql.calls import Calls
from millrace.sql.functions import Predicates, by_name
from millrace.sql.parse import PARAMETER, Statement, parse
from millrace.sql.pipeline import Pipeline
from millrace.sql.tables import Tables, check_tables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from millrace.lookups.table import LookupTable
    from millrace.spark.predicates import Predicate

by_default()  # before there is a DataFrame to run

Args = Mapping[str, Any] | list[Any]


class Session:
    """A Spark session with tables, predicates and options that its queries share.

    >>> shop = millrace.Session(spark, tables={"orders": "orders.parquet", "customer": customers})  # doctest:
    +SKIP
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
    ) -> DataFrame:
        """Return the answer of a query as a DataFrame; see :func:`millrace.sql`.

        Tables, predicates and options are used beside those of the session, and before them.
        """
        return self.query(query, args, tables=tables, predicates=predicates, options=options).df

    def query(
        self,
        query: str,
        args: Args | None = None,
        *,
        tables: Tables | None = None,
        predicates: Predicates | None = None,
        options: Options | dict[str, Any] | None = None,
    ) -> Query:
        """Return a query with its DataFrame, its explanation and its report; see :func:`millrace.query`."""
        check_tables(tables)
        settings = self._options.updated(options)
        merged = _merged(self._tables, tables or {})
        named = self._predicates | by_name(predicates)
        made = prepare(query, self._spark, merged, settings, named, args)
        if named:

            def run(text: str) -> DataFrame:
                return prepare(text, self._spark, merged, settings, {}, args).df

            # A query is what was planned; this is how to plan another like it.
            object.__setattr__(made, "_estimating", partial(estimate_of, query, named, run))
        return made

    def where(
        self,
        df: DataFrame,
        *predicates: object,
        policy: str | None = None,
        options: Options | dict[str, Any] | None = None,
    ) -> DataFrame:
        """Return the rows of a DataFrame that pass every predicate; see :func:`millrace.where`."""
        watch()  # a session on Spark Connect may have come since
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
        with own_work():
            made = joining(
                spark,
                self._tables,
                relations,
                on,
                where,
                how,
                select,
                StorageOptions.of(self._options.updated(options).storage_options),
            )
        query = Session(spark, self._tables, None, self._options).query(
            made.text, tables=made.tables, predicates=self._predicates | by_name(predicates), options=options
        )
        frame = made.kept(query.df)
        return remember(frame, query, query.runs, made.text)

    def lookup(self, name: str, schema: Any, bind: Any, via: Any, **settings: Any) -> LookupTable:
        """Declare a lookup table and keep it among the session's tables; see :func:`millrace.lookup`."""
        table = lookup(name, schema, bind, via, **settings)
        self._tables = _merged(self._tables, {name: table})
        return table


def lookup(name: str, schema: Any, bind: Any, via: Any, **settings: Any) -> LookupTable:
    """Declare a lookup table; see :func:`millrace.lookup`."""
    if isinstance(schema, StructType):
        try:
            schema = arrow_schema(schema)
        except UnsupportedType as error:
            raise InputError(f"lookup table {name!r}: {error}") from None
    return declare(name, schema, bind, via, **settings)


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
) -> Query:
    """Return a query, ready to run; errors come without the frames and the log records of planning."""
    try:
        with own_work():
            return _prepare(query, spark, tables, options, predicates, args)
    except (MillraceError, AnalysisException) as error:
        raise error.with_traceback(None) from error.__cause__


def _prepare(
    query: str,
    spark: SparkSession | None,
    tables: Tables,
    options: Options,
    predicates: Mapping[str, Predicate],
    args: Args | None,
) -> Query:
    parameters = _parameters(args)
    key = None if predicates else kept.key_of(query, parameters, tables, options)
    statement = None
    if not kept.is_known(key):
        statement = _parsed(query, predicates, args)  # before a session is made
    session = alive(session_of(spark, tables))
    with closing(Pipeline(session, options, tables, predicates, parameters)) as pipeline:
        own = kept.find(key, pipeline.catalog)
        if own is not None:
            prepared = own.prepared
        else:
            prepared = pipeline.query(statement or _parsed(query, predicates, args))
            own = kept.keep(key, prepared, pipeline.catalog, pipeline.understood)
        handle = Query(**vars(prepared))
        made = handle if own is None else Query(**vars(own.lend()))
        remember(made.df, handle, made.runs, query)
        return made


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


def _parameters(args: Args | None) -> dict[str, Any]:
    """Return a query's parameters by name; those without one get names of ours."""
    if args is None:
        args = {}
    if isinstance(args, Mapping):
        return dict(args)
    if not isinstance(args, list):
        raise QueryError(
            f"args are given as {type(args).__name__}: expected a dictionary for parameters with names "
            "(:low), a list for those without (?)"
        )
    return {f"{PARAMETER}{number}": value for number, value in enumerate(args)}


def session_of(spark: Any, tables: Mapping[Any, Any]) -> SparkSession:
    """Return the session given, that of a DataFrame among the tables, the active one, or a new one."""
    if spark is None:
        frames = [each for each in tables.values() if hasattr(each, "sparkSession")]
        found = frames[0].sparkSession if frames else SparkSession.getActiveSession()
        return found or _new_session()
    if not hasattr(spark, "sql") or not hasattr(spark, "conf"):
        raise InputError(
            f"spark is given as {type(spark).__name__}: expected a SparkSession; tables and options go by "
            "name, such as tables={'orders': 'orders.parquet'}"
        )
    session: SparkSession = spark
    return session


def _new_session() -> SparkSession:
    """Make a session whose workers run this Python: the one on the PATH may lack what they need."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    return SparkSession.builder.getOrCreate()
