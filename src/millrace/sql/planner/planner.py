"""A query in, a DataFrame out, its inner joins run by eddies: the way of a query's text.

1. **parse** (:mod:`millrace.sql.syntax.parse`): a syntax tree, and where in the text each part stands.
2. **names** (:mod:`millrace.sql.names`): what every name means, asked of tables and, for what only
   Spark can tell, of Spark's analyser. Spark analyses the query as written first, so that a wrong query
   raises exactly what ``spark.sql`` raises, and it is what runs when anything about the rewriting does not
   fit. Where settings, the text and the files' footers tell that nothing is to be taken, it runs at once.
3. **plan** (:mod:`millrace.sql.blocks.find`, :mod:`millrace.sql.rewrite.select`): blocks and filters, from
   inner to outer SELECTs, and the text above them. Nothing in the session changes.
4. **build** (:mod:`millrace.sql.plan`): the DataFrames, once.
5. The rewritten query must have Spark's own names, order and types, or the original runs.

A lookup table has no rows for Spark to read. So a plan that leaves one to Spark is dropped, and in the
next one the table is replaced, in that place, by its rows for the keys that the query has
(:mod:`millrace.sql.rewrite.restriction`); where nothing gives keys, the query is refused.
"""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn, TypeVar

from pyspark.errors import ParseException, PySparkException
from pyspark.sql import DataFrame, SparkSession, types as t
from sqlglot import exp

from millrace.errors import InputError, MillraceError, MillraceWarning, QueryError, SetupError, first_line
from millrace.options import Options
from millrace.spark.predicates import Predicate
from millrace.sql.blocks.cost_model import why_nothing_worth
from millrace.sql.blocks.find import take_blocks
from millrace.sql.blocks.predicates import take_filter
from millrace.sql.blocks.subqueries import check_ons
from millrace.sql.context import PlanContext
from millrace.sql.plan import Plan, PlannedFilter, PlannedQuery, build
from millrace.sql.rewrite.outer_joins import simplify_outer_joins
from millrace.sql.rewrite.restriction import Restriction, refusal
from millrace.sql.rewrite.select import keep_names
from millrace.sql.rewrite.sharing import CteMaterialization
from millrace.sql.session.asking import Frames, Settings
from millrace.sql.session.errors import Analysis, Original, analyse, contain
from millrace.sql.session.functions import Functions, restored
from millrace.sql.session.tables import Catalog, Lookup, Tables, dotted
from millrace.sql.syntax.edits import EditedText, Segment, quote
from millrace.sql.syntax.parse import NO_QUERY, PARAMETER, Statement, Unsupported, name_span, parse
from millrace.sql.syntax.scopes import base_tables

T = TypeVar("T")
_Forced = dict[int, list[str]]
"""Lookup tables that no block is to take, by the identities of their places: why."""

_DEEPEST = 8
_NO_JOIN = "no FROM clause joins two relations"


def _bind_qualifiers(text: EditedText, root: exp.Query, qualifiers: set[tuple[str, ...]]) -> None:
    """Let columns with a table's whole name have its last one, by which alone Spark knows the caller's table.

    Where that may mean another relation too they stay, and Spark refuses them.
    """
    last = Counter(each.alias_or_name.lower() for each in root.find_all(exp.Table, exp.TableAlias))
    for column in root.find_all(exp.Column):
        names = [part.name.lower() for part in column.parts]
        for length in range(2, len(names)):
            if tuple(names[:length]) in qualifiers and last[names[length - 1]] == 1:
                text.bind(*name_span(column, length - 1), quote(column.parts[length - 1].name))


class _GivenUp(Exception):
    """Something was given up; the next attempt goes without it."""


class Planner:
    """Prepares a query, and the queries for the keys of its lookup tables. To be closed.

    ``predicates`` are by lower-case name, and become functions of the session; PredicateError is raised for
    one that cannot be sent to the tasks. ``args`` are the query's parameters by name. ``judge`` raises for a
    plan that Spark is to run: before it is built, which reads tables.
    """

    def __init__(
        self,
        spark: SparkSession,
        options: Options,
        tables: Tables,
        predicates: Mapping[str, Predicate],
        args: Mapping[str, Any],
        judge: Callable[[Plan], None] = lambda _: None,
    ) -> None:
        self._predicates, self._judge = predicates, judge
        self.frames = Frames(spark, args)
        self._settings = Settings(spark, options)
        self.catalog = Catalog(self.frames, tables, self._settings)
        self._original: Original | None = None
        self._is_lasting = True
        self._aggregates = options.partial_aggregates
        self._functions = Functions(spark, options, predicates)  # last: what raises before leaves none behind

    def close(self) -> None:
        """Take the names that it has made out of the session: what is analysed does not need them."""
        self.frames.close()
        self._functions.close()

    def query(self, statement: Statement) -> PlannedQuery:
        """Return a query, ready to run.

        Raises:
            InputError: A lookup table stands where nothing gives the values to ask it with.
            pyspark.errors.AnalysisException: Spark refuses the query.
        """
        text = self._bind(statement)
        query = self._leave_unread(statement, text) if statement.root is None else self._read(statement, text)
        limits = [each.mask.limits for each in query.filters if each.mask.limits.coordinator is not None]
        if limits and query.df.isStreaming:
            for each in limits:
                each.keep()
        return replace(query, stored=tuple(self.catalog.notes))

    def _read(self, statement: Statement, text: EditedText) -> PlannedQuery:
        original = Original(self.catalog, statement, text)
        why = _contain(self._why_spark, statement)
        if why is not None:
            return self._leave_as_written(original, [why])
        self._original = original
        original.schema  # noqa: B018  # a wrong query raises Spark's own error
        query = _contain(_retry, partial(self._attempt, original))
        return self._leave_as_written(original, [query]) if isinstance(query, str) else query

    def plan(self, statement: Statement) -> tuple[Plan, t.StructType]:
        """Return what a query becomes, and the columns of its result; nothing is made.

        Raises:
            InputError: All of it stays with Spark.
            pyspark.errors.AnalysisException: Spark refuses the query.
        """
        if statement.root is None:
            raise InputError(f"only Spark can read the query: {statement.why}")
        why = self._why_spark(statement)
        if why is not None:
            raise InputError(why)
        original = Original(self.catalog, statement, self._bind(statement))
        schema = original.schema
        try:
            return _retry(partial(self._plan, original)), schema
        except Unsupported as error:
            raise InputError(str(error)) from None

    @property
    def analysis(self) -> Analysis | None:
        """What Spark made of the query as written; None where that cannot be compared later."""
        return self._original.analysis if self._original is not None and self._is_lasting else None

    # Planning

    def _why_spark(self, statement: Statement) -> str | None:
        """Return why nothing of a query can be taken, as far as settings, its text and footers tell."""
        assert statement.root is not None
        why = self._settings.bars(statement)
        if why is not None or statement.functions or self._lookups(statement):
            return why
        if not any(map(_joins, statement.root.find_all(exp.Select))):
            return _NO_JOIN
        return why_nothing_worth(self.catalog, statement)

    def _attempt(self, original: Original, forced: _Forced) -> PlannedQuery:
        """Return a query, ready to run, as :func:`_retry` wants it."""
        statement = original.statement
        try:
            plan = self._plan(original, forced)
        except Unsupported as error:
            return self._leave_as_written(original, [str(error)])
        if not plan.blocks and not plan.filters and not plan.parts:
            return self._leave_as_written(original, list(plan.reasons))
        if self.catalog.may_mix(plan):
            self.catalog.leave_views()
            raise _GivenUp
        if not self._find_called(statement):  # only Millrace knows the functions that it calls
            self._judge(plan)
        try:
            built = self._build(plan, original.schema)
            return replace(built, filters=(*built.filters, *self._find_called(statement)))
        except Unsupported as error:
            reasons = [*plan.reasons, str(error)]
        if any(block.aggregate for part in plan.whole() for block in part.blocks):
            self._give_up_aggregates()
        _give_up([node for node, lookup in self._lookups(statement) if lookup.needs_keys], reasons, forced)
        return self._leave_as_written(original, reasons)

    def _plan(self, original: Original, forced: _Forced, first: int = 0, depth: int = 0) -> Plan:
        """Return a plan, as :func:`_retry` wants it; its blocks are numbered from ``first`` on.

        Unsupported leaves the whole query to Spark, InputError says that a lookup table cannot be asked.
        """
        if depth > _DEEPEST:
            raise InputError(f"lookup tables depend on each other more than {_DEEPEST} deep")
        statement, catalog, aggregates = original.statement, self.catalog, self._aggregates
        text = self._bind(statement)
        context = PlanContext(statement, text, catalog, self._predicates, first, aggregates=aggregates)
        lookups = self._lookups(statement)
        simplify_outer_joins(context, has_lookups=bool(lookups))
        restriction = Restriction(context, partial(self._rows, depth + 1))
        for node, lookup in lookups:
            if lookup.needs_keys and (id(node) in forced or not restriction.is_taken(node)):
                restriction.apply(node, forced.get(id(node), []))
        sharing = CteMaterialization(context)
        for scope in context.names.scopes.all:
            if sharing.repeats(scope):
                continue
            sharing.before(scope)
            placed = take_blocks(context, scope)
            take_filter(context, scope, placed)
        unread = [(node, lookup.table) for node, lookup in lookups if lookup.needs_keys]
        left = [(node, table) for node, table in unread if id(node) not in context.placed]
        if left:
            nodes = [node for node, _ in left]
            # Others may have lacked what a LEFT join that no block took gives out.
            left_joined = (node for node in nodes if restriction.is_taken(node, left=True))
            _give_up(left_joined, context.reasons, forced)
            _give_up(nodes, context.reasons, forced)
            raise refusal(context, left, context.reasons)
        sharing.before()
        context.reasons += context.calls.reasons()
        joins = lookups or any(_joins(scope.select) for scope in context.names.scopes.all)
        if not joins and not context.filters:
            context.reasons.append(_NO_JOIN)
        if context.text.edits or context.parts:
            check_ons(context)
            try:
                keep_names(context, [restored(name) for name in original.schema.names])
            except Unsupported:
                if any(block.aggregate for block in context.blocks):
                    self._give_up_aggregates()
                raise
        self._is_lasting &= context.constants.is_lasting
        plan = context.plan()
        if barred := catalog.barred(plan.template):
            raise InputError(f"the rewritten query reads {' and '.join(barred)}, which has no rows for Spark")
        return plan

    def _give_up_aggregates(self) -> NoReturn:
        """Have tasks aggregate no rows from the next attempt on; a plan within this one may say so too."""
        self._aggregates = False
        raise _GivenUp

    def _lookups(self, statement: Statement) -> list[tuple[exp.Table, Lookup]]:
        """Return the lookup tables that a query names, in their places."""
        assert statement.root is not None
        named = ((node, self.catalog.lookup(node)) for node in base_tables(statement.root))
        return [(node, lookup) for node, lookup in named if lookup is not None]

    def _rows(self, depth: int, text: str, first: int) -> Plan:
        """Plan another query over the same tables, for rows of a lookup table."""
        statement = parse(text, self._predicates)
        original = Original(self.catalog, statement, self._bind(statement))
        original.schema  # noqa: B018  # what is wrong is said here
        return _retry(partial(self._plan, original, first=first, depth=depth))

    def _bind(self, statement: Statement) -> EditedText:
        """Return the query's text with its tables, functions and parameters bound."""
        text = EditedText(statement.text)
        for span, name in statement.functions:
            text.bind(*span, quote(self._functions.names[name]))
        for number, span in enumerate(statement.parameters):
            text.bind(*span, f":{PARAMETER}{number}")
        qualifiers: set[tuple[str, ...]] = set()
        for node in [] if statement.root is None else base_tables(statement.root):
            table = self.catalog.mapped(dotted(node))
            if table is None:
                continue
            if len(node.parts) > 1 and not node.alias:
                qualifiers.add(tuple(part.name.lower() for part in node.parts))
            alias = "" if node.alias else f" AS {quote(node.name)}"
            is_sampled = bool(alias and node.args.get("sample"))
            text.bind(*name_span(node), f"{table.placeholder}{'' if is_sampled else alias}")
            if is_sampled:
                end = statement.span(node)[1]
                text.bind(end, end, alias)
        if statement.root is not None and qualifiers:
            _bind_qualifiers(text, statement.root, qualifiers)
        return text

    # What runs

    def _build(self, plan: Plan, schema: t.StructType) -> PlannedQuery:
        """Return what a plan becomes; raises Unsupported where it does not fit."""
        try:
            built = build(plan, self.frames, self._functions, self._settings.options)
            actual = built.df.schema
        except PySparkException as error:
            raise Unsupported(f"the rewritten query does not fit ({first_line(error)})") from None
        except SetupError:
            raise  # Spark would keep the whole of a stream's state in its own way, unasked
        except MillraceError as error:
            raise Unsupported(str(error)) from None
        expected = [(restored(f.name), f.dataType.simpleString()) for f in schema.fields]
        if [(f.name, f.dataType.simpleString()) for f in actual.fields] != expected:
            shown = f"{actual.simpleString()} for {schema.simpleString()}"
            raise Unsupported(f"the rewritten query has other columns ({shown})")
        return built

    def _find_called(self, statement: Statement) -> tuple[PlannedFilter, ...]:
        """Return the coroutines that Spark calls somewhere, which have figures of their own."""
        called = {name for _, name in statement.functions}
        return tuple(
            PlannedFilter(name, (), mask) for name, mask in self._functions.masks.items() if name in called
        )

    def _leave_as_written(self, original: Original, reasons: list[str]) -> PlannedQuery:
        if barred := self.catalog.barred(original.template):
            original.schema  # noqa: B018  # of a wrong query Spark tells what is wrong
            raise InputError(
                f"{' and '.join(barred)} cannot be asked, because Spark runs the whole query "
                f"({'; '.join(reasons)}) and has no rows of it: change that, or give the lookup table a scan"
            )
        return self._leave(original.statement, original.frame, reasons)

    def _leave(self, statement: Statement, frame: DataFrame, reasons: list[str]) -> PlannedQuery:
        """Return a query that Spark runs, with the caller's names of functions in the names of columns."""
        names = [restored(name) for name in frame.columns]
        frame = frame if names == frame.columns else frame.toDF(*names)
        filters = self._find_called(statement)
        return PlannedQuery(frame, (), reasons, statement.text, filters, self._settings.options)

    def _leave_unread(self, statement: Statement, text: EditedText) -> PlannedQuery:
        """Give a text that was not read to Spark, with the caller's tables as definitions around it.

        In parentheses Spark takes nothing but a query, so that it cannot be made to run anything else: what
        is none raises QueryError.
        """
        parts, words = [], statement.text.replace("`", "")
        for name in self.catalog.names:
            if not re.search(rf"(?<![\w.]){re.escape(name)}(?!\w)", words, re.IGNORECASE):
                continue
            table = self.catalog.mapped(name)
            assert table is not None
            if "." in name:
                raise InputError(
                    f"the query names table {name!r}, but Spark alone can read the query ({statement.why}), "
                    "and takes no name with a dot for a table of yours there: give it a name without, or "
                    "write the query in another form"
                )
            if table.needs_keys:
                raise InputError(
                    f"the query names lookup table {name!r}, but Spark alone can read the query "
                    f"({statement.why}), and it has no rows of that table: write the query in another form, "
                    "or give the lookup table a scan"
                )
            parts.append(f"{quote(name)} AS (SELECT * FROM {table.placeholder})")  # noqa: S608
        # A definition of the query's own hides one of these, for it is nearer.
        definitions = f"WITH {', '.join(parts)} " if parts else ""
        *before, last = text.original()
        segments = [
            Segment(f"{definitions}(\n", 0, copied=False),
            *before,
            last._replace(text=last.text.rstrip().rstrip(";")),
            Segment("\n)", len(statement.text), copied=False),
        ]
        try:
            frame = analyse(self.catalog, segments, statement.text)
        except ParseException:
            # EXPLAIN takes all that Spark can read. It runs nothing, but for this, which analysis runs.
            if "immediate" in statement.text.lower():
                raise QueryError(NO_QUERY) from None
            analyse(self.catalog, [Segment("EXPLAIN ", 0, copied=False), *text.original()], statement.text)
            raise QueryError(NO_QUERY) from None
        if statement.functions:
            called = ", ".join(dict.fromkeys(self._predicates[name].name for _, name in statement.functions))
            message = f"Spark calls {called} for every row: {statement.why}"
            warnings.warn(message, MillraceWarning, stacklevel=5)
        return self._leave(statement, frame, [statement.why])


def _contain(step: Callable[..., T], *arguments: Any) -> T | str:
    """Return what a step of planning gives; where it has a fault, the reason to leave the query to Spark."""
    try:
        return step(*arguments)
    except MillraceError:
        raise
    except Exception as error:  # noqa: BLE001  # Spark can answer the query, whatever it is
        return contain(error)


def _retry(attempt: Callable[[_Forced], T]) -> T:
    """Try to plan, each time without what was given up before; what Spark answered is kept."""
    forced: _Forced = {}
    while True:
        try:
            return attempt(forced)
        except _GivenUp:
            pass


def _give_up(lookups: Iterable[exp.Table], reasons: list[str], forced: _Forced) -> None:
    """Have lookup tables replaced by their rows from the next attempt on, if some are not."""
    nodes = [id(node) for node in lookups]
    is_new = not forced.keys() >= set(nodes)
    forced |= dict.fromkeys(nodes, reasons)
    if is_new:
        raise _GivenUp


def _joins(select: exp.Select) -> bool:
    """Tell whether a SELECT joins relations, or its conditions have a query that may be asked for matches."""
    where = select.args.get("where")
    return bool(select.args.get("joins")) or (where is not None and where.find(exp.Query) is not None)
