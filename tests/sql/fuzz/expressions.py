"""Values: columns, literals, and what is computed from them without ever failing."""

from __future__ import annotations

from collections.abc import Sequence

from tests.sql import cases
from tests.sql.fuzz.gen import Gen, fill, quote
from tests.sql.fuzz.scope import Ref, Scope

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
        return _computed(g, scope, kind, deep - 1)
    found = ref(g, scope, (kind,))
    return g.spell(found.parts) if found and g.chance(0.93) else literal(g, kind)


def computed(g: Gen, scope: Scope, kind: str) -> str:
    """Return an expression that is more than a column."""
    if kind in COMPUTED:
        return _computed(g, scope, kind, 1)
    return value(g, scope, kind)


def _computed(g: Gen, scope: Scope, kind: str, deep: int) -> str:
    if kind == "int" and g.chance(0.08):
        return _inside(g, scope)
    return fill(
        g.pick(COMPUTED[kind]),
        lambda name: g.pick("1234") if name == "lit" else _wrapped(value(g, scope, name, deep)),
    )


def _wrapped(text: str) -> str:
    """Put an expression of several words into parentheses."""
    if text.startswith("("):
        return f"({text})"
    return f"({text})" if any(c in text for c in " +-*/|:") and not text.startswith(("'", '"', "`")) else text


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
