"""Values: columns, literals, and what is computed from them without ever failing."""

from __future__ import annotations

from collections.abc import Sequence

from tests.sql.fuzz import types
from tests.sql.fuzz.gen import Gen, quote
from tests.sql.fuzz.scope import Ref, Scope
from tests.sql.fuzz.types import Type

TYPE = {
    "bool": types.BOOL,
    "int": types.INT,
    "real": types.DOUBLE,
    "decimal": types.DECIMAL,
    "string": types.STRING,
    "digits": types.DIGITS,
    "binary": types.BINARY,
    "date": types.DATE,
    "timestamp": types.TIMESTAMP,
    "ntz": types.NTZ,
    "large": types.LARGE,
    "array": types.array(types.INT),
    "struct": types.OTHER,
}

LITERALS = {
    "bool": ["true", "false", "CAST(NULL AS boolean)"],
    "int": ["1", "2", "3", "4", "0", "1L", "2S", "-1", "CAST(NULL AS int)", "1 + 1", "int('2')"],
    "real": ["1.5D", "0.0D", "CAST('NaN' AS double)", "2.0F", "-0.0D", "1e0"],
    "decimal": ["1.50", "2.00", "9.99", "2", "0.0"],
    "string": [
        "'x'",
        "'y'",
        "'it''s {x}'",
        '"x"',
        "''",
        "'zz'",
        "'a.id'",
        "r'x'",
        "'p' 'q'",
        "'it\\'s {x}'",
        "lower('X')",
    ],
    "digits": ["'1'", "'2'", '"3"'],
    "binary": ["X'78'", "CAST('x' AS binary)"],
    "date": [
        "DATE '1995-01-01'",
        "DATE '1995-1-2'",
        "date'1996-02-29'",
        "CAST('1995-02-28' AS date)",
        "DATE '1995-01-01' + INTERVAL '1' DAY",
    ],
    "timestamp": ["TIMESTAMP '1995-01-01 00:00:00'", "timestamp'1995-01-02T12:30:00'"],
    "ntz": ["TIMESTAMP_NTZ '1995-01-02 12:30:00'"],
    "large": ["9223372036854775807", "4611686018427387904"],
}

# In the templates {int} stands for another value of that kind, {lit} for a small number.
COMPUTED = {
    "bool": ["NOT {bool}", "coalesce({bool}, false)", "{bool} AND {bool}", "({bool} OR {bool})"],
    "int": [
        "{int} + {lit}",
        "{int} - {int}",
        "{int} * {lit}",
        "-{int}",
        "coalesce({int}, {int})",
        "coalesce({int}, {lit}, 0)",
        "length({string})",
        "size({array})",
        "year({date})",
        "CAST({int} AS bigint)",
        "{int} % 2",
        "if({bool}, {int}, {lit})",
        "CASE WHEN {bool} THEN {int} END",
        "CASE {string} WHEN 'x' THEN {int} ELSE {lit} END",
        "nullif({int}, {lit})",
        "greatest({int}, {int})",
        "{int} DIV 2",
        "get({array}, 0)",
        "try_divide({int}, 0)",
        "{int}::int",
        "char_length({string})",
        "extract(year FROM {date})",
    ],
    "real": ["{real} + 1", "CAST({int} AS double)", "{real} * 2", "coalesce({real}, 0.0D)", "{int} / 2.0D"],
    "decimal": [
        "{decimal} + 1.5",
        "CAST({int} AS decimal(10, 2))",
        "coalesce({decimal}, 0)",
        "{decimal} - {int}",
    ],
    "string": [
        "upper({string})",
        "concat({string}, '{{x}}')",
        "{string} || {string}",
        "CAST({int} AS string)",
        "substring({string}, 1, 1)",
        "substring({string} FROM 1 FOR 1)",
        "coalesce({string}, 'x')",
        "CASE WHEN {bool} THEN {string} ELSE 'none' END",
        "trim(BOTH 'x' FROM {string})",
        "to_json({struct})",
        "CAST({decimal} AS string)",
        "typeof({int})",
        "decode({int}, 1, 'x', 2, 'y')",
        "replace({string}, 'x', 'y')",
        "format_number({int}, 0)",
    ],
    "date": ["date_add({date}, {lit})", "CAST({timestamp} AS date)", "coalesce({date}, DATE '1995-01-01')"],
    "timestamp": ["CAST({date} AS timestamp)", "{timestamp} + INTERVAL '1' DAY"],
    "ntz": ["{ntz} + INTERVAL 1 DAY"],
    "binary": ["CAST({string} AS binary)", "coalesce({binary}, X'78')"],
}


def ref(g: Gen, scope: Scope, kinds: Sequence[str], *, whole: bool = False) -> Ref | None:
    """Return a way to name something of one of these kinds: every column is as likely."""
    found = [r for r in scope.refs if r.type.kind in kinds and (r.whole or not whole)]
    if not found:
        return None
    attr = g.pick(list(dict.fromkeys(r.attr for r in found)))
    return naming(g, [r for r in found if r.attr is attr])


def naming(g: Gen, refs: Sequence[Ref]) -> Ref:
    """Choose between names for the same column: mostly those with a relation in front."""
    whole = [r for r in refs if r.whole]
    refs = whole if whole and g.chance(0.7) else refs
    longest = max(len(r.parts) for r in refs)
    return g.pick([r for r in refs if len(r.parts) == longest] if g.chance(0.6) else refs)


def literal(g: Gen, kind: str) -> str:
    """Return a constant."""
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
    template = g.pick(COMPUTED[kind])
    out = ""
    for piece in template.replace("{{", "\0").replace("}}", "\1").split("{"):
        name, brace, rest = piece.partition("}")
        if not brace:
            out += name
        elif name == "lit":
            out += g.pick("1234") + rest
        else:
            out += _wrapped(value(g, scope, name, deep)) + rest
    return out.replace("\0", "{").replace("\1", "}")


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


def typed(kind: str) -> Type:
    """Return the type that an expression of a kind is taken to have."""
    return TYPE[kind]
