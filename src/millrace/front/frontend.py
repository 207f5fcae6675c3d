"""``millrace.sql``: a query in, a DataFrame out, its inner joins run by eddies.

The query goes through small steps: parse, bind its tables, let Spark analyse it as written, take
blocks and filters from inner to outer SELECTs, let Spark analyse the rewritten text, compare both results'
types. Spark's analysis of the query as written comes first, so that a wrong query raises exactly
what ``spark.sql`` raises, and it is what runs when anything about the rewriting does not fit.
"""

# ruff: noqa: S608  # SQL is what this module writes

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession

from millrace.errors import QueryError
from millrace.front.calls import Calls
from millrace.front.functions import Functions, Predicates, by_name
from millrace.front.parse import parse
from millrace.front.preparation import Preparation
from millrace.front.prepared import Query
from millrace.front.texts import plain_quote
from millrace.options import Options
from millrace.spark.handles import remember

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from millrace.lookups.table import LookupTable

__all__ = ["Query", "join", "query", "sql"]

Tables = Mapping[str, "str | Path | DataFrame | LookupTable"]


def sql(
    query: str,
    spark: SparkSession | None = None,
    tables: Tables | None = None,
    options: Options | dict[str, Any] | None = None,
    predicates: Predicates | None = None,
) -> DataFrame:
    """Return the answer of a query as a DataFrame: the rows that ``spark.sql`` returns.

    Args:
        query: A SELECT in Spark's SQL (set operations and WITH are fine).
        spark: The session; None takes the active one, or makes one.
        tables: Names to use in the query, each for a path to Parquet files (a file, a folder, a
            glob), a DataFrame, or a lookup table. Other names are looked up in the session's catalog.
        options: Settings of the run.
        predicates: Functions that the query may call by name, as ``{name: predicate}`` or as several
            predicates with names of their own. A predicate is what ``@millrace.predicate`` or PySpark's
            ``udf``, ``pandas_udf`` or ``arrow_udf`` returns, the latter three with type boolean.

    Raises:
        QueryError: The text is not a query, or a predicate's name cannot stand in one.
        InputError: A path in ``tables`` cannot be read, or the session has a function of a predicate's
            name.
        OptionError: An option is unknown or out of range.
        PredicateError: Something in ``predicates`` is none, or is called with arguments it does not take.
        pyspark.errors.AnalysisException: Spark refuses the query.
    """
    prepared = prepare(query, spark, tables, options, predicates)
    return remember(prepared.df, prepared)


def prepare(
    query: str,
    spark: SparkSession | None = None,
    tables: Tables | None = None,
    options: Options | dict[str, Any] | None = None,
    predicates: Predicates | None = None,
) -> Query:
    """Return a query with its DataFrame, its explanation and its report; see :func:`sql`."""
    settings = Options.of(options)
    named = by_name(predicates)
    statement = parse(query, named)
    Calls(statement, named)  # wrong calls are told before a session is made
    session = spark or SparkSession.getActiveSession() or _new_session()
    functions = Functions(session, settings, named)
    try:
        return Preparation(session, settings, tables, named, functions).query(statement)
    finally:
        functions.close()


query = prepare


def _new_session() -> SparkSession:
    """Make a session whose workers run this Python: the one on the PATH may lack what they need."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    return SparkSession.builder.getOrCreate()


def join(
    relations: Tables,
    on: Iterable[str] = (),
    where: Iterable[str] = (),
    select: Iterable[str] = ("*",),
    spark: SparkSession | None = None,
    options: Options | dict[str, Any] | None = None,
    predicates: Predicates | None = None,
) -> DataFrame:
    """Join relations by conditions, without writing the query.

    Args:
        relations: Name to path or DataFrame, as ``tables`` of :func:`sql`.
        on: Conditions that join, such as ``"c.k = o.k"``.
        where: Further conditions.
        select: Result columns or expressions; everything by default.
        spark: As for :func:`sql`.
        options: As for :func:`sql`.
        predicates: As for :func:`sql`.

    Raises:
        QueryError: There is no relation, or an argument is one string instead of several.
    """
    if not relations:
        raise QueryError("join needs at least one relation: expected {name: path or DataFrame}")
    texts = {"on": on, "where": where, "select": select}
    for name, given in texts.items():
        if isinstance(given, str):
            raise QueryError(f"join's {name} is one string: expected a list of strings, such as [{given!r}]")
    names = [plain_quote(name) for name in relations]
    text = f"SELECT {', '.join(select) or '*'} FROM {', '.join(names)}"
    conditions = [f"({condition})" for condition in (*on, *where)]
    if conditions:
        text += f" WHERE {' AND '.join(conditions)}"
    return sql(text, spark, relations, options, predicates)
