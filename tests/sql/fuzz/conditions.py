"""Conditions: equalities that join, filters of one relation, and everything between."""

from __future__ import annotations

from tests.sql.fuzz.expressions import literal, naming, ref, value
from tests.sql.fuzz.gen import Gen
from tests.sql.fuzz.scope import Attr, Ref, Scope
from tests.sql.fuzz.types import NUMBERS, PLAIN, TEXTS, meet

TEMPLATES = [
    "{a} = {a}",
    "{a} <=> {a}",
    "{a} < {a}",
    "{a} >= {lit}",
    "{a} <> {lit}",
    "{a} = {lit}",
    "{lit} = {a}",
    "{a} != {a}",
    "{a} IN ({lit}, {lit})",
    "{a} NOT IN ({lit}, {lit})",
    "{a} IN ({lit}, {a})",
    "{a} BETWEEN {lit} AND {lit}",
    "{a} NOT BETWEEN {lit} AND {a}",
    "{a} IS NULL",
    "{a} IS NOT NULL",
    "{a} IS DISTINCT FROM {a}",
    "{a} IS NOT DISTINCT FROM {lit}",
    "NOT ({a} = {a})",
    "NOT {a} = {lit}",
    "{a} = {lit} OR {a} = {lit}",
    "({a} > {lit}) IS TRUE",
    "coalesce({a}, {lit}) = {lit}",
    "CASE WHEN {a} = {lit} THEN true ELSE {a} IS NULL END",
]
TEXTUAL = [
    "{a} LIKE '%x%'",
    "{a} LIKE 'it''s%'",
    "{a} NOT LIKE 'x_'",
    "{a} RLIKE '^[xy]'",
    "{a} ILIKE 'X%'",
    "length({a}) > 0",
    "upper({a}) = upper({a})",
    "{a} LIKE ANY ('x%', '%y')",
    "startswith({a}, 'x')",
    "{a} LIKE '{{x}}'",
    "contains({a}, {a})",
]
DATED = ["{a} < current_date()", "current_timestamp() >= {a}", "{a} > DATE '1994-12-31' + INTERVAL '1' DAY"]
DATED += [
    "year({a}) = 1995",
    "{a} <= DATE '1995-01-31' - INTERVAL '1' MONTH",
    "{a} < now()",
    "{a} < DATE '+10000-01-01'",
]
CONSTANT = ["1 = 1", "true", "1 < 2 AND 2 < 3", "NOT false", "'x' = 'x'", "1 = 2", "(NULL AND true)"]


def condition(g: Gen, scope: Scope, deep: int = 1) -> str:
    """Return a condition on a scope."""
    form = g.weigh(compare=10, either=2 * deep, flag=1, constant=0.4, mixed=2, nested=1)
    if form == "either":
        return _either(g, scope)
    if form == "flag":
        found = ref(g, scope, ("bool",))
        if found is not None:
            return g.pick(["{}", "NOT {}", "{} IS TRUE", "{} = true"]).format(g.spell(found.parts))
    if form == "constant":
        return g.pick(CONSTANT)
    if form == "mixed":
        return f"{value(g, scope, 'int')} {g.pick(['=', '<', '<>'])} {value(g, scope, 'int')}"
    if form == "nested":
        return _tuple(g, scope)
    return compare(g, scope)


def compare(g: Gen, scope: Scope) -> str:
    """Return a comparison of columns and constants of one kind."""
    first = ref(g, scope, PLAIN)
    if first is None:
        return g.pick(CONSTANT)
    kind = first.type.kind
    choices = (
        TEMPLATES + (TEXTUAL if kind in TEXTS else []) + (DATED * 2 if kind in ("date", "timestamp") else [])
    )
    return fill(g, scope, g.pick(choices), first)


def fill(g: Gen, scope: Scope, template: str, first: Ref) -> str:
    """Put columns and constants that go with the first one into a template."""
    pieces, used = [], False
    for piece in template.replace("{{", "\0").replace("}}", "\1").split("{"):
        name, brace, rest = piece.partition("}")
        if not brace:
            pieces.append(name)
            continue
        if name == "lit":
            text = _literal(g, first.type.kind)
        elif used:
            text = partner(g, scope, first)
        else:
            text, used = g.spell(first.parts), True
        pieces.append(text + rest)
    return "".join(pieces).replace("\0", "{").replace("\1", "}")


def _literal(g: Gen, kind: str) -> str:
    if kind in NUMBERS and g.chance(0.25):
        return literal(g, g.pick(NUMBERS))
    if kind in NUMBERS and g.chance(0.07):
        return g.pick(["3000000000", "99999999999.99", "1e10", "0.1", "-5", "1.5000"])
    if kind in ("date", "timestamp") and g.chance(0.3):
        return g.pick(["'1995-01-02'", "'1995-01-01 00:00:00'", "'1995-1-1'"])
    return literal(g, kind)


def partner(g: Gen, scope: Scope, first: Ref) -> str:
    """Return another column that may be compared with this one, or a constant."""
    found = [r for r in scope.refs if r.type.kind in PLAIN and meet(r.type, first.type)]
    attr = g.pick(list(dict.fromkeys(r.attr for r in found)))
    return g.spell(naming(g, [r for r in found if r.attr is attr]).parts)


def _either(g: Gen, scope: Scope) -> str:
    """Return an OR of ANDs; now and then one conjunct is in all of them."""
    common = compare(g, scope)
    parts = [f"({g.pick([common, compare(g, scope)])} AND {condition(g, scope, 0)})" for _ in range(2)]
    if g.chance(0.3):
        parts.append(compare(g, scope))
    return f"({' OR '.join(parts)})"


def _tuple(g: Gen, scope: Scope) -> str:
    """Return a comparison of rows."""
    pairs = []
    for kind in ("int", "string"):
        first = ref(g, scope, (kind,))
        if first is None:
            pairs.append((literal(g, "string"), literal(g, "string")))
        else:
            alike = [r for r in scope.refs if r.type.sql == first.type.sql]
            pairs.append((g.spell(first.parts), g.spell(g.pick(alike).parts)))
    left, right = (", ".join(side) for side in zip(*pairs, strict=True))
    return f"({left}) {g.pick(['=', '<=>', '<>', '<'])} ({right})"


def linked(g: Gen, left: Scope, right: Scope) -> tuple[Attr, Attr] | None:
    """Return a column of each side that are worth an equality: mostly keys."""
    kinds = g.weigh(keys=8, texts=2, any=2)
    wanted = {"keys": ("int",), "texts": ("string",), "any": (*PLAIN, "large", "struct", "binary", "array")}[
        kinds
    ]
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
    left, right = (g.spell(naming(g, found).parts) for found in g.some(names, 2, 2))
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
    left, right = g.some([g.spell(first.parts), g.spell(second.parts)], 2, 2)
    return f"{left} = {right}"
