"""Subqueries in conditions and in SELECT lists, correlated or not."""

from __future__ import annotations

from tests.sql.fuzz.conditions import compare
from tests.sql.fuzz.expressions import ref
from tests.sql.fuzz.gen import Gen
from tests.sql.fuzz.scope import Scope

KEYS = ("int", "string")


def subquery_condition(g: Gen, scope: Scope, depth: int, *, joined: bool = False) -> str:
    """Return a condition with one or two subqueries; less of it for an ON."""
    first = _single(g, scope, depth, joined=joined)
    if not g.chance(0.35):
        return first
    other = _single(g, scope, depth, joined=joined) if g.chance(0.6) else compare(g, scope)
    both = g.pick([" OR ", " OR ", " AND "]).join(g.some([first, other], 2, 2))
    return f"{g.pick(['', '', '', 'NOT '])}({both})"


def _single(g: Gen, scope: Scope, depth: int, *, joined: bool) -> str:
    """Return EXISTS, IN, a row IN, or a comparison with a scalar subquery."""
    form = g.weigh(exists=4, into=5, rows=1.5, scalar=3 * (not joined))
    if form == "scalar":
        found = ref(g, scope, ("int",))
        if found is not None:
            return f"{g.spell(found.parts)} {g.pick(['>', '=', '<=', '<>'])} {scalar(g, scope, depth)}"
    if form in ("into", "rows"):
        keys = [ref(g, scope, KEYS) for _ in range(2 if form == "rows" else 1)]
        if all(keys):
            names = ", ".join(g.spell(key.parts) for key in keys)
            inner = _block(g, None if joined else scope, depth, [key.type.kind for key in keys])
            left = f"({names})" if len(keys) > 1 else names
            return f"{left} {g.pick(['IN', 'IN', 'IN', 'NOT IN'])} ({inner})"
    return (
        f"{g.pick(['', '', 'NOT '])}EXISTS ({_block(g, None if joined else scope, depth, None, always=True)})"
    )


def _block(g: Gen, scope: Scope | None, depth: int, want: list[str] | None, *, always: bool = False) -> str:
    outer = scope if g.chance(0.85 if always else 0.3) else None
    return g.block(g, depth - 1, outer=outer, want=want, small=True).text


def scalar(g: Gen, scope: Scope, depth: int) -> str:
    """Return a subquery that gives one number."""
    outer = scope if g.chance(0.5) else None
    return f"({g.block(g, depth - 1, outer=outer, total=True, small=True).text})"
