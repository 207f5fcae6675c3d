"""Values that never fail, and conditions: equalities that join, filters, subqueries, all between."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.sql import cases
from tests.sql.fuzz.gen import NUMBERS, PLAIN, TEXTS, Attr, Gen, Ref, Scope, fill, meet, quote

LITERALS = cases.lines("fuzz/literals")
COMPUTED = cases.lines("fuzz/computed")
"""Templates: ``{int}`` stands for another value of that kind, ``{lit}`` for a small number."""


def ref(g: Gen, scope: Scope, kinds: Sequence[str], *, whole: bool = False) -> Ref | None:
    """Return a way to name something of one of these kinds: every column is as likely."""
    found = [r for r in scope.refs if r.type.kind in kinds and (r.whole or not whole)]
    return chosen(g, found) if found else None


def chosen(g: Gen, refs: Sequence[Ref]) -> Ref:
    """Choose a column, and a way to name it."""
    attr = g.pick(list(dict.fromkeys(r.attr for r in refs)))
    return naming(g, [r for r in refs if r.attr is attr])


def naming(g: Gen, refs: Sequence[Ref]) -> Ref:
    """Choose between names for the same column: mostly those with a relation in front."""
    whole = [r for r in refs if r.whole]
    refs = whole if whole and g.chance(0.7) else refs
    longest = max(len(r.parts) for r in refs)
    return g.pick([r for r in refs if len(r.parts) == longest] if g.chance(0.6) else refs)


def literal(g: Gen, kind: str) -> str:
    return g.pick(LITERALS[kind])


def value(g: Gen, scope: Scope, kind: str, deep: int = 1) -> str:
    """Return an expression of a kind, at most that deep."""
    if kind == "array":
        return _array(g, scope, deep)
    if kind == "struct":
        return _struct(g, scope, deep)
    if kind == "map":
        found = ref(g, scope, ("map",))
        return g.spell(found.parts) if found else f"map('x', {value(g, scope, 'int', deep - 1)})"
    if deep > 0 and kind in COMPUTED and g.chance(0.35):
        return computed(g, scope, kind, deep - 1)
    found = ref(g, scope, (kind,))
    return g.spell(found.parts) if found and g.chance(0.93) else literal(g, kind)


def computed(g: Gen, scope: Scope, kind: str, deep: int = 1) -> str:
    """Return an expression that is more than a column, where there are such of the kind."""
    if kind not in COMPUTED:
        return value(g, scope, kind)
    if kind == "int" and g.chance(0.08):
        return _inside(g, scope)
    return fill(
        g.pick(COMPUTED[kind]),
        lambda name: g.pick("1234") if name == "lit" else _wrapped(value(g, scope, name, deep)),
    )


def _wrapped(text: str) -> str:
    is_one = text.startswith(("'", '"', "`")) or not any(c in text for c in " +-*/|:")
    return text if is_one and not text.startswith("(") else f"({text})"


def _inside(g: Gen, scope: Scope) -> str:
    """Return a number from inside an array, a map or a struct."""
    found = ref(g, scope, ("array", "map"), whole=True)
    if found is None:
        return value(g, scope, "int", 0)
    text, inner = g.spell(found.parts), dict(found.type.parts)
    if found.type.kind == "map":
        return g.pick([f"{text}['x']", f"element_at({text}, 'x')", f"{text}.x"])
    if inner["element"].kind == "struct":
        return g.pick([f"try_element_at({text}, 1).id", f"get({text}, 0).`id`"])
    return g.pick(
        [f"get({text}, 0)", f"try_element_at({text}, 1)", f"aggregate({text}, 0, (id, k) -> id + k)"]
    )


def _array(g: Gen, scope: Scope, deep: int) -> str:
    """Return an array of numbers, now and then by a lambda whose parameter is called like a column."""
    found = [r for r in scope.refs if r.type.kind == "array" and r.type.parts[0][1].kind == "int"]
    if found and g.chance(0.7):
        plain = g.spell(g.pick(found).parts)
    else:
        plain = f"array({value(g, scope, 'int', 0)}, {value(g, scope, 'int', 0)})"
    if deep <= 0 or g.chance(0.5):
        return plain
    name = g.pick(["id", "k", "x", "a", "t", "arr", "merge"])
    other = value(g, scope, "int", 0)
    return g.pick(
        [
            f"transform({plain}, {name} -> {name} + 1)",
            f"transform({plain}, {name} -> {name} + {_unlike(other, name)})",
            f"filter({plain}, {name} -> {name} > 1)",
            f"transform({plain}, ({name}, i) -> i)",
            f"filter({plain}, {name} -> {name} = {_unlike(other, name)})",
        ]
    )


def _unlike(text: str, name: str) -> str:
    """Return the text unless it begins with the name: a parameter has no fields."""
    return "1" if text.lower().replace("`", "").startswith(name) else text


def _struct(g: Gen, scope: Scope, deep: int) -> str:
    """Return a struct whose field names come from columns."""
    found = ref(g, scope, ("struct",))
    if found is not None and g.chance(0.4):
        return g.spell(found.parts)
    fields = [value(g, scope, g.pick(["int", "string", "real"]), deep - 1) for _ in range(2)]
    inside = ", ".join(fields)
    star = f"{quote(g.pick(scope.qualifiers))}.*" if scope.qualifiers and g.chance(0.3) else "*"
    return g.pick([f"struct({inside})", f"({inside})", f"struct({inside})", f"struct({star})"])


# Conditions

CONDITIONS = cases.lines("fuzz/conditions")
"""Templates: ``{a}`` stands for a column, ``{lit}`` for a constant, all of types that meet."""
KEYS = ("int", "string")


def condition(g: Gen, scope: Scope, deep: int = 1) -> str:
    form = g.weigh(compare=10, either=2 * deep, flag=1, constant=0.4, mixed=2)
    if form == "either":
        return _either(g, scope)
    if form == "flag":
        found = ref(g, scope, ("bool",))
        if found is not None:
            return g.pick(["{}", "NOT {}", "{} IS TRUE", "{} = true"]).format(g.spell(found.parts))
    if form == "constant":
        return g.pick(CONDITIONS["constant"])
    if form == "mixed":
        return f"{value(g, scope, 'int')} {g.pick(['=', '<', '<>'])} {value(g, scope, 'int')}"
    return compare(g, scope)


def compare(g: Gen, scope: Scope) -> str:
    first = ref(g, scope, PLAIN)
    if first is None:
        return g.pick(CONDITIONS["constant"])
    kind, used = first.type.kind, []
    alike = [r for r in scope.refs if r.type.kind in PLAIN and meet(r.type, first.type)]
    choices = CONDITIONS["any"] + (CONDITIONS["texts"] if kind in TEXTS else [])
    choices = choices + (CONDITIONS["times"] * 2 if kind in ("date", "timestamp") else [])

    def made(name: str) -> str:
        if name == "lit":
            return _literal(g, kind)
        used.append(name)
        return g.spell((chosen(g, alike) if len(used) > 1 else first).parts)

    return fill(g.pick(choices), made)


def _literal(g: Gen, kind: str) -> str:
    if kind in NUMBERS and g.chance(0.25):
        return literal(g, g.pick(NUMBERS))
    if kind in NUMBERS and g.chance(0.07):
        return g.pick(["3000000000", "99999999999.99", "1e10", "0.1", "-5", "1.5000"])
    if kind in ("date", "timestamp") and g.chance(0.3):
        return g.pick(["'1995-01-02'", "'1995-01-01 00:00:00'", "'1995-1-1'"])
    return literal(g, kind)


def _either(g: Gen, scope: Scope) -> str:
    """Return an OR of ANDs; now and then one conjunct is in all of them."""
    common = compare(g, scope)
    parts = [f"({g.pick([common, compare(g, scope)])} AND {condition(g, scope, 0)})" for _ in range(2)]
    if g.chance(0.3):
        parts.append(compare(g, scope))
    return f"({' OR '.join(parts)})"


def linked(g: Gen, left: Scope, right: Scope) -> tuple[Attr, Attr] | None:
    """Return a column of each side that are worth an equality: mostly keys."""
    kinds = g.weigh(keys=8, texts=2, any=2)
    everything = (*PLAIN, "large", "struct", "binary", "array")
    wanted = {"keys": ("int",), "texts": ("string",), "any": everything}[kinds]
    ours = [a for a in left.shown if a.type.kind in wanted and a.type.comparable and left.naming(a)]
    pairs = [
        (a, b)
        for a in ours
        for b in right.shown
        if b.type.comparable and meet(a.type, b.type) and right.naming(b)
    ]
    if not pairs:
        return None
    alike = [(a, b) for a, b in pairs if a.name and b.name and a.name.lower() == b.name.lower()]
    return g.pick(alike if alike and g.chance(0.55) else pairs)


def equality(g: Gen, scope: Scope, pair: tuple[Attr, Attr]) -> str | None:
    """Write an equality of two columns as the scope lets it be named, or None where it does not."""
    names = [scope.naming(attr) for attr in pair]
    if not all(names):
        return None
    left, right = (g.spell(naming(g, found).parts) for found in g.shuffled(names))
    sign = g.weigh(equal=20, safe=1, twice=0.5)
    return f"{left} {'<=>' if sign == 'safe' else '==' if sign == 'twice' else '='} {right}"


def correlated(g: Gen, inner: Scope, outer: Scope) -> str | None:
    """Return an equality of a column of a subquery with one of the query around it."""
    mine = [r for r in inner.refs if r.type.kind in PLAIN]
    theirs = [r for r in outer.refs if r.type.kind in PLAIN and not inner.find(r.parts)]
    keys = [r for r in mine if r.type.kind == "int"]
    first = g.pick(keys if keys and g.chance(0.7) else mine) if mine else None
    theirs = [r for r in theirs if first is not None and meet(first.type, r.type)]
    if first is None or not theirs:
        return None
    second = naming(g, theirs) if g.chance(0.5) else g.pick(theirs)
    left, right = g.shuffled([g.spell(first.parts), g.spell(second.parts)])
    return f"{left} = {right}"


def subquery_condition(g: Gen, scope: Scope, depth: int, *, joined: bool = False) -> str:
    """Return a condition with one or two subqueries; less of it for an ON."""
    first = _single(g, scope, depth, joined=joined)
    if not g.chance(0.35):
        return first
    other = _single(g, scope, depth, joined=joined) if g.chance(0.6) else compare(g, scope)
    both = g.pick([" OR ", " OR ", " AND "]).join(g.shuffled([first, other]))
    return f"{g.pick(['', '', '', 'NOT '])}({both})"


def _single(g: Gen, scope: Scope, depth: int, *, joined: bool) -> str:
    """Return EXISTS, IN, a row IN, or a comparison with a scalar subquery."""
    form = g.weigh(exists=4, into=5, rows=1.5, scalar=3 * (not joined))
    around = None if joined else scope
    if form == "scalar":
        found = ref(g, scope, ("int",))
        if found is not None:
            return f"{g.spell(found.parts)} {g.pick(['>', '=', '<=', '<>'])} {scalar(g, scope, depth)}"
    if form in ("into", "rows"):
        keys = [ref(g, scope, KEYS) for _ in range(2 if form == "rows" else 1)]
        if all(keys):
            names = ", ".join(g.spell(key.parts) for key in keys)
            inner = _subquery(g, around, depth, 0.3, want=[key.type.kind for key in keys])
            left = f"({names})" if len(keys) > 1 else names
            word = g.pick(["IN", "IN", "IN", "NOT IN"])
            # Spark's NOT IN beside an OR of an ON overlooks nulls, and of a WHERE it does not.
            return f"{left} {'IN' if joined else word} ({inner})"
    return f"{g.pick(['', '', 'NOT '])}EXISTS ({_subquery(g, around, depth, 0.85)})"


def scalar(g: Gen, scope: Scope, depth: int) -> str:
    return f"({_subquery(g, scope, depth, 0.5, total=True)})"


def _subquery(g: Gen, scope: Scope | None, depth: int, share: float, **how: Any) -> str:
    """Return a SELECT that may name columns of a scope, so often."""
    outer = scope if g.chance(share) else None
    return g.block(g, depth - 1, outer=outer, small=True, **how).text
