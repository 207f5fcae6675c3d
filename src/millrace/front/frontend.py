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
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession, types as t
from sqlglot import exp

from millrace.errors import QueryError
from millrace.front.blocks import take_blocks
from millrace.front.calls import Calls
from millrace.front.constants import Constants
from millrace.front.context import Context, Filter
from millrace.front.filters import take_filter
from millrace.front.functions import Functions, Predicates, by_name
from millrace.front.names import Resolver, build_scopes
from millrace.front.parse import Statement, parse
from millrace.front.prepared import Query
from millrace.front.tables import Catalog, Table
from millrace.front.texts import EditedText, Frames, escape, plain_quote, quote
from millrace.options import Options
from millrace.spark.handles import remember

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["Query", "join", "query", "sql"]

Tables = Mapping[str, "str | Path | DataFrame"]


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
            glob) or a DataFrame. Other names are looked up in the session's catalog.
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
    calls = Calls(statement, named)
    session = spark or SparkSession.getActiveSession() or _new_session()
    functions = Functions(session, settings, named)
    try:
        return _prepare(session, tables, settings, statement, calls, functions)
    finally:
        functions.close()


def _prepare(
    session: SparkSession,
    tables: Tables | None,
    settings: Options,
    statement: Statement,
    calls: Calls,
    functions: Functions,
) -> Query:
    frames = Frames(session)
    catalog = Catalog(frames, tables)
    if statement.root is None:
        return _left(frames, catalog, statement, statement.why)
    text = EditedText(statement.text)
    try:
        selects, scopes = build_scopes(statement.root, lambda node: _bind(node, catalog, statement, text))
    except RecursionError:
        return _left(frames, catalog, statement, "the query is nested too deeply")
    original = _Original(frames, catalog, text.original())
    joins = any(len(scope.sources) > 1 for scope in scopes.values())
    reason = _session_bars(session, statement.text)
    if reason is None and not joins and not calls.found:
        reason = "no FROM clause joins two relations"
    if reason is not None:
        return _spark_only(original.frame, statement, [reason])
    schema = original.schema()
    resolver = Resolver(scopes)

    def text_of(node: exp.Expr) -> str | None:
        return text.bound(*statement.span(node)) if statement.has_span(node) else None

    context = Context(
        session,
        settings,
        statement,
        text,
        frames,
        catalog,
        resolver,
        Constants(frames, text_of),
        calls,
        functions,
        str(session.conf.get("spark.sql.ansi.enabled", "true")).lower() == "true",
    )
    for select in selects:
        placed = take_blocks(context, select)
        take_filter(context, select, placed)
    context.reasons += calls.reasons()
    if not joins and not context.filters:
        context.reasons.append("no FROM clause joins two relations")
    called = {node.name.lower() for node in calls.left()}
    anywhere = [Filter(name, (), mask) for name, mask in functions.masks.items() if name in called]
    if not context.taken and not context.filters:
        return _spark_only(original.frame, statement, context.reasons, anywhere)
    context.filters += anywhere
    return _checked(context, original, schema)


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


def _bind(node: exp.Table, catalog: Catalog, statement: Statement, text: EditedText) -> Callable[[], Table]:
    """Put the placeholder of a caller's table into the text; return how to look a table up."""
    table = catalog.mapped(tuple(part.name for part in node.parts))
    if table is None:
        return lambda: catalog.stored(node)
    parts = node.parts
    start, end = parts[0].meta["start"], parts[-1].meta["end"] + 1
    name = "" if node.alias else f" AS {quote(parts[-1].name)}"
    if node.args.get("sample") and name:
        text.bind(start, end, f"{table.placeholder}")
        behind = statement.span(node)[1]
        text.bind(behind, behind, name)
    else:
        text.bind(start, end, f"{table.placeholder}{name}")
    return lambda: table


def _session_bars(session: SparkSession, text: str) -> str | None:
    """Return why this session's settings keep the whole query with Spark, or None."""

    def on(key: str) -> bool:
        return str(session.conf.get(key, "false")).lower() == "true"

    if on("spark.sql.caseSensitive"):
        return "spark.sql.caseSensitive is true"
    if '"' in text and on("spark.sql.ansi.doubleQuotedIdentifiers"):
        return "spark.sql.ansi.doubleQuotedIdentifiers is true"
    return None


def _left(frames: Frames, catalog: Catalog, statement: Statement, why: str) -> Query:
    """Give a query that was not read to Spark, with the caller's tables in a WITH clause."""
    parts = []
    for name in catalog.given:
        if name.lower() in statement.text.lower():
            table = catalog.mapped((name,))
            assert table is not None
            parts.append(f"{quote(name)} AS (SELECT * FROM {table.placeholder})")
    if not parts:
        return _spark_only(frames.spark.sql(statement.text), statement, [why])
    rest = statement.text.lstrip()
    if rest[:4].upper() == "WITH" and not rest[4:5].isalnum():
        text = f"WITH {', '.join(parts)}, {escape(rest[4:])}"
    else:
        text = f"WITH {', '.join(parts)} {escape(statement.text)}"
    return _spark_only(frames.sql(text), statement, [why])


def _spark_only(
    frame: DataFrame, statement: Statement, reasons: list[str], filters: Iterable[Filter] = ()
) -> Query:
    return Query(frame, (), reasons, statement.text, lambda: _plan(frame), tuple(filters))


class _Original:
    """The query as written. Only what is needed of it is made."""

    def __init__(self, frames: Frames, catalog: Catalog, template: str) -> None:
        self._frames = frames
        self._catalog = catalog
        self._template = template

    @cached_property
    def frame(self) -> DataFrame:
        """Its DataFrame; Spark's errors come out unchanged."""
        return self._frames.sql(self._template)

    def schema(self) -> t.StructType:
        """Return the schema of its result; Spark's errors come out unchanged."""
        template = self._catalog.stand_ins(self._template)
        if template is not None and template != self._template:
            try:
                return self._frames.sql(template).schema
            except PySparkException:
                pass  # the tables themselves may have more (``_metadata``), and give the right message
        return self.frame.schema


def _checked(context: Context, original: _Original, schema: t.StructType) -> Query:
    """Return the rewritten query if its result has the original's columns, else the original."""
    template = context.text.render()
    try:
        frame = context.frames.sql(template)
        seen = frame.schema
    except PySparkException as error:
        why = "the rewritten query does not fit (" + str(error).split("\n", 1)[0] + ")"
        return _spark_only(original.frame, context.statement, [*context.reasons, why])
    if len(seen) != len(schema) or any(
        _type(a) != _type(b) for a, b in zip(seen.fields, schema.fields, strict=True)
    ):
        why = f"the rewritten query has other columns ({seen.simpleString()} for {schema.simpleString()})"
        return _spark_only(original.frame, context.statement, [*context.reasons, why])
    if seen.names != schema.names:
        frame = frame.toDF(*schema.names)
    text = template.replace("{{", "{").replace("}}", "}")
    return Query(
        frame,
        tuple(context.taken),
        context.reasons,
        text,
        lambda: _plan(frame),
        tuple(context.filters),
    )


def _type(field: t.StructField) -> str:
    """Return a column's type without nullability."""
    return field.dataType.simpleString()


def _plan(frame: DataFrame) -> str:
    """Return Spark's physical plan, by the public EXPLAIN statement."""
    frames = Frames(frame.sparkSession)
    return str(frames.sql(f"EXPLAIN SELECT * FROM {frames.place(frame, 'q')}").collect()[0][0])
