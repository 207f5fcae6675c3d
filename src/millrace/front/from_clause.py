"""A FROM clause as a chain of links, as Spark reads it: strictly from left to right.

The relations of the chain that inner joins bring in (comma, CROSS and INNER JOIN) may be moved
together in front of left joins, with their ON conditions as filters at the end:
``((a LEFT JOIN c) JOIN b ON p) = filter_p((a x b) LEFT JOIN c)``, because a left, semi or anti join
treats every row of its left side by itself. A RIGHT or FULL join does not, so it ends the part of
the chain that a block can come from, and keeps WHERE from being pushed below it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sqlglot import exp

from millrace.front.leave import Leave
from millrace.front.names import Scope, Source, is_join_group
from millrace.front.parse import Span, Statement


@dataclass(eq=False)
class Link:
    """A relation and how it joins what stands left of it.

    Attributes:
        sources: The relation; several for a parenthesised group that stays as it is.
        kind: ``"inner"``, ``"left"`` (outer, semi and anti), ``"right"`` or ``"full"``.
        ons: Conditions of an inner link.
        using: Lower-case columns of USING, or of NATURAL once they are known.
        natural: A NATURAL join.
        semi: A semi or anti join, whose right side is not visible above.
        item: The characters of the relation with its alias.
        span: The characters of the whole link, join keywords and condition included.
        fixed: The link stays as written, whatever happens around it.
    """

    sources: tuple[Source, ...]
    kind: str
    item: Span
    span: Span
    ons: list[exp.Expr] = field(default_factory=list)
    using: tuple[str, ...] = ()
    natural: bool = False
    semi: bool = False
    fixed: bool = False
    join: exp.Join | None = None


@dataclass(eq=False)
class Chain:
    """The links of one FROM clause.

    Attributes:
        links: All of them, from left to right.
        span: The characters of the clause, from FROM to the end of the last link.
        movable: How many links stand before the first RIGHT or FULL join.
        where: The WHERE condition, None when there is none.
    """

    scope: Scope
    links: list[Link]
    span: Span
    movable: int
    where: exp.Expr | None

    @property
    def whole(self) -> bool:
        """Whether no RIGHT or FULL join keeps filters from moving."""
        return self.movable == len(self.links)


def read_chain(statement: Statement, scope: Scope, least: int = 2) -> Chain | None:
    """Return the chain of a SELECT; None when it has no FROM of at least so many relations.

    Raises:
        Leave: The clause has a form that only Spark handles.
    """
    select = scope.select
    start = select.args.get("from_")
    joins = list(select.args.get("joins") or ())
    if start is None or len(scope.sources) < least:
        return None
    if select.args.get("laterals"):
        raise Leave("LATERAL VIEW")
    for join in joins:
        if isinstance(join.this, exp.Lateral):
            raise Leave("a LATERAL join")
        if join.args.get("pivots"):
            raise Leave("PIVOT")
    if not statement.has_span(start) or not all(statement.has_span(j) for j in joins):
        raise Leave("a FROM clause in a form that Millrace does not read")
    if statement.span(start)[0] < _select_start(statement, select):
        raise Leave("FROM written before SELECT")
    by_node = {id(source.node): source for source in scope.sources}
    links = _relation(statement, start.this, None, by_node)
    for join in joins:
        links += _relation(statement, join.this, join, by_node)
    end = max([statement.span(start)[1], *(statement.span(j)[1] for j in joins)])
    movable = next((i for i, link in enumerate(links) if link.kind in ("right", "full")), len(links))
    where = select.args.get("where")
    condition = where.this if where is not None else None
    return Chain(scope, links, (statement.span(start)[0], end), movable, condition)


def _select_start(statement: Statement, select: exp.Select) -> int:
    first = select.expressions[0] if select.expressions else None
    return statement.span(first)[0] if first is not None and statement.has_span(first) else 0


def _kind(join: exp.Join) -> tuple[str, bool]:
    side, kind = join.side.upper(), join.kind.upper()
    if kind in ("SEMI", "ANTI"):
        return "left", True
    if side in ("LEFT", "RIGHT", "FULL"):
        return side.lower(), False
    if kind in ("", "INNER", "CROSS"):
        return "inner", False
    raise Leave(f"a {side} {kind} join".replace("  ", " "))


def _relation(
    statement: Statement, node: exp.Expr, join: exp.Join | None, by_node: dict[int, Source]
) -> list[Link]:
    """Return the link of one relation, or those of a parenthesised group of inner joins."""
    kind, semi = ("inner", False) if join is None else _kind(join)
    span = statement.span(join if join is not None else node)
    group = _group(node)
    if group is None:
        link = Link((by_node[id(node)],), kind, statement.span(node), span, semi=semi, join=join)
        _condition(statement, link, join)
        return [link]
    outer = Link((), kind, statement.span(node), span, semi=semi, fixed=True, join=join)
    _condition(statement, outer, join)
    if kind == "inner" and not outer.using and not outer.natural:
        links = [link for part, by in group for link in _relation(statement, part, by, by_node)]
        if all(k.kind == "inner" and not (k.using or k.natural or k.fixed) for k in links):
            links[-1].ons += outer.ons
            return links
    outer.sources = tuple(source for source in by_node.values() if _is_within(source.node, node))
    return [outer]


def _group(node: exp.Expr) -> list[tuple[exp.Expr, exp.Join | None]] | None:
    """Return the relations and joins of ``(a JOIN b …)``, None for a single relation."""
    if not is_join_group(node):
        return None
    if node.args.get("pivots") or node.args.get("sample"):
        raise Leave("a parenthesised join with PIVOT or TABLESAMPLE")
    return [(node.this, None), *((join.this, join) for join in node.this.args.get("joins") or ())]


def _is_within(node: exp.Expr, outer: exp.Expr) -> bool:
    current: exp.Expr | None = node
    while current is not None:
        if current is outer:
            return True
        current = current.parent
    return False


def _condition(statement: Statement, link: Link, join: exp.Join | None) -> None:
    if join is None:
        return
    on = join.args.get("on")
    # The parser writes ON TRUE where the text has no condition.
    if on is not None and statement.has_span(on):
        link.ons.append(on)
    link.using = tuple(name.name.lower() for name in join.args.get("using") or ())
    link.natural = join.method.upper() == "NATURAL"
