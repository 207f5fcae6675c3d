"""The SELECTs of a query, their FROM clauses as Spark reads them, and their common table expressions.

A FROM clause is read strictly from left to right: items, each with what is left of it. The relations that
inner joins bring in (comma, CROSS and INNER JOIN) may be moved together in front of left joins, with their ON
conditions as filters at the end: ``((a LEFT JOIN c) JOIN b ON p) = filter_p((a x b) LEFT JOIN c)``, because a
left, semi or anti join treats every row of its left side by itself. A RIGHT or FULL join does not, so it ends
the part of the clause that a block can come from, and keeps WHERE from being pushed below it.

Here is only what the text says; what the relations' columns are is for :mod:`millrace.sql.names`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from sqlglot import exp

from millrace.sql.syntax.edits import Edit, EditedText, Span, quote
from millrace.sql.syntax.parse import Statement, Unsupported, conjuncts, name_span, where_conjuncts

Kind = Literal["table", "cte", "query", "rows", "lateral", "view"]
_MOST_IN_PLACE = 50
"""Definitions that are put in the place of their names: what Spark analyses then grows with each."""
_UNNAMED = "__auto_generated_subquery_name"  # what Spark calls a derived table without an alias


@dataclass(eq=False)
class Relation:
    """A relation in a FROM clause.

    Attributes:
        kind: A base table, a common table expression, a derived table; ``"rows"`` is all else that Spark can
            analyse by itself (VALUES, a function, PIVOT, a group with a name); ``"lateral"`` reads what is
            left of it; ``"view"`` is a LATERAL VIEW.
        current: Returns the session's catalog and database, which may stand before a table's own name.
        is_nullable: Whether an outer join is written where it is joined by an inner one, so that its columns
            have nulls as Spark sees it.
    """

    node: exp.Expr
    kind: Kind
    alias: str | None  # as written, or the table's name; None where nothing names it
    qualifier: tuple[str, ...]  # what may stand before its columns, in lower case
    columns: tuple[str, ...]  # the names that its alias gives to the columns, empty where they keep theirs
    item: Span  # its characters, with its alias
    plain: bool = True  # whether it is read as it stands: no sample, and no version of a table
    cte: exp.CTE | None = None
    current: Callable[[], tuple[str, ...]] | None = None
    is_nullable: bool = False

    def answers_to(self, qualifier: tuple[str, ...]) -> bool | None:
        """Tell whether a lower-case qualifier names this relation; None if only Spark knows."""
        common = min(len(qualifier), len(self.qualifier))
        if not common or qualifier[-common:] != self.qualifier[-common:]:
            return False
        if len(qualifier) <= len(self.qualifier):
            return True
        if self.current is None:
            return False
        # A table of the current database; a temporary view has no database, and only Spark knows which it is.
        whole = (*self.current(), *self.qualifier)
        return None if qualifier == whole[-len(qualifier) :] else False


@dataclass(eq=False)
class FromItem:
    """A relation, or a parenthesised group of them, and how it joins what stands left of it.

    ``on`` sees the columns of its own content and of all that is left of it in its ``clause`` or group.
    """

    content: Relation | FromClause
    kind: str  # ``"inner"``, ``"left"`` (outer, semi and anti), ``"right"`` or ``"full"``
    keyword: str  # the join as text, without NATURAL, such as ``"LEFT ANTI JOIN"``
    item: Span  # the characters of the content
    on: exp.Expr | None = None
    using: tuple[str, ...] = ()
    natural: bool = False
    semi: bool = False  # a semi or anti join, whose right side is not visible above
    join: exp.Join | None = None  # its syntax tree, None for the first
    clause: FromClause = field(init=False)

    @property
    def merges(self) -> bool:
        """Whether columns of both sides become one."""
        return self.natural or bool(self.using)

    def relations(self) -> list[Relation]:
        return [self.content] if isinstance(self.content, Relation) else list(self.content.relations())

    @property
    def place(self) -> int:
        """Its number in its clause or group."""
        return self.clause.items.index(self)

    @property
    def movable(self) -> bool:
        """Whether it is joined by an inner join before any RIGHT or FULL join: a block may take it."""
        return self.kind == "inner" and self.place < self.clause.movable

    @property
    def steps(self) -> list[FromItem]:
        """What can be moved by itself: a movable group of inner joins as its own items, else the whole."""
        if isinstance(self.content, FromClause) and self.content.is_inner and self.movable:
            return self.content.steps
        return [self]

    @property
    def conditions(self) -> tuple[exp.Expr, ...]:
        """What it is joined on; the condition of a group that is moved by parts stands with the last."""
        own, group = () if self.on is None else (self.on,), self.clause.group
        if group is None or group.steps == [group] or self is not self.clause.items[-1]:
            return own
        return (*own, *group.conditions)

    @property
    def relation(self) -> Relation | None:
        """The relation, None for a group that stays as it is."""
        return self.content if isinstance(self.content, Relation) else None

    @property
    def is_left(self) -> bool:
        return self.kind == "left" and not self.semi

    @property
    def free(self) -> bool:
        """Whether it is a lone relation that a block may take."""
        return self.movable and self.relation is not None

    @property
    def terms(self) -> list[exp.Expr]:
        return [term for on in self.conditions for term in conjuncts(on)]


@dataclass(eq=False)
class FromClause:
    """The items of a FROM clause, or of a parenthesised group.

    ``mixed``: commas stand beside joins with conditions, which ``relationPrecedence`` binds otherwise.
    ``preserves``: its second item is LEFT joined and stands as an inner join here, for cells of streams add
    what has no match.
    """

    items: list[FromItem]
    span: Span  # from FROM to the end of the last item
    views: list[Relation] = field(default_factory=list)
    mixed: bool = False
    where: list[exp.Expr] = field(default_factory=list)  # the terms of the SELECT's WHERE
    group: FromItem | None = field(default=None, init=False)  # the item that a group is
    preserves: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        for item in self.items:
            item.clause = self
            if isinstance(item.content, FromClause):
                item.content.group = item

    @property
    def movable(self) -> int:
        """How many items stand before the first RIGHT or FULL join."""
        kinds = [item.kind for item in self.items]
        return next((n for n, kind in enumerate(kinds) if kind in ("right", "full")), len(kinds))

    @property
    def whole(self) -> bool:
        """Whether no RIGHT or FULL join, nor one that preserves, keeps filters from moving."""
        return self.movable == len(self.items) and not self.preserves

    @property
    def merges(self) -> bool:
        """Whether USING or NATURAL makes one column of two, at any level."""
        return any(item.merges for item in self.every())

    @property
    def is_inner(self) -> bool:
        """Whether there are only inner joins in it, at any level."""
        return all(item.kind == "inner" for item in self.every())

    def relations(self) -> Iterator[Relation]:
        """Yield all relations, those of groups and LATERAL VIEWs included."""
        for item in self.items:
            yield from item.relations()
        yield from self.views

    def every(self) -> Iterator[FromItem]:
        """Yield its items, and those of its groups."""
        for item in self.items:
            yield item
            if isinstance(item.content, FromClause):
                yield from item.content.every()

    @property
    def steps(self) -> list[FromItem]:
        """The items that can be moved by themselves, a movable group of inner joins as its own items."""
        return [step for item in self.items for step in item.steps]

    def number(self, relation: Relation) -> int:
        """Return the number of the step that a relation is in, -1 if it is in none."""
        return next((n for n, step in enumerate(self.steps) if relation in step.relations()), -1)

    @property
    def filters(self) -> list[exp.Expr]:
        """The terms of WHERE, where they may move below the joins."""
        return self.where if self.whole else []

    @property
    def inner_terms(self) -> list[exp.Expr]:
        """The terms of inner joins that may be moved, and of WHERE where they may move too."""
        return [term for step in self.steps if step.movable for term in step.terms] + self.filters


@dataclass(eq=False)
class Scope:
    """A SELECT."""

    select: exp.Select
    clause: FromClause | None  # None also where it has a form that only Spark handles
    why: str = ""  # what form that is


@dataclass(frozen=True, eq=False)
class Place:
    """Where in a SELECT an expression stands.

    ``clause`` is for ON the clause or group that the join is in, for LATERAL the FROM clause.
    """

    scope: Scope
    key: str  # the clause: ``"expressions"``, ``"where"``, ``"on"``, ``"order"`` and so on
    clause: FromClause | None = None
    end: int = 0  # for ON the join's number there; for LATERAL how many items and views are seen


class Scopes:
    """The SELECTs of one query: inner ones before outer ones, and in the order of the text."""

    def __init__(self, statement: Statement) -> None:
        assert statement.root is not None
        self.all = [_scope_of(statement, select) for select in _postorder(statement.root)]
        self._by_select = {id(scope.select): scope for scope in self.all}
        self._places: dict[int, Place] = {}  # by the ids of conditions of ON, and of LATERALs
        for scope in self.all:
            if scope.clause is not None:
                self._note(scope, scope.clause)

    def of(self, select: exp.Expr) -> Scope:
        return self._by_select[id(select)]

    def relations(self) -> Iterator[tuple[Scope, Relation]]:
        """Yield every relation of every FROM clause that is read here."""
        for scope in self.all:
            for relation in scope.clause.relations() if scope.clause else ():
                yield scope, relation

    def find(self, node: exp.Expr | None) -> tuple[Scope, Relation] | None:
        """Return the relation that a syntax tree is, with its SELECT; None for any other."""
        return next((pair for pair in self.relations() if pair[1].node is node), None)

    def _note(self, scope: Scope, clause: FromClause) -> None:
        for item in clause.every():
            if item.on is not None:
                self._places[id(item.on)] = Place(scope, "on", item.clause, item.place)
            if item.relation is not None and item.relation.kind == "lateral":
                self._places[id(item.relation.node)] = Place(scope, "lateral", item.clause, item.place)
        for number, view in enumerate(clause.views, len(clause.items)):
            self._places[id(view.node)] = Place(scope, "lateral", clause, number)

    def find_place(self, node: exp.Expr) -> Place | None:
        """Return where an expression stands: the SELECT in whose FROM clause its names are looked up first.

        For a SELECT inside another that is the place from which it reads the outer one's columns, None where
        it cannot.
        """
        child, apart, inside = node, False, ""
        while (parent := child.parent) is not None:
            if (place := self._places.get(id(child))) is not None:
                return replace(place, key=inside or place.key)
            if isinstance(parent, exp.Pivot):
                inside = "pivot"
            elif isinstance(child, exp.Lateral):
                inside = "lateral"
            elif isinstance(parent, exp.Join) and child.arg_key == "on":
                inside = inside or "on"
            elif isinstance(parent, exp.From | exp.Join | exp.With):
                apart = True
            elif isinstance(parent, exp.SetOperation) and isinstance(child, exp.With):
                apart = False
            elif isinstance(parent, exp.Select):
                if apart and not inside:
                    return self.find_place(parent)
                return Place(self.of(parent), inside or str(child.arg_key))
            child = parent
        return None


def _postorder(root: exp.Expr) -> list[exp.Select]:
    """Return SELECTs after everything inside them; definitions come before their uses."""
    selects: list[exp.Select] = []
    left = [root]  # no recursion: a condition may have thousands of terms
    while left:
        node = left.pop()
        if isinstance(node, exp.Select):
            selects.append(node)
        first = node.args.get("with_")
        left += [] if first is None else [first]
        left += [child for child in node.iter_expressions() if child is not first]
    return selects[::-1]  # the last ones inside were visited first


def _scope_of(statement: Statement, select: exp.Select) -> Scope:
    try:
        return Scope(select, _read_from(statement, select))
    except Unsupported as error:
        return Scope(select, None, str(error))


def _read_from(statement: Statement, select: exp.Select) -> FromClause | None:
    """Return the FROM clause of a SELECT, None if there is none; Unsupported where only Spark handles it."""
    start = select.args.get("from_")
    if start is None:
        return None
    if select.args.get("pivots"):
        raise Unsupported("PIVOT over a whole FROM")
    clause = _clause(statement, start.this, list(select.args.get("joins") or ()))
    clause.span = (_span(statement, start)[0], clause.span[1])
    first = select.expressions[0] if select.expressions else None
    if first is not None and statement.has_span(first) and statement.span(first)[0] > clause.span[0]:
        raise Unsupported("FROM written before SELECT")
    clause.views = [_relation(statement, view, "view") for view in select.args.get("laterals") or ()]
    clause.where = where_conjuncts(select)
    return clause


def _span(statement: Statement, node: exp.Expr) -> Span:
    return statement.span(node, "a FROM clause")


def _clause(statement: Statement, first: exp.Expr, joins: list[exp.Join]) -> FromClause:
    items = [_item(statement, first, None), *(_item(statement, join.this, join) for join in joins)]
    (start, end), ends = items[0].item, [_span(statement, join)[1] for join in joins]
    commas = [join for join in joins if _is_comma(statement, join)]
    return FromClause(items, (start, max([end, *ends])), mixed=0 < len(commas) < len(joins))


def _is_comma(statement: Statement, join: exp.Join) -> bool:
    return statement.text.startswith(",", _span(statement, join)[0])


def _is_from_item(node: exp.Expr) -> bool:
    """Tell whether what stands in parentheses is an item of FROM, perhaps with joins, and not a query."""
    if not isinstance(node, exp.Subquery):
        return not isinstance(node, exp.Query)
    return bool(node.alias or node.args.get("joins")) or _is_from_item(node.this)


def _item(statement: Statement, node: exp.Expr, join: exp.Join | None) -> FromItem:
    kind, semi, keyword = ("inner", False, "JOIN") if join is None else _kind(join)
    content: Relation | FromClause
    pivots = node.args.get("pivots") or (join is not None and join.args.get("pivots"))
    # ``(a JOIN b …)``, in any number of parentheses, without a name.
    if isinstance(node, exp.Subquery) and not node.alias and _is_from_item(node.this):
        if pivots or node.args.get("sample"):
            raise Unsupported("a parenthesised join with PIVOT or TABLESAMPLE")
        content = _clause(statement, node.this, list(node.this.args.get("joins") or ()))
    else:
        if join is not None and pivots and not _is_comma(statement, join):
            raise Unsupported("PIVOT or UNPIVOT over a join")
        content = _relation(statement, node)
    item = FromItem(content, kind, keyword, _span(statement, node), semi=semi, join=join)
    if join is not None:
        on = join.args.get("on")
        # The parser writes ON TRUE where the text has no condition.
        item.on = on if on is not None and statement.has_span(on) else None
        item.using = tuple(name.name for name in join.args.get("using") or ())
        item.natural = join.method.upper() == "NATURAL"
    return item


def _relation(statement: Statement, node: exp.Expr, kind: Kind = "lateral") -> Relation:
    alias = node.alias or None
    written = node.args.get("alias")
    names = written.args.get("columns") if isinstance(written, exp.TableAlias) else None
    columns = tuple(name.name for name in names or ())
    qualifier = (alias.lower(),) if alias else ()
    item, plain = _span(statement, node), not node.args.get("sample")
    if isinstance(node, exp.Lateral):
        return Relation(node, kind, alias, qualifier, columns, item)
    is_pivoted = bool(node.args.get("pivots"))
    if isinstance(node, exp.Table) and isinstance(node.this, exp.Identifier) and not is_pivoted:
        cte = cte_of(node)
        parts = qualifier or tuple(part.name.lower() for part in node.parts)
        plain = plain and not any(node.args.get(name) for name in ("when", "version"))
        kind = "table" if cte is None else "cte"
        return Relation(node, kind, alias or node.name, parts, columns, item, plain, cte)
    if isinstance(node, exp.Subquery) and not _is_from_item(node.this) and not is_pivoted:
        return Relation(node, "query", alias, qualifier or (_UNNAMED,), columns, item, plain)
    return Relation(node, "rows", alias, qualifier, columns, item, plain)


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


def cte_of(node: exp.Table) -> exp.CTE | None:
    """Return the common table expression that a table's name means, None for a base table."""
    if len(node.parts) != 1 or not isinstance(node.this, exp.Identifier):
        return None
    return next((cte for cte in _visible(node) if cte.alias.lower() == node.name.lower()), None)


def _visible(node: exp.Expr) -> Iterator[exp.CTE]:
    """Yield the common table expressions that a table's name may mean in a place, nearest first."""
    child: exp.Expr = node
    while (parent := child.parent) is not None:
        if isinstance(parent, exp.With):
            place = child.index or 0
            yield from reversed(parent.expressions[: place + bool(parent.args.get("recursive"))])
        elif isinstance(parent, exp.Query) and not isinstance(child, exp.With):
            yield from reversed(parent.ctes)
        child = parent


def within(node: exp.Expr) -> Iterator[exp.Expr]:
    """Yield a relation or query and all of its parts; the first of a group does not contain the others."""
    yield node
    for child in node.iter_expressions():
        if child.arg_key != "joins" or isinstance(node, exp.Select):
            yield from child.walk()


def tables_in(node: exp.Expr) -> Iterator[exp.Table]:
    """Yield the tables that a relation or query names, itself included; names in hints are none."""
    for part in within(node):
        is_named = isinstance(part.this, exp.Identifier) and not isinstance(part.parent, exp.JoinHint)
        if isinstance(part, exp.Table) and is_named:
            yield part


def in_recursion(node: exp.Expr) -> bool:
    """Tell whether a query stands in a common table expression that reads itself, and so runs many times."""
    cte = node.find_ancestor(exp.CTE)
    return cte is not None and (any(cte_of(table) is cte for table in tables_in(cte)) or in_recursion(cte))


def definitions(node: exp.Expr) -> list[exp.CTE]:
    """Return every common table expression outside a piece of the query that it reads, directly or not."""
    return [piece for piece, _ in _read_with(node) if isinstance(piece, exp.CTE) and piece is not node]


def _read_with(node: exp.Expr) -> Iterator[tuple[exp.Expr, list[tuple[exp.Table, exp.CTE | None]]]]:
    """Yield a piece of the query and what it reads outside, each with the tables that it names."""
    pieces, known = [node], set[int]()
    for piece in pieces:
        named = [(table, cte_of(table)) for table in tables_in(piece)]
        yield piece, named
        for _, cte in named:
            if cte is not None and id(cte) not in known and not _is_part(cte, piece):
                known.add(id(cte))
                pieces.append(cte)


def _is_part(node: exp.Expr | None, whole: exp.Expr) -> bool:
    while node is not None and node is not whole:
        node = node.parent
    return node is whole


def is_recursive(cte: exp.CTE) -> bool:
    """Tell whether a common table expression may read itself."""
    with_ = cte.find_ancestor(exp.With)
    return with_ is None or bool(with_.args.get("recursive"))


def base_tables(node: exp.Expr) -> list[exp.Table]:
    """Return the base tables that a piece of the query reads, also through common table expressions."""
    return [table for _, named in _read_with(node) for table, cte in named if cte is None]


def with_prefix(
    statement: Statement, nodes: exp.Expr | Sequence[exp.Expr], render: Callable[[Span], str]
) -> str:
    """Return the WITH clause that relations or queries need when taken out of their places."""
    pieces = [nodes] if isinstance(nodes, exp.Expr) else nodes
    needed = list({id(cte): cte for node in pieces for cte in definitions(node)}.values())
    if any(map(is_recursive, needed)):
        raise Unsupported("a recursive common table expression")
    needed.sort(key=lambda cte: statement.span(cte, "a common table expression")[0])
    names = [cte.alias.lower() for cte in needed]
    if len(set(names)) != len(names):
        raise Unsupported("common table expressions that hide each other")
    return "WITH " + ", ".join(render(statement.span(cte)) for cte in needed) + " " if needed else ""


def inline_definitions(statement: Statement, text: EditedText) -> str | None:
    """Return the query's template with each common table expression in the place of its names.

    None where that would be long, and of definitions that read themselves or are sampled.
    """
    assert statement.root is not None
    edits = [Edit(*statement.span(each, "a WITH clause"), ()) for each in statement.root.find_all(exp.With)]
    readers: defaultdict[int, list[exp.CTE]] = defaultdict(list)  # by the definition that they stand in
    for table in tables_in(statement.root):
        cte, around = cte_of(table), table.find_ancestor(exp.CTE)
        if cte is None:
            continue
        if is_recursive(cte) or table.args.get("sample"):
            return None
        readers[id(around)].append(cte)
        alias = "" if table.alias else f" AS {quote(table.name)}"
        columns = ", ".join(quote(column.name) for column in cte.args["alias"].columns)
        before, behind = ("(SELECT * FROM (", f") AS __d({columns}))") if columns else ("(", ")")
        edits.append(Edit(*name_span(table), (before, statement.span(cte.this), behind + alias)))
    # A definition ends behind those that it reads.
    ordered = sorted(statement.root.find_all(exp.CTE), key=lambda cte: statement.span(cte)[1])
    sizes: dict[int, int] = {}
    for cte in (*ordered, None):
        sizes[id(cte)] = 1 + sum(sizes[id(read)] for read in readers[id(cte)])
    if sizes[id(None)] > _MOST_IN_PLACE:
        return None
    return text.with_edits((0, len(statement.text)), edits)
