"""A FROM clause as Spark reads it: items, strictly from left to right, each with what is left of it.

The relations that inner joins bring in (comma, CROSS and INNER JOIN) may be moved together in front of left
joins, with their ON conditions as filters at the end:
``((a LEFT JOIN c) JOIN b ON p) = filter_p((a x b) LEFT JOIN c)``, because a left, semi or anti join treats
every row of its left side by itself. A RIGHT or FULL join does not, so it ends the part of the clause that a
block can come from, and keeps WHERE from being pushed below it.

Here is only what the text says; what the relations' columns are is for :mod:`millrace.sql.names.outputs`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from sqlglot import exp

from millrace.sql.syntax.ctes import cte_of
from millrace.sql.syntax.edits import Span
from millrace.sql.syntax.parse import Statement, Unsupported, conjuncts, where_conjuncts

Kind = Literal["table", "cte", "query", "rows", "lateral", "view"]
_UNNAMED = "__auto_generated_subquery_name"  # what Spark calls a derived table without an alias


@dataclass(eq=False)
class Relation:
    """A relation in a FROM clause.

    Attributes:
        node: Its syntax tree.
        kind: A base table, a common table expression, a derived table; ``"rows"`` is all else that Spark can
            analyse by itself (VALUES, a function, PIVOT, a group with a name); ``"lateral"`` reads what is
            left of it; ``"view"`` is a LATERAL VIEW.
        alias: As written, or the table's name; None where nothing names it.
        qualifier: What may stand before its columns, in lower case.
        exact: Whether the qualifier is all of it: before a table's name its database may stand.
        current: Returns the session's catalog and database, for a table.
        columns: The names that its alias gives to the columns, empty where they keep theirs.
        item: Its characters, with its alias.
        plain: Whether it is read as it stands: no sample, and no version of a table.
        cte: The definition of a common table expression.
    """

    node: exp.Expr
    kind: Kind
    alias: str | None
    qualifier: tuple[str, ...]
    exact: bool
    columns: tuple[str, ...]
    item: Span
    plain: bool = True
    cte: exp.CTE | None = None
    current: Callable[[], tuple[str, ...]] | None = None

    def answers_to(self, qualifier: tuple[str, ...]) -> bool | None:
        """Tell whether a lower-case qualifier names this relation; None if only Spark knows."""
        common = min(len(qualifier), len(self.qualifier))
        if not common or qualifier[-common:] != self.qualifier[-common:]:
            return False
        if len(qualifier) <= len(self.qualifier):
            return True
        if self.exact or self.current is None:
            return False
        # A table of the current database; a temporary view has no database, and only Spark knows which it is.
        whole = (*self.current(), *self.qualifier)
        return None if qualifier == whole[-len(qualifier) :] else False


@dataclass(eq=False)
class FromItem:
    """A relation, or a parenthesised group of them, and how it joins what stands left of it.

    Attributes:
        content: What is joined.
        kind: ``"inner"``, ``"left"`` (outer, semi and anti), ``"right"`` or ``"full"``.
        keyword: The join as text, without NATURAL, such as ``"LEFT ANTI JOIN"``.
        on: Its condition; it sees the columns of its own content and of all that is left of it in its clause.
        using: Columns of USING, as written.
        natural: A NATURAL join.
        semi: A semi or anti join, whose right side is not visible above.
        item: The characters of the content.
        span: The characters of the whole, join keywords and condition included.
        join: Its syntax tree, None for the first.
    """

    content: Relation | FromClause
    kind: str
    keyword: str
    item: Span
    span: Span
    on: exp.Expr | None = None
    using: tuple[str, ...] = ()
    natural: bool = False
    semi: bool = False
    join: exp.Join | None = None

    @property
    def merges(self) -> bool:
        """Whether columns of both sides become one."""
        return self.natural or bool(self.using)

    def relations(self) -> list[Relation]:
        """Return the relation, or those of the group."""
        return [self.content] if isinstance(self.content, Relation) else list(self.content.relations())


@dataclass(frozen=True, eq=False)
class JoinStep:
    """An item of a clause, or of a group of inner joins inside it, that can be moved by itself.

    Attributes:
        item: What is joined, and how.
        clause: The clause or group that the item is in.
        place: The item's number there.
        movable: Whether it is joined by an inner join before any RIGHT or FULL join, so that a block may take
            it.
        conditions: What it is joined on; a group's condition stands with its last member.
    """

    item: FromItem
    clause: FromClause
    place: int
    movable: bool
    conditions: tuple[exp.Expr, ...]

    @property
    def relation(self) -> Relation | None:
        """The relation, None for a group that stays as it is."""
        return self.item.content if isinstance(self.item.content, Relation) else None

    @property
    def free(self) -> bool:
        """Whether it is a lone relation that a block may take."""
        return self.movable and self.relation is not None

    @property
    def terms(self) -> list[exp.Expr]:
        """The terms of its conditions."""
        return [term for on in self.conditions for term in conjuncts(on)]


@dataclass(eq=False)
class FromClause:
    """The items of a FROM clause, or of a parenthesised group.

    Attributes:
        items: From left to right.
        views: Its LATERAL VIEWs.
        span: From FROM to the end of the last item.
        end: Where the last LATERAL VIEW ends.
        mixed: Whether commas stand beside joins with conditions, which ``relationPrecedence`` binds
            otherwise.
        where: The terms of the SELECT's WHERE.
    """

    items: list[FromItem]
    span: Span
    views: list[Relation] = field(default_factory=list)
    end: int = 0
    mixed: bool = False
    where: list[exp.Expr] = field(default_factory=list)

    @property
    def movable(self) -> int:
        """How many items stand before the first RIGHT or FULL join."""
        kinds = [item.kind for item in self.items]
        return next((n for n, kind in enumerate(kinds) if kind in ("right", "full")), len(kinds))

    @property
    def whole(self) -> bool:
        """Whether no RIGHT or FULL join keeps filters from moving."""
        return self.movable == len(self.items)

    @property
    def merges(self) -> bool:
        """Whether USING or NATURAL makes one column of two, at any level."""
        return any(item.merges for clause in self.clauses() for item in clause.items)

    @property
    def is_inner(self) -> bool:
        """Whether there are only inner joins in it, at any level."""
        return all(item.kind == "inner" for clause in self.clauses() for item in clause.items)

    def relations(self) -> Iterator[Relation]:
        """Yield all relations, those of groups and LATERAL VIEWs included."""
        for item in self.items:
            yield from item.relations()
        yield from self.views

    def clauses(self) -> Iterator[FromClause]:
        """Yield this clause and all groups in it."""
        yield self
        for item in self.items:
            if isinstance(item.content, FromClause):
                yield from item.content.clauses()

    @cached_property
    def steps(self) -> list[JoinStep]:
        """The items, a movable group of inner joins as its own items."""
        return list(self._steps(self.movable))

    def number(self, relation: Relation) -> int:
        """Return the number of the step that a relation is in, -1 if it is in none."""
        return next((n for n, step in enumerate(self.steps) if relation in step.item.relations()), -1)

    @property
    def filters(self) -> list[exp.Expr]:
        """The terms of WHERE, where they may move below the joins."""
        return self.where if self.whole else []

    @property
    def inner_terms(self) -> list[exp.Expr]:
        """The terms of inner joins that may be moved, and of WHERE where they may move too."""
        return [term for step in self.steps if step.movable for term in step.terms] + self.filters

    def _steps(self, movable: int) -> Iterator[JoinStep]:
        for place, item in enumerate(self.items):
            moves = item.kind == "inner" and place < movable
            own = () if item.on is None else (item.on,)
            if moves and isinstance(item.content, FromClause) and item.content.is_inner:
                *inner, last = item.content.steps
                yield from inner
                # The group's own condition, and its USING, belong to the item that the group is.
                yield JoinStep(last.item, last.clause, last.place, True, (*last.conditions, *own))
            else:
                yield JoinStep(item, self, place, moves, own)


def read_from(statement: Statement, select: exp.Select) -> FromClause | None:
    """Return the FROM clause of a SELECT, None if there is none.

    Raises:
        Unsupported: It has a form that only Spark handles.
    """
    start = select.args.get("from_")
    if start is None:
        return None
    if select.args.get("pivots"):
        raise Unsupported("PIVOT over a whole FROM")
    reader = _Reader(statement)
    clause = reader.clause(start.this, list(select.args.get("joins") or ()))
    clause.span = (reader.span(start)[0], clause.span[1])
    clause.end = clause.span[1]
    first = select.expressions[0] if select.expressions else None
    if first is not None and statement.has_span(first) and statement.span(first)[0] > clause.span[0]:
        raise Unsupported("FROM written before SELECT")
    for view in select.args.get("laterals") or ():
        clause.views.append(reader.relation(view, "view"))
        clause.end = max(clause.end, reader.span(view)[1])
    clause.where = where_conjuncts(select)
    return clause


def is_join_group(node: exp.Expr) -> bool:
    """Tell whether a relation is ``(a JOIN b …)``, in any number of parentheses, without a name."""
    return isinstance(node, exp.Subquery) and not node.alias and _is_from_item(node.this)


def _is_from_item(node: exp.Expr) -> bool:
    """Tell whether what stands in parentheses is an item of FROM, perhaps with joins, and not a query."""
    if not isinstance(node, exp.Subquery):
        return not isinstance(node, exp.Query)
    return bool(node.alias or node.args.get("joins")) or _is_from_item(node.this)


class _Reader:
    def __init__(self, statement: Statement) -> None:
        self._statement = statement

    def clause(self, first: exp.Expr, joins: list[exp.Join]) -> FromClause:
        items = [self._item(first, None), *(self._item(join.this, join) for join in joins)]
        span = (items[0].span[0], max(item.span[1] for item in items))
        commas = [join for join in joins if self._is_comma(join)]
        return FromClause(items, span, [], span[1], mixed=0 < len(commas) < len(joins))

    def span(self, node: exp.Expr) -> Span:
        return self._statement.span(node, "a FROM clause")

    def _is_comma(self, join: exp.Join) -> bool:
        start, _ = self.span(join)
        return self._statement.text[start : start + 1] == ","

    def _item(self, node: exp.Expr, join: exp.Join | None) -> FromItem:
        kind, semi, keyword = ("inner", False, "JOIN") if join is None else _kind(join)
        content: Relation | FromClause
        pivots = node.args.get("pivots") or (join is not None and join.args.get("pivots"))
        if is_join_group(node):
            if pivots or node.args.get("sample"):
                raise Unsupported("a parenthesised join with PIVOT or TABLESAMPLE")
            content = self.clause(node.this, list(node.this.args.get("joins") or ()))
        else:
            if join is not None and pivots and not self._is_comma(join):
                raise Unsupported("PIVOT or UNPIVOT over a join")
            content = self.relation(node)
        item = FromItem(
            content, kind, keyword, self.span(node), self.span(join or node), semi=semi, join=join
        )
        if join is not None:
            on = join.args.get("on")
            # The parser writes ON TRUE where the text has no condition.
            item.on = on if on is not None and self._statement.has_span(on) else None
            item.using = tuple(name.name for name in join.args.get("using") or ())
            item.natural = join.method.upper() == "NATURAL"
        return item

    def relation(self, node: exp.Expr, kind: Kind | None = None) -> Relation:
        alias = node.alias or None
        written = node.args.get("alias")
        names = written.args.get("columns") if isinstance(written, exp.TableAlias) else None
        columns = tuple(name.name for name in names or ())
        qualifier = (alias.lower(),) if alias else ()
        item, plain = self.span(node), not node.args.get("sample")
        if isinstance(node, exp.Lateral):
            return Relation(node, kind or "lateral", alias, qualifier, True, columns, item)
        if (
            isinstance(node, exp.Table)
            and isinstance(node.this, exp.Identifier)
            and not node.args.get("pivots")
        ):
            cte = cte_of(node)
            parts = qualifier or tuple(part.name.lower() for part in node.parts)
            plain = plain and not any(node.args.get(name) for name in ("when", "version"))
            kind, exact = ("table", bool(alias)) if cte is None else ("cte", True)
            return Relation(node, kind, alias or node.name, parts, exact, columns, item, plain, cte)
        if isinstance(node, exp.Subquery) and not _is_from_item(node.this) and not node.args.get("pivots"):
            return Relation(node, "query", alias, qualifier or (_UNNAMED,), True, columns, item, plain)
        return Relation(node, "rows", alias, qualifier, True, columns, item, plain)


def _kind(join: exp.Join) -> tuple[str, bool, str]:
    """Return a join's kind, whether it is a semi or anti join, and its keywords."""
    side, kind = join.side.upper(), join.kind.upper()
    if kind in ("SEMI", "ANTI"):
        return "left", True, f"LEFT {kind} JOIN"
    if side in ("LEFT", "RIGHT", "FULL"):
        return side.lower(), False, f"{side} JOIN"
    if kind in ("", "INNER", "CROSS"):
        return "inner", False, "JOIN"
    raise Unsupported(f"a {side} {kind} join".replace("  ", " "))
