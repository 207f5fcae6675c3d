"""FROM clauses: tables, derived tables, VALUES, ranges; each joined in some way to those before it.

Without ``spark.sql.ansi.relationPrecedence`` every relation joins all that stands to its left, also
behind a comma.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from tests.sql.fuzz.expressions import condition, equality, linked, literal, ref, subquery_condition
from tests.sql.fuzz.gen import OF_KIND, OUTPUTS, Attr, Gen, Scope, Type, meet, quote

Columns = list[tuple[str | None, Type]]
MOST_ROWS = 800
OUTER = {"left": "LEFT JOIN", "right": "RIGHT OUTER JOIN", "full": "FULL JOIN"}
SEMI = {"semi": "LEFT SEMI JOIN", "anti": "LEFT ANTI JOIN"}


@dataclass
class From:
    """Relations that are joined so far.

    ``pending`` are pairs of columns whose equality is to stand in WHERE; ``rows`` is a rough guess.
    """

    text: str
    scope: Scope
    rows: int = 6
    pending: list[tuple[Attr, Attr]] = field(default_factory=list)
    used: set[str] = field(default_factory=set)

    def joined(self, right: From, text: str, scope: Scope, rows: int) -> From:
        """Return what a text makes of these relations and those to the right."""
        return replace(self, text=text, scope=scope, rows=rows, pending=self.pending + right.pending)


def relation(g: Gen, used: set[str], depth: int) -> From:
    nested = depth > 0
    form = g.weigh(table=80, star=2, derived=11 * nested, bare=2 * nested, values=2, range=2)
    g.relations += 1
    makers = {"table": _table, "star": _star, "derived": _derived, "bare": _bare, "values": _values}
    made = (makers | {"range": _range})[form](g, used, depth)
    made.used = used
    return made


def _table(g: Gen, used: set[str], depth: int) -> From:
    relation_ = g.table()
    text = g.spell((relation_.text,))
    if relation_.text.lower() not in used and g.chance(0.45):
        used.add(relation_.text.lower())
        return _named(text, relation_.text, relation_.columns, relation_.rows)
    return aliased(g, used, text, relation_.columns, relation_.rows, renamed=0.05)


def _named(text: str, alias: str | None, columns: Columns, rows: int) -> From:
    return From(text, Scope([Attr(alias, name, type_) for name, type_ in columns]), rows)


def _renamed(g: Gen, columns: Columns) -> Columns:
    used: set[str] = set()
    return [(g.alias(used, OUTPUTS), type_) for _, type_ in columns]


def _list(columns: Columns) -> str:
    return f"({', '.join(quote(name or 'z') for name, _ in columns)})"


def aliased(g: Gen, used: set[str], text: str, columns: Columns, rows: int, *, renamed: float = 0.2) -> From:
    alias, listed = g.alias(used), ""
    if g.chance(renamed):
        columns = _renamed(g, columns)
        listed = _list(columns)
    return _named(f"{text}{g.pick([' ', ' AS '])}{g.quoted(alias)}{listed}", alias, columns, rows)


def _derived(g: Gen, used: set[str], depth: int) -> From:
    block = g.block(g, depth - 1)
    return aliased(g, used, f"({block.text})", block.columns, block.rows)


def _bare(g: Gen, used: set[str], depth: int) -> From:
    block = g.block(g, depth - 1)
    return _named(f"({block.text})", None, block.columns, block.rows)


def _star(g: Gen, used: set[str], depth: int) -> From:
    """A derived table that only passes a table on."""
    inner = g.table()
    text = f"SELECT * FROM {g.spell((inner.text,))}"
    found = ref(g, _named(text, inner.text, inner.columns, inner.rows).scope, ("int",))
    if found is not None and g.chance(0.5):
        text += f" WHERE {g.spell(found.parts)} > {g.pick('01')}"
    return aliased(g, used, f"({text})", inner.columns, inner.rows)


def _values(g: Gen, used: set[str], depth: int) -> From:
    kinds = ["int", *(g.pick(["int", "string", "string", "date"]) for _ in range(g.number(0, 2)))]
    rows = [[literal(g, kind) for kind in kinds] for _ in range(g.number(1, 4))]
    inside = ", ".join(f"({', '.join(row)})" for row in rows)
    columns = _renamed(g, [(None, OF_KIND[kind]) for kind in kinds])
    if g.chance(0.2):
        columns = [(f"col{n}", type_) for n, (_, type_) in enumerate(columns, 1)]
        return aliased(g, used, f"(VALUES {inside})", columns, len(rows))
    alias = g.alias(used)
    text = g.pick(["VALUES {}", "(VALUES {})"]).format(inside)
    return _named(f"{text} AS {g.quoted(alias)}{_list(columns)}", alias, columns, len(rows))


def _range(g: Gen, used: set[str], depth: int) -> From:
    call = g.pick(["range(4)", "range(1, 4)", "range(0, 8, 2)"])
    return aliased(g, used, call, [("id", OF_KIND["bigint"])], 4)


def _lateral(g: Gen, left: From, depth: int) -> From:
    """Return a subquery that names columns of the relations to its left."""
    block = g.block(g, depth - 1, outer=left.scope, small=True)
    return aliased(g, left.used, f"LATERAL ({block.text})", block.columns, 3)


def from_clause(g: Gen, depth: int, most: int = 5) -> From:
    count = int(g.weigh(**{"1": 8, "2": 46, "3": 32, "4": 10, "5": 4}))
    if g.relations > 8:
        count = 1
    return _chain(g, min(count, most), depth, set())


def _chain(g: Gen, count: int, depth: int, used: set[str], *, comma: bool = True) -> From:
    found = relation(g, used, depth)
    for _ in range(count - 1):
        if found.rows <= MOST_ROWS:
            found = _step(g, found, depth, comma=comma)
    return found


def _step(g: Gen, left: From, depth: int, *, comma: bool) -> From:
    plain = {"comma": 32 * comma, "join": 42, "cross": 2, "using": 10, "left": 9}
    form = g.weigh(**plain, right=1, full=1, semi=1, anti=0.8, natural=1.5, lateral=1.5)
    if form == "lateral":
        return _product(g, left, _lateral(g, left, depth), "comma" if comma else "cross")
    right = (_group if g.chance(0.07) else relation)(g, left.used, depth)
    if form in ("using", "natural"):
        return _by_name(g, left, right, form)
    if form in ("comma", "cross"):
        return _product(g, left, right, form)
    return _on(g, left, right, form, depth)


def _product(g: Gen, left: From, right: From, form: str) -> From:
    """Join without a condition here: mostly an equality is to stand in WHERE."""
    pair = linked(g, left.scope, right.scope) if form == "cross" or g.chance(0.94) else None
    rows = left.rows * right.rows // (4 if pair else 1)
    text = [f"{left.text},", right.text] if form == "comma" else [left.text, f"CROSS JOIN {right.text}"]
    both = left.joined(right, g.join(text), left.scope.beside(right.scope), max(rows, 1))
    both.pending += [pair] if pair else []
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
    on = g.all_of(g.shuffled(texts))
    on = f"({on})" if g.chance(0.1) else on
    text = g.join([left.text, f"{word} {right.text}", f"ON {on}"])
    if form in SEMI:
        return left.joined(right, text, left.scope, left.rows)
    return left.joined(right, text, both, max(rows, left.rows, 1))


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
    return left.joined(right, g.join([left.text, text]), scope, rows)


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
        text = f"({inside.text}) {g.pick(['', 'AS '])}{g.quoted(alias)}"
        return _named(text, alias, [(a.name, a.type) for a in inside.scope.shown], inside.rows)
    inside = _chain(g, 2, depth, used, comma=False)
    return replace(inside, text=f"({inside.text})")
