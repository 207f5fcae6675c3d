"""Random SQL that Spark accepts, most of it inner joins.

Whatever a query calls is deterministic and does not fail on the tables in :mod:`tests.sql.fuzz.tables`.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from tests.sql.fuzz import types
from tests.sql.fuzz.gen import Gen, Relation, quote
from tests.sql.fuzz.scope import Scope
from tests.sql.fuzz.selects import Block, select
from tests.sql.fuzz.types import Type

CTE_NAMES = ["a", "b", "c", "k", "t", "q", "r", "e", "cte", "odd name", "st", "A"]
_OUTSIDE = re.compile(r"('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|`(?:[^`])*`|/\*.*?\*/|--[^\n]*\n)", re.DOTALL)


def query(draw: Callable[[int], int]) -> str:
    """Return the text of a query that these choices make; see :class:`Gen`."""
    g = Gen(draw, block)
    text = _statement(g, g.pick([1, 1, 2])).text
    if g.chance(0.2):
        text = "".join(t if n % 2 else t.lower() for n, t in enumerate(_OUTSIDE.split(text)))
    return text + (";" if g.chance(0.02) else "")


def _statement(g: Gen, depth: int) -> Block:
    if g.chance(0.2):
        return _with(g, depth)
    return _operation(g, depth) if g.chance(0.12) else select(g, depth)


def block(
    g: Gen,
    depth: int,
    *,
    outer: Scope | None = None,
    want: list[str] | None = None,
    total: bool = False,
    small: bool = False,
) -> Block:
    """Return a query for inside another; see :func:`tests.sql.fuzz.selects.select`."""
    wanted = None if want is None else [types.OF_KIND[kind] for kind in want]
    if outer is None and wanted is None and not total and depth >= 0:
        form = g.weigh(select=86, **{"with": 5, "union": 7})
        if form == "with":
            return _with(g, depth)
        if form == "union":
            return _operation(g, depth, small=True)
    return select(g, max(depth, 0), outer=outer, want=wanted, total=total, small=small)


def _with(g: Gen, depth: int) -> Block:
    """Return a query with CTEs, of which each may name those before it."""
    known, texts = dict(g.ctes), []
    names: set[str] = set()
    for _ in range(g.number(1, 3)):
        name = g.alias(names, CTE_NAMES)
        with g.within(known):
            text, relation = _common(g, name, depth)
        texts.append(text)
        known = {**known, name.lower(): relation}
    with g.within(known):
        body = _operation(g, depth) if g.chance(0.15) else select(g, depth)
    return Block(g.join([f"WITH {f',{g.gap()}'.join(texts)}", body.text]), body.columns, body.rows)


def _common(g: Gen, name: str, depth: int) -> tuple[str, Relation]:
    inner = block(g, depth - 1, small=True)
    columns, listed = inner.columns, ""
    if g.chance(0.25):
        used: set[str] = set()
        columns = [(g.alias(used, ["id", "k", "v", "s", "x", "b", "n"]), type_) for _, type_ in columns]
        listed = f"({', '.join(quote(column) for column, _ in columns)})"
    text = f"{g.quoted(name)}{listed} AS ({inner.text})"
    return text, Relation(name, tuple(columns), inner.rows)


def _operation(g: Gen, depth: int, *, small: bool = False) -> Block:
    left = select(g, depth, small=small)
    want: list[Type] = [type_ for _, type_ in left.columns]
    if any(_unknown(type_) for type_ in want) or "LIMIT" in left.text or len(want) > 12:
        return left
    words = ["UNION ALL", "UNION ALL", "UNION", "INTERSECT", "EXCEPT", "MINUS", "EXCEPT ALL", "INTERSECT ALL"]
    word = g.pick(words if all(type_.comparable for type_ in want) else ["UNION ALL"])
    right = select(g, depth, want=want, small=True)
    first, second = left.text, right.text
    if "ORDER BY" in first or g.chance(0.2):
        first = f"({first})"
    if g.chance(0.2):
        second = f"({second})"
    text = g.join([first, word, second])
    if g.chance(0.1) and all(type_.comparable for type_ in want):
        text += f" ORDER BY {', '.join(str(n) for n in range(1, len(want) + 1))} LIMIT {g.pick([2, 5])}"
    columns = [(name, _joined(type_)) for name, type_ in left.columns]
    return Block(text, columns, left.rows + right.rows)


def _unknown(type_: Type) -> bool:
    return type_.kind == "other" or any(_unknown(part) for _, part in type_.parts)


def _joined(type_: Type) -> Type:
    """Return the type of a column of a set operation: strings with numbers meet strings without."""
    return types.STRING if type_.kind == "digits" else type_
