"""FROM clauses: relations one after the other, each joined in some way to those before it.

Without ``spark.sql.ansi.relationPrecedence`` every relation joins all that stands to its left, also
behind a comma; so do PIVOT and UNPIVOT.
"""

from __future__ import annotations

from tests.sql.fuzz import types
from tests.sql.fuzz.conditions import condition, equality, linked
from tests.sql.fuzz.expressions import ref
from tests.sql.fuzz.gen import Gen
from tests.sql.fuzz.relations import From, lateral, relation
from tests.sql.fuzz.scope import Attr, Scope, requalified
from tests.sql.fuzz.subqueries import subquery_condition
from tests.sql.fuzz.types import meet

MOST_ROWS = 800
OUTER = {"left": "LEFT JOIN", "right": "RIGHT OUTER JOIN", "full": "FULL JOIN"}
SEMI = {"semi": "LEFT SEMI JOIN", "anti": "LEFT ANTI JOIN"}


def from_clause(g: Gen, depth: int, most: int = 5) -> From:
    """Return the relations of a SELECT, without the word FROM."""
    count = int(g.weigh(**{"1": 8, "2": 46, "3": 32, "4": 10, "5": 4}))
    if g.relations > 8:
        count = 1
    with g.often() as rare:
        found = _chain(g, min(count, most), depth, set())
    return _lateral_view(g, found) if g.chance(0.04 * rare) else found


def _chain(g: Gen, count: int, depth: int, used: set[str], *, comma: bool = True) -> From:
    found = relation(g, used, depth)
    found.used = used
    for _ in range(count - 1):
        if found.rows > MOST_ROWS:
            break
        found = _step(g, found, depth, comma=comma)
        found.used = used
    if g.chance(0.06 * g.rare):
        found = _turned(g, found)
        found.used = used
    return found


def _step(g: Gen, left: From, depth: int, *, comma: bool) -> From:
    form = g.weigh(
        comma=32 * comma,
        join=42,
        cross=2,
        using=10,
        left=12,
        right=2 * g.rare,
        full=2 * g.rare,
        semi=2 * g.rare,
        anti=1.5 * g.rare,
        natural=3 * g.rare,
        lateral=3 * g.rare,
    )
    if form == "lateral":
        return _lateral(g, left, lateral(g, left, depth), comma=comma)
    right = (_group if g.chance(0.07) else relation)(g, left.used, depth)
    if form in ("using", "natural"):
        return _by_name(g, left, right, form)
    if form == "comma":
        return _comma(g, left, right)
    if form == "cross":
        rows = left.rows * right.rows
        text = g.join([left.text, f"CROSS JOIN {right.text}"])
        both = From(text, left.scope.beside(right.scope), rows, left.pending + right.pending)
        pair = linked(g, left.scope, right.scope)
        if pair is not None:
            both.pending.append(pair)
            both.rows = max(rows // 4, 1)
        return both
    return _on(g, left, right, form, depth)


def _comma(g: Gen, left: From, right: From) -> From:
    pair = linked(g, left.scope, right.scope) if g.chance(0.94) else None
    rows = left.rows * right.rows
    both = From(f"{left.text},{g.gap()}{right.text}", left.scope.beside(right.scope), rows)
    both.pending = left.pending + right.pending
    if pair is not None:
        both.pending.append(pair)
        both.rows = max(rows // 4, 1)
    return both


def _on(g: Gen, left: From, right: From, form: str, depth: int) -> From:
    both = left.scope.beside(right.scope)
    inner = form == "join"
    pairs = [linked(g, left.scope, right.scope) for _ in range(2 if g.chance(0.15) else 1)]
    links = [equality(g, both, pair) for pair in pairs if pair is not None]
    texts = [text for text in links if text is not None]
    if g.chance(0.05 if inner else 0.02):
        texts = []
    rows = left.rows * right.rows // (4 if texts else 1)
    if g.chance(0.13) or not texts:
        texts.append(condition(g, both))
    if inner and g.chance(0.04):
        texts.append(subquery_condition(g, both, depth, joined=True))
    word = (OUTER | SEMI).get(form) or g.pick(["JOIN", "JOIN", "INNER JOIN"])
    word = word.replace("LEFT JOIN", g.pick(["LEFT JOIN", "LEFT OUTER JOIN"]))
    on = g.pick([" AND ", " AND ", " and "]).join(
        _guarded(text) for text in g.some(texts, len(texts), len(texts))
    )
    on = f"({on})" if g.chance(0.1) else on
    text = g.join([left.text, f"{word} {right.text}", f"ON {on}"])
    if form in SEMI:
        return From(text, left.scope, left.rows, left.pending + right.pending)
    return From(text, both, max(rows, left.rows, 1), left.pending + right.pending)


def _guarded(text: str) -> str:
    return f"({text})" if " OR " in text.upper() else text


def _by_name(g: Gen, left: From, right: From, form: str) -> From:
    """Join by columns of the same name; by an equality where there are none that fit."""
    names = []
    for attr in left.scope.shown:
        theirs = right.scope.one(attr.name) if attr.name else None
        if theirs and left.scope.one(attr.name) is attr and meet(attr.type, theirs.type):
            names.append(attr.name)
    kind = g.weigh(inner=7, left=2, right=1.5, full=1.5, semi=0.7)
    word = {"inner": "JOIN", "semi": "LEFT SEMI JOIN"}.get(kind) or OUTER[kind]
    if form == "natural":
        shared = {a.name for a in left.scope.shown} & {a.name for a in right.scope.shown} - {None}
        if not shared or not shared <= set(names) or kind == "semi":
            return _on(g, left, right, "join", 0)
        names = [name for name in names if name in shared]
        text = f"NATURAL {word} {right.text}"
    elif not names:
        return _on(g, left, right, "join", 0)
    else:
        names = g.some(names, 1, 2)
        text = f"{word} {right.text} USING ({', '.join(g.spell((name,)) for name in names)})"
    scope = merged(left.scope, right.scope, names, kind)
    rows = max(left.rows, right.rows, left.rows * right.rows // 4)
    return From(g.join([left.text, text]), scope, rows, left.pending + right.pending)


def merged(left: Scope, right: Scope, names: list[str], kind: str) -> Scope:
    """Return the scope of a join by names: keys first, the other side's keys hidden."""
    ours = [left.one(name) for name in names]
    theirs = [right.one(name) for name in names]
    if kind == "semi":
        return left
    rest = [a for a in left.shown if a not in ours] + [a for a in right.shown if a not in theirs]
    hidden = list(left.hidden + right.hidden)
    if kind == "full":
        keys = [Attr(None, a.name, a.type) for a in ours]
        return Scope(keys + rest, hidden + ours + theirs)
    keys, gone = (theirs, ours) if kind == "right" else (ours, theirs)
    return Scope(keys + rest, hidden + gone)


def _group(g: Gen, used: set[str], depth: int) -> From:
    """Return joins in parentheses, under a name of their own or not."""
    if g.chance(0.3):
        inside = _chain(g, 2, depth, set(), comma=False)
        alias = g.alias(used)
        scope = Scope(requalified(inside.scope.shown, alias))
        return From(f"({inside.text}) {g.pick(['', 'AS '])}{g.quoted(alias)}", scope, inside.rows)
    inside = _chain(g, 2, depth, used, comma=False)
    return From(f"({inside.text})", inside.scope, inside.rows, inside.pending)


def _lateral(g: Gen, left: From, right: From, *, comma: bool) -> From:
    scope = left.scope.beside(right.scope)
    rows = left.rows * right.rows
    if comma and g.chance(0.5):
        return From(f"{left.text}, {right.text}", scope, rows, left.pending)
    word, on = g.pick(
        [("LEFT JOIN", " ON true"), ("JOIN", ""), ("CROSS JOIN", ""), ("INNER JOIN", " ON true")]
    )
    return From(f"{left.text} {word} {right.text}{on}", scope, rows, left.pending)


def _lateral_view(g: Gen, left: From) -> From:
    found = ref(g, left.scope, ("array",), whole=True)
    source = g.spell(found.parts) if found else "array(1, 2)"
    element = found.type.parts[0][1] if found else types.INT
    word = g.pick(["LATERAL VIEW", "LATERAL VIEW OUTER"])
    alias, name = g.alias(left.used), g.pick(["col", "id", "item", "x1"])
    if element.kind == "struct":
        parts = list(element.parts)
        names = ", ".join(f"{name}{n}" for n in range(len(parts)))
        text = f"{word} inline({source}) {g.quoted(alias)} AS {names}"
        attrs = [Attr(alias, f"{name}{n}", type_) for n, (_, type_) in enumerate(parts)]
    elif g.chance(0.3):
        text = f"{word} posexplode({source}) {g.quoted(alias)} AS pos1, {name}"
        attrs = [Attr(alias, "pos1", types.INT), Attr(alias, name, element)]
    else:
        text = f"{word} explode({source}) {g.quoted(alias)} AS {name}"
        attrs = [Attr(alias, name, element)]
    scope = Scope(left.scope.shown + tuple(attrs), left.scope.hidden)
    return From(g.join([left.text, text]), scope, left.rows * 2, left.pending)


def _turned(g: Gen, left: From) -> From:
    """Pivot or unpivot everything that was joined so far."""
    numbers = [a for a in left.scope.shown if a.type.kind == "int" and left.scope.naming(a)]
    if len(numbers) < 3 or not all(a.type.comparable for a in left.scope.shown):
        return left
    first, second = g.some(numbers, 2, 2)
    name, other = (g.spell(g.pick(left.scope.naming(a)).parts) for a in (first, second))
    single = [ref for ref in left.scope.naming(first) if len(ref.parts) == 1]
    rest = [a for a in left.scope.shown if a not in (first, second)]
    hidden = []
    if single and g.chance(0.5):
        name = g.spell(single[0].parts)
        total = g.pick([f"sum({other})", f"max({other})", f"count({other})"])
        text = f"PIVOT ({total} FOR {name} IN (1, 2 AS two))"
        attrs = [*rest, Attr(None, "1", types.BIGINT), Attr(None, "two", types.BIGINT)]
        return From(g.join([left.text, text]), Scope(attrs, hidden), left.rows, left.pending)
    title = g.pick(["{}, {}", "{} AS one, {}"]).format(name, other)
    text = f"UNPIVOT{g.pick(['', ' INCLUDE NULLS'])} (val FOR nm IN ({title}))"
    attrs = [*rest, Attr(None, "nm", types.STRING), Attr(None, "val", types.BIGINT)]
    if g.chance(0.3):
        alias = g.alias(left.used)
        attrs = requalified(attrs, alias)
        text += f" AS {g.quoted(alias)}"
    return From(g.join([left.text, text]), Scope(attrs, hidden), left.rows * 2, left.pending)
