"""A common table expression, or a repeated subquery, that has a block and is read often is computed once.

Spark runs equal subqueries once, and equal exchanges. Two blocks are never equal to it, even if they join the
same, since each has Python code of its own. So a query in parentheses that stands in several places, word for
word, is planned in the first one. Every later place gets the text of the first as it was rewritten, which
reads the same blocks.

Spark puts a definition in the place of each name, too. A task's Python code would then run for each, since
what every place reads of it differs and nothing below is alike. So the result of a definition, and of a
repeated query among relations, passes an exchange whose two ends let nothing through: hashing by all columns
keeps every column below it, and no filter is pushed below a sample, not even of all rows. Below is the same
everywhere, and Spark makes an exchange of the same rows once a query (``spark.sql.exchange.reuse``), also
across the DataFrames that the blocks of a query read.
"""

# ruff: noqa: S608  # SQL is what this module writes

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import suppress

from pyspark.sql import types as t
from sqlglot import exp

from millrace.sql.blocks.subqueries import existence_test
from millrace.sql.context import PlanContext
from millrace.sql.expr.types import Field
from millrace.sql.syntax.edits import Edit, quote
from millrace.sql.syntax.parse import Unsupported
from millrace.sql.syntax.scopes import Scope, cte_of, definitions, is_recursive, tables_in, within

_HASHED = (
    t.NumericType, t.StringType, t.BinaryType, t.BooleanType, t.DateType, t.TimestampType, t.TimestampNTZType,
)  # fmt: skip


class CteMaterialization:
    """The common table expressions and repeated subqueries of one query.

    SELECTs are planned from inner to outer ones, and definitions before their uses.
    """

    def __init__(self, context: PlanContext) -> None:
        self._context = context
        self._first: dict[int, exp.Query] = {}
        self._repeated: set[int] = set()
        self._shared: set[int] = set()
        # Queries by their identities, with their readers in order: names or relations of FROM clauses.
        self._readers: dict[int, tuple[exp.Expr, list[exp.Expr]]] = {}
        assert context.statement.root is not None
        for table in tables_in(context.statement.root):
            cte = cte_of(table)
            if cte is not None and not is_recursive(cte) and not _is_ordered(cte.this):
                self._read(cte.this, table)
        for alike in _grouped(self._subqueries(), self._words):
            for first, *others in _grouped(alike, self._meaning):
                if self._is_plain(first) and not any(map(context.escapes, (first, *others))):
                    self._first |= {id(other): first for other in others}
                    for relation in filter(None, map(_relation_of, (first, *others))):
                        self._read(first, relation)

    def _read(self, body: exp.Expr, reader: exp.Expr) -> None:
        self._readers.setdefault(id(body), (body, []))[1].append(reader)

    # Repeated subqueries

    def _subqueries(self) -> Iterator[exp.Query]:
        """Yield queries in parentheses in the order in which their SELECTs are planned."""
        seen: set[int] = set()
        for scope in self._context.names.scopes.all:
            node: exp.Expr | None = scope.select
            while node is not None:
                around = node.parent
                if isinstance(node, exp.Query) and isinstance(around, exp.Subquery) and id(node) not in seen:
                    seen.add(id(node))
                    if self._context.statement.has_span(node):
                        yield node
                node = around

    def _words(self, body: exp.Query) -> Hashable:
        """Return the text as it was bound, in which equal words may stand at different distances."""
        return tuple(self._context.text.bound(self._context.statement.span(body)).split())

    def _meaning(self, body: exp.Query) -> Hashable:
        """Return the text of the syntax tree, with what the names of tables mean."""
        named = tuple(id(cte) if (cte := cte_of(table)) else None for table in tables_in(body))
        # A subquery of EXISTS or IN may be rewritten to another with the same set of rows.
        test = type(existence_test(body)) if isinstance(body, exp.Select) else None
        return body.sql(dialect="spark"), named, test

    def _is_plain(self, body: exp.Query) -> bool:
        context = self._context
        has_definitions = any(isinstance(part, exp.With) for part in within(body))
        looks_up = any(context.catalog.lookup(table) for table in tables_in(body) if cte_of(table) is None)
        return not (has_definitions or looks_up or context.determinism.volatile(body))

    def repeats(self, scope: Scope) -> bool:
        """Tell whether a SELECT is part of a query that was planned before, and has blocks there.

        The outermost such query gets the text from there.
        """
        node: exp.Expr | None = scope.select
        outermost = None
        while node is not None:
            first = self._first.get(id(node))
            if first is not None and (id(node) in self._repeated or self._context.has_block(first)):
                outermost = first
                self._repeat(first, node)
            node = node.parent
        if outermost is not None:
            self._share(outermost)
        return outermost is not None

    def _repeat(self, first: exp.Query, again: exp.Expr) -> None:
        context = self._context
        if id(again) in self._repeated:
            return
        self._repeated.add(id(again))
        span = context.statement.span
        context.text.edits.append(Edit(*span(again), (span(first),)))
        for part, copy in zip(within(first), within(again), strict=True):
            if id(part) in context.placed:
                context.placed.add(id(copy))
            if id(part) in context.calls.taken:
                context.calls.taken.add(id(copy))

    # Exchanges

    def before(self, scope: Scope | None = None) -> None:
        """Share what a SELECT reads, before it is planned itself; without one, all."""
        for body, readers in self._readers.values():
            if scope is None or any(each.find_ancestor(exp.Select) is scope.select for each in readers):
                self._share(body)

    def _share(self, body: exp.Expr) -> None:
        """Let a query pass an exchange if it has a block and several readers."""
        context, (_, readers) = self._context, self._readers.get(id(body), (body, []))
        if id(body) in self._shared or len(readers) < 2 or not context.statement.has_span(body):
            return
        if not any(map(context.has_block, (body, *definitions(body)))):
            return
        self._shared.add(id(body))
        site = context.names.scopes.find(readers[0])
        if site is None or site[1].columns or context.determinism.volatile(body) or context.escapes(body):
            return
        if any(map(_shows_existence, (body, *definitions(body)))):
            return
        fields: tuple[Field, ...] = ()
        with suppress(Unsupported):  # where they cannot be known
            fields = context.names.fields(site[1])
        if not fields or not all(_is_hashed(field.type) for field in fields):
            return
        inner = [f"{context.stem}s{place}" for place in range(len(fields))]
        names = ", ".join(quote(field.name) for field in fields)
        span = context.statement.span(body)
        columns = ", ".join(inner)
        before = f"SELECT * FROM (SELECT /*+ REPARTITION({columns}) */ * FROM ("
        behind = f") AS __s({columns})) TABLESAMPLE (100 PERCENT) REPEATABLE (0) AS __t({names})"
        context.text.edits.append(Edit(*span, (before, context.text.edited(span), behind)))
        shown = body.parent.alias if isinstance(body.parent, exp.CTE) else context.shown(readers[0])
        context.shared.append(f"{shown}, read {len(readers)} times")


def _grouped(bodies: Iterable[exp.Query], key: Callable[[exp.Query], Hashable]) -> Iterator[list[exp.Query]]:
    """Yield what has an equal, with all its equals, in order."""
    groups: defaultdict[Hashable, list[exp.Query]] = defaultdict(list)
    for body in bodies:
        groups[key(body)].append(body)
    return (group for group in groups.values() if len(group) > 1)


def _shows_existence(body: exp.Expr) -> bool:
    """Tell whether a column is whether a subquery has rows.

    Spark takes fields out of its structs on one side of that join alone. Without the exchange it leaves out
    a column that nobody reads.
    """
    shown = (column for select in body.find_all(exp.Select) for column in select.expressions)
    return any(
        test.find(exp.Query) is not None for column in shown for test in column.find_all(exp.Exists, exp.In)
    )


def _is_ordered(body: exp.Expr) -> bool:
    """Tell whether a query is in an order that somebody might look for."""
    return body.args.get("order") is not None and body.args.get("limit") is None


def _relation_of(body: exp.Query) -> exp.Subquery | None:
    """Return the relation of a FROM clause that a query in parentheses is, if nobody looks for its order."""
    around = body.parent
    if not isinstance(around, exp.Subquery) or _is_ordered(body):
        return None
    return around if isinstance(around.parent, exp.From | exp.Join) else None


def _is_hashed(kind: t.DataType) -> bool:
    """Tell whether Spark deals rows by values of a type.

    It does by structs too, but takes a field out below an exchange, and then does not find it above.
    """
    return _is_hashed(kind.elementType) if isinstance(kind, t.ArrayType) else isinstance(kind, _HASHED)
