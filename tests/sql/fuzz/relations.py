"""One relation of a FROM clause: tables, derived tables, VALUES, functions."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.sql.fuzz import types
from tests.sql.fuzz.expressions import literal, ref, typed, value
from tests.sql.fuzz.gen import OUTPUTS, Gen, Relation, quote
from tests.sql.fuzz.scope import Attr, Scope
from tests.sql.fuzz.types import Type

Columns = list[tuple[str | None, Type]]


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


def relation(g: Gen, used: set[str], depth: int) -> From:
    """Return one relation under a name that is not used yet."""
    nested = depth > 0
    form = g.weigh(
        table=80,
        derived=11 * nested,
        bare=2 * nested,
        values=3 * g.rare,
        range=2 * g.rare,
        sample=2 * g.rare,
        function=2 * g.rare,
        whole=1 * g.rare,
        star=2,
    )
    g.relations += 1
    makers = {"derived": _derived, "bare": _bare, "values": _values, "range": _range}
    makers |= {"function": _function, "whole": _whole, "star": _star}
    if form in makers:
        return makers[form](g, used, depth)
    return _table(g, used, sample=form == "sample")


def _table(g: Gen, used: set[str], *, sample: bool) -> From:
    relation_ = g.table()
    if sample and relation_.name.lower() not in g.ctes:
        share = g.pick([" TABLESAMPLE (100 PERCENT)", " TABLESAMPLE (100 ROWS)"])
    else:
        share = ""
    text = g.spell((relation_.name,)) + share
    if relation_.name.lower() not in used and g.chance(0.45) and not share:
        used.add(relation_.name.lower())
        return _named(text, relation_.name, list(relation_.columns), relation_.rows)
    alias, columns = g.alias(used), list(relation_.columns)
    if g.chance(0.05):
        columns = _renamed(g, columns)
        return _named(f"{text} AS {g.quoted(alias)}{_list(columns)}", alias, columns, relation_.rows)
    return _named(f"{text}{g.pick([' ', ' AS '])}{g.quoted(alias)}", alias, columns, relation_.rows)


def _named(text: str, alias: str | None, columns: Columns, rows: int) -> From:
    return From(text, Scope([Attr(alias, name, type_) for name, type_ in columns]), rows)


def _renamed(g: Gen, columns: Columns) -> Columns:
    """Give every column a new name, each once."""
    used: set[str] = set()
    return [(g.alias(used, OUTPUTS), type_) for _, type_ in columns]


def _list(columns: Columns) -> str:
    return f"({', '.join(quote(name or 'z') for name, _ in columns)})"


def aliased(g: Gen, used: set[str], text: str, columns: Columns, rows: int) -> From:
    """Name a relation in parentheses, and its columns now and then."""
    alias = g.alias(used)
    if g.chance(0.2):
        columns = _renamed(g, columns)
        text += f"{g.pick([' ', ' AS '])}{g.quoted(alias)}{_list(columns)}"
    else:
        text += f"{g.pick([' ', ' AS '])}{g.quoted(alias)}"
    return _named(text, alias, columns, rows)


def _derived(g: Gen, used: set[str], depth: int) -> From:
    block = g.block(g, depth - 1)
    return aliased(g, used, f"({block.text})", block.columns, block.rows)


def _bare(g: Gen, used: set[str], depth: int) -> From:
    block = g.block(g, depth - 1)
    return _named(f"({block.text})", None, block.columns, block.rows)


def _star(g: Gen, used: set[str], depth: int) -> From:
    """A derived table that only passes a table on."""
    inner = g.table()
    name = g.spell((inner.name,))
    text = f"(SELECT * FROM {name})"
    scope = Scope([Attr(inner.name, column, type_) for column, type_ in inner.columns])
    found = ref(g, scope, ("int",))
    if found is not None and g.chance(0.5):
        text = f"(SELECT * FROM {name} WHERE {g.spell(found.parts)} > {g.pick('01')})"
    return aliased(g, used, text, list(inner.columns), inner.rows)


def _whole(g: Gen, used: set[str], depth: int) -> From:
    inner = g.table()
    return aliased(g, used, f"(TABLE {g.spell((inner.name,))})", list(inner.columns), inner.rows)


def _values(g: Gen, used: set[str], depth: int) -> From:
    kinds = ["int", *(g.pick(["int", "string", "string", "date"]) for _ in range(g.number(0, 2)))]
    rows = [[literal(g, kind) for kind in kinds] for _ in range(g.number(1, 4))]
    inside = ", ".join(f"({', '.join(row)})" for row in rows)
    columns = _renamed(g, [(None, typed(kind)) for kind in kinds])
    if g.chance(0.2):
        columns = [(f"col{n}", type_) for n, (_, type_) in enumerate(columns, 1)]
        return aliased(g, used, f"(VALUES {inside})", columns, len(rows))
    alias = g.alias(used)
    text = f"VALUES {inside} AS {g.quoted(alias)}{_list(columns)}"
    if g.chance(0.6):
        text = f"(VALUES {inside}) AS {g.quoted(alias)}{_list(columns)}"
    return _named(text, alias, columns, len(rows))


def _range(g: Gen, used: set[str], depth: int) -> From:
    call = g.pick(["range(4)", "range(1, 4)", "range(0, 8, 2)"])
    return aliased(g, used, call, [("id", types.BIGINT)], 4)


def _function(g: Gen, used: set[str], depth: int) -> From:
    call, columns = g.pick(
        [
            ("explode(array(1, 2, 2))", [("col", types.INT)]),
            ("posexplode(array('x', 'y'))", [("pos", types.INT), ("col", types.STRING)]),
            (
                "inline(array(struct(1 AS id, 'x' AS s), struct(2 AS id, 'y' AS s)))",
                [("id", types.INT), ("s", types.STRING)],
            ),
            ("stack(2, 1, 'x', 2, 'y')", [("col0", types.INT), ("col1", types.STRING)]),
        ]
    )
    return aliased(g, used, call, columns, 2)


def lateral(g: Gen, left: From, depth: int) -> From:
    """Return a relation that names columns of those to its left."""
    g.relations += 1
    arrays = ref(g, left.scope, ("array",), whole=True)
    if arrays is not None and g.chance(0.5):
        text = g.spell(arrays.parts)
        element = arrays.type.parts[0][1]
        if element.kind == "struct":
            return aliased(g, left.used, f"LATERAL inline({text})", list(element.parts), 2)
        return aliased(g, left.used, f"LATERAL explode({text})", [("col", element)], 2)
    if g.chance(0.3):
        name, kind = g.pick(OUTPUTS), g.pick(["int", "string"])
        text = f"LATERAL (SELECT {value(g, left.scope, kind)} AS {g.quoted(name)})"
        return aliased(g, left.used, text, [(name, typed(kind))], 1)
    block = g.block(g, depth - 1, outer=left.scope, small=True)
    return aliased(g, left.used, f"LATERAL ({block.text})", block.columns, 3)


def recursive(name: str, column: str) -> Relation:
    """Return a recursive CTE: small numbers."""
    return Relation(name, ((column, types.INT),), 4)
