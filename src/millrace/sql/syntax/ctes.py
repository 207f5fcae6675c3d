"""Common table expressions: which one a name means, and the definitions that a piece of the query needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeGuard

from sqlglot import exp

from millrace.sql.syntax.edits import Span
from millrace.sql.syntax.parse import Statement, Unsupported


def cte_of(node: exp.Table) -> exp.CTE | None:
    """Return the common table expression that a table's name means, None for a base table."""
    if len(node.parts) != 1 or not isinstance(node.this, exp.Identifier):
        return None
    return next((cte for cte in _visible(node) if cte.alias.lower() == node.name.lower()), None)


def _visible(node: exp.Expr) -> Iterator[exp.CTE]:
    """Yield the common table expressions that a table's name may mean in a place, nearest first."""
    child: exp.Expr = node
    inside: exp.CTE | None = None
    while (parent := child.parent) is not None:
        if isinstance(child, exp.CTE):
            inside = child
        if isinstance(parent, exp.With):
            recursive = bool(parent.args.get("recursive"))
            place = next(i for i, cte in enumerate(parent.expressions) if cte is inside)
            yield from reversed(parent.expressions[: place + recursive])
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
    return filter(_is_named, within(node))


def _is_named(part: exp.Expr) -> TypeGuard[exp.Table]:
    named = isinstance(part, exp.Table) and isinstance(part.this, exp.Identifier)
    return named and not isinstance(part.parent, exp.JoinHint)


def in_recursion(node: exp.Expr) -> bool:
    """Tell whether a query stands in a common table expression that reads itself, and so runs many times."""
    cte = node.find_ancestor(exp.CTE)
    while cte is not None:
        if any(cte_of(table) is cte for table in tables_in(cte)):
            return True
        cte = cte.find_ancestor(exp.CTE)
    return False


def definitions(node: exp.Expr) -> list[exp.CTE]:
    """Return every common table expression outside a piece of the query that it reads, directly or not."""
    return _read(node)[0]


def base_tables(node: exp.Expr) -> list[exp.Table]:
    """Return the base tables that a piece of the query reads, also through common table expressions."""
    return _read(node)[1]


def _read(node: exp.Expr) -> tuple[list[exp.CTE], list[exp.Table]]:
    needed: list[exp.CTE] = []
    base: list[exp.Table] = []
    pieces = [node]
    for piece in pieces:
        parts = list(within(piece))
        known = {id(part) for part in (*parts, *needed) if isinstance(part, exp.CTE)}
        for table in filter(_is_named, parts):
            cte = cte_of(table)
            if cte is None:
                base.append(table)
            elif id(cte) not in known:
                known.add(id(cte))
                needed.append(cte)
                pieces.append(cte)
    return needed, base


def with_prefix(
    statement: Statement, nodes: exp.Expr | Sequence[exp.Expr], render: Callable[[Span], str]
) -> str:
    """Return the WITH clause that relations or queries taken out of their places need.

    Args:
        statement: The query.
        nodes: The pieces of it.
        render: Returns the text of a definition.

    Raises:
        Unsupported: The definitions cannot be put into one WITH clause.
    """
    pieces = [nodes] if isinstance(nodes, exp.Expr) else nodes
    needed = list({id(cte): cte for node in pieces for cte in definitions(node)}.values())
    for cte in needed:
        with_ = cte.find_ancestor(exp.With)
        if with_ is None or with_.args.get("recursive"):
            raise Unsupported("a recursive common table expression")
    needed.sort(key=lambda cte: statement.span(cte, "a common table expression")[0])
    names = [cte.alias.lower() for cte in needed]
    if len(set(names)) != len(names):
        raise Unsupported("common table expressions that hide each other")
    return "WITH " + ", ".join(render(statement.span(cte)) for cte in needed) + " " if needed else ""
