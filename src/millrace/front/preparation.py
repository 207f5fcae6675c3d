"""One query on its way from text to DataFrame, step by step.

A lookup table has no rows for Spark to read. So an attempt that leaves one to Spark is thrown away, and in
the next one the table is replaced, in that place, by its rows for the keys that the query has
(:mod:`millrace.front.restriction`); where nothing gives keys, the query is refused.
"""

# ruff: noqa: S608  # SQL is what this module writes

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException
from pyspark.sql import types as t
from sqlglot import exp

from millrace.errors import InputError
from millrace.front.blocks import take_blocks
from millrace.front.calls import Calls
from millrace.front.constants import Constants
from millrace.front.context import Context, Filter, Taken
from millrace.front.direct import direct_of
from millrace.front.filters import take_filter
from millrace.front.names import Resolver, Scope, build_scopes
from millrace.front.parse import Statement, parse
from millrace.front.prepared import Query
from millrace.front.refusals import refusal
from millrace.front.restriction import Restriction
from millrace.front.tables import Catalog, Table
from millrace.front.texts import EditedText, Frames, escape, quote
from millrace.options import Options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from millrace.front.functions import Functions
    from millrace.lookups.table import LookupTable
    from millrace.spark.predicates import Predicate

_DEEPEST = 8


class _Untaken(Exception):
    """Lookup tables were left to Spark: their nodes, and the reasons. Never leaves this module."""

    def __init__(self, nodes: list[exp.Table], reasons: list[str]) -> None:
        super().__init__()
        self.nodes = nodes
        self.reasons = reasons


class Preparation:
    """Prepares a query, and the queries for the keys of its lookup tables.

    Args:
        session: The session.
        settings: Settings of the run.
        tables: The caller's tables.
        predicates: The caller's predicates by lower-case name.
        functions: The same as functions of the session.
    """

    def __init__(
        self,
        session: SparkSession,
        settings: Options,
        tables: Mapping[str, Any] | None,
        predicates: Mapping[str, Predicate],
        functions: Functions,
    ) -> None:
        self._session = session
        self._settings = settings
        self._predicates = predicates
        self._functions = functions
        self._frames = Frames(session)
        self._catalog = Catalog(self._frames, tables)
        self._taken: list[Taken] = []
        self._filters: list[Filter] = []
        self._depth = 0

    def query(self, statement: Statement) -> Query:
        """Return a query, ready to run.

        Raises:
            InputError: A lookup table stands where nothing gives the values to ask it with.
            pyspark.errors.AnalysisException: Spark refuses the query.
        """
        forced: dict[int, list[str]] = {}
        while True:
            marks = len(self._taken), len(self._filters)
            try:
                return self._attempt(statement, forced)
            except _Untaken as untaken:
                del self._taken[marks[0] :]
                del self._filters[marks[1] :]
                fresh = [node for node in untaken.nodes if id(node) not in forced]
                if not fresh:
                    tables = [self._declared(node) for node in untaken.nodes]
                    raise refusal(statement, untaken.nodes, tables, untaken.reasons) from None
                forced.update({id(node): untaken.reasons for node in fresh})

    def frame(self, text: str) -> DataFrame:
        """Return the rows of another query over the same tables, its blocks among this query's."""
        if self._depth >= _DEEPEST:
            raise InputError(f"lookup tables depend on each other more than {_DEEPEST} deep")
        self._depth += 1
        try:
            return self.query(parse(text, self._predicates)).df
        finally:
            self._depth -= 1

    def _attempt(self, statement: Statement, forced: Mapping[int, list[str]]) -> Query:
        frames, catalog = self._frames, self._catalog
        if statement.root is None:
            return self._left(statement, statement.why)
        text = EditedText(statement.text)
        lookups: list[exp.Table] = []

        def bind(node: exp.Table) -> Callable[[], Table]:
            return _bind(node, catalog, statement, text, lookups)

        try:
            selects, scopes = build_scopes(statement.root, bind)
        except RecursionError:
            return self._left(statement, "the query is nested too deeply")
        original = _Original(frames, catalog, text.original())
        calls = Calls(statement, self._predicates)
        joins = bool(lookups) or any(len(scope.sources) > 1 for scope in scopes.values())
        reason = _session_bars(self._session, statement.text)
        if reason is None and not joins and not calls.found:
            reason = "no FROM clause joins two relations"
        if reason is not None:
            _check_readable(frames, original, reason)
            return _spark_only(original.frame, statement, [reason])
        schema = original.schema()
        context = self._context(statement, text, scopes, calls)
        restriction = Restriction(context, scopes, self.frame)
        for node in lookups:
            if restriction.is_needed(node, forced):
                restriction.apply(node, forced.get(id(node), []))
        for select in selects:
            placed = take_blocks(context, select)
            take_filter(context, select, placed)
        left = [n for n in lookups if id(n) not in context.placed and _is_asked(n, catalog)]
        if left:
            raise _Untaken(left, context.reasons)
        context.reasons += calls.reasons()
        if not joins and not context.filters:
            context.reasons.append("no FROM clause joins two relations")
        called = set() if self._depth else {node.name.lower() for node in calls.left()}
        anywhere = [Filter(name, (), mask) for name, mask in self._functions.masks.items() if name in called]
        if not context.taken and not context.filters:
            return _spark_only(original.frame, statement, context.reasons, anywhere)
        context.filters += anywhere
        asked = [node for node in lookups if _is_asked(node, catalog)]
        return _checked(context, original, schema, asked)

    def _context(
        self, statement: Statement, text: EditedText, scopes: dict[int, Scope], calls: Calls
    ) -> Context:
        def text_of(node: exp.Expr) -> str | None:
            return text.bound(*statement.span(node)) if statement.has_span(node) else None

        session = self._session
        return Context(
            session,
            self._settings,
            statement,
            text,
            self._frames,
            self._catalog,
            Resolver(scopes),
            Constants(self._frames, text_of),
            calls,
            self._functions,
            str(session.conf.get("spark.sql.ansi.enabled", "true")).lower() == "true",
            taken=self._taken,
            filters=self._filters,
        )

    def _declared(self, node: exp.Table) -> LookupTable:
        table = self._catalog.mapped(tuple(part.name for part in node.parts))
        assert table is not None
        assert table.lookup is not None
        return table.lookup.table

    def _left(self, statement: Statement, why: str) -> Query:
        """Give a query that was not read to Spark, with the caller's tables in a WITH clause."""
        parts = []
        for name in self._catalog.given:
            if name.lower() in statement.text.lower():
                table = self._catalog.mapped((name,))
                assert table is not None
                if table.asked:
                    raise InputError(
                        f"the query names lookup table {name!r}, but Spark alone can read the query ({why}), "
                        "and it has no rows of that table: write the query in another form, or give the "
                        "lookup table a scan"
                    )
                parts.append(f"{quote(name)} AS (SELECT * FROM {table.placeholder})")
        if not parts:
            return _spark_only(self._frames.spark.sql(statement.text), statement, [why])
        rest = statement.text.lstrip()
        if rest[:4].upper() == "WITH" and not rest[4:5].isalnum():
            text = f"WITH {', '.join(parts)}, {escape(rest[4:])}"
        else:
            text = f"WITH {', '.join(parts)} {escape(statement.text)}"
        return _spark_only(self._frames.sql(text), statement, [why])


def _is_asked(node: exp.Table, catalog: Catalog) -> bool:
    table = catalog.mapped(tuple(part.name for part in node.parts))
    return table is not None and table.asked


def _check_readable(frames: Frames, original: _Original, reason: str) -> None:
    barred = frames.barred(original.template)
    if barred:
        raise InputError(
            f"{' and '.join(barred)} cannot be asked, because Spark runs the whole query ({reason}) and "
            "has no rows of it: change that, or give the lookup table a scan"
        )


def _bind(
    node: exp.Table, catalog: Catalog, statement: Statement, text: EditedText, lookups: list[exp.Table]
) -> Callable[[], Table]:
    """Put the placeholder of a caller's table into the text; return how to look a table up."""
    table = catalog.mapped(tuple(part.name for part in node.parts))
    if table is None:
        return lambda: catalog.stored(node)
    if table.lookup is not None:
        lookups.append(node)
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


def _spark_only(
    frame: DataFrame, statement: Statement, reasons: list[str], filters: Iterable[Filter] = ()
) -> Query:
    return Query(frame, (), reasons, statement.text, lambda: _plan(frame), tuple(filters))


class _Original:
    """The query as written. Only what is needed of it is made."""

    def __init__(self, frames: Frames, catalog: Catalog, template: str) -> None:
        self._frames = frames
        self._catalog = catalog
        self.template = template

    @cached_property
    def frame(self) -> DataFrame:
        """Its DataFrame; Spark's errors come out unchanged."""
        return self._frames.sql(self.template)

    def schema(self) -> t.StructType:
        """Return the schema of its result; Spark's errors come out unchanged."""
        template = self._catalog.stand_ins(self.template)
        if template is not None and template != self.template:
            try:
                return self._frames.sql(template).schema
            except PySparkException:
                pass  # the tables themselves may have more (``_metadata``), and give the right message
        return self.frame.schema


def _checked(context: Context, original: _Original, schema: t.StructType, asked: list[exp.Table]) -> Query:
    """Return the rewritten query if its result has the original's columns, else the original."""
    template = context.text.render()
    frame, why = _analysed(context.frames, template, schema)
    barred = context.frames.barred(template)
    if frame is None or barred:
        reasons = [*context.reasons, why or f"the rewritten query reads {' and '.join(barred)}"]
        if asked:
            raise _Untaken(asked, reasons)
        return _spark_only(original.frame, context.statement, reasons)
    seen = frame.schema
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
        context.options,
        direct_of(template, context.taken, frame),
    )


def _analysed(frames: Frames, template: str, schema: t.StructType) -> tuple[DataFrame | None, str]:
    """Return the DataFrame of the rewritten query, or None and what is wrong with it."""
    try:
        frame = frames.sql(template)
        seen = frame.schema
    except PySparkException as error:
        return None, "the rewritten query does not fit (" + str(error).split("\n", 1)[0] + ")"
    if len(seen) != len(schema) or any(
        _type(a) != _type(b) for a, b in zip(seen.fields, schema.fields, strict=True)
    ):
        return None, (
            f"the rewritten query has other columns ({seen.simpleString()} for {schema.simpleString()})"
        )
    return frame, ""


def _type(field: t.StructField) -> str:
    """Return a column's type without nullability."""
    return field.dataType.simpleString()


def _plan(frame: DataFrame) -> str:
    """Return Spark's physical plan, by the public EXPLAIN statement."""
    frames = Frames(frame.sparkSession)
    return str(frames.sql(f"EXPLAIN SELECT * FROM {frames.place(frame, 'q')}").collect()[0][0])
