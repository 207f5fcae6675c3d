"""What stands between SELECT and FROM: columns, stars, expressions, aggregates."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.sql import cases
from tests.sql.fuzz import types
from tests.sql.fuzz.conditions import compare, condition, scalar, subquery_condition
from tests.sql.fuzz.expressions import computed, literal, ref, value
from tests.sql.fuzz.gen import OUTPUTS, Gen, fill
from tests.sql.fuzz.relations import Columns
from tests.sql.fuzz.scope import Scope
from tests.sql.fuzz.types import MOMENTS, OF_KIND, PLAIN, Type

AGGREGATES, WINDOWS = cases.lines("fuzz/aggregates"), cases.lines("fuzz/windows")
"""Templates of calls, by the kinds of their values, which the order of (equal) rows does not change."""
KINDS = ("int", "int", "string", "real", "decimal", *MOMENTS, "bool", "binary", "array", "struct")


@dataclass
class Item:
    """One item: its text, the columns it gives, and whether it was given a name of its own."""

    text: str
    columns: Columns
    named: bool = False


@dataclass
class Items:
    """The items of a SELECT, and the names that later ones may use as lateral aliases."""

    scope: Scope
    aliases: list[str] = field(default_factory=list)

    def named(
        self, g: Gen, text: str, type_: Type, *, share: float = 0.5, implied: str | None = None
    ) -> Item:
        """Give an expression a name, or leave it without."""
        if not g.chance(share):
            return Item(text, [(implied, type_)])
        name = g.pick(OUTPUTS)
        if g.chance(0.04) and self.scope.shown:
            # What a rewriter might call a column whose plain name is taken.
            attr = g.pick(self.scope.shown)
            name = f"{attr.qualifier}__{attr.name}"
        if type_.kind == "int" and not self.scope.find((name,)):
            self.aliases.append(name)
        return Item(f"{text}{g.pick([' AS ', ' AS ', ' '])}{g.quoted(name)}", [(name, type_)], named=True)


def plain_items(g: Gen, scope: Scope, depth: int) -> list[Item]:
    """Return the items of a SELECT without aggregates."""
    if g.chance(0.1):
        return [Item("*", [(a.name, a.type) for a in scope.shown])]
    items = Items(scope)
    drawn = [_plain(g, items, depth) for _ in range(g.number(1, 4))]
    found = [item for item in drawn if item is not None]
    return found or [Item("1 AS one", [("one", types.INT)])]


def _plain(g: Gen, items: Items, depth: int) -> Item | None:
    nested = 2.5 * (depth > 0)
    form = g.weigh(column=60, computed=14, struct=4, star=9, lateral=5, nested=nested, constant=1)
    scope = items.scope
    if form == "star":
        return star(g, scope)
    if form == "struct":
        text = value(g, scope, "struct")
        if g.chance(0.5):
            return items.named(g, f"to_json({text})", types.STRING, share=0.6)
        return items.named(g, text, types.OTHER, share=0.6)
    if form == "lateral" and items.aliases:
        name = g.spell((g.pick(items.aliases),))
        return items.named(g, g.pick(["{} + 1", "coalesce({}, 0)", "-{}", "{}"]).format(name), types.INT)
    if form == "nested":
        if g.chance(0.6):
            return items.named(g, scalar(g, scope, depth), types.INT)
        return items.named(g, subquery_condition(g, scope, depth), types.BOOL)
    if form == "constant":
        kind = g.pick(KINDS[:9])
        return items.named(g, literal(g, kind), OF_KIND[kind], share=0.8)
    if form == "computed":
        kind = g.pick(KINDS)
        text = condition(g, scope) if kind == "bool" else computed(g, scope, kind)
        return items.named(g, text, OF_KIND[kind])
    found = ref(g, scope, (*PLAIN, *PLAIN, "struct", "array", "map", "binary", "large"))
    if found is None:
        return None
    return items.named(g, g.spell(found.parts), found.type, share=0.3, implied=found.parts[-1])


def star(g: Gen, scope: Scope) -> Item | None:
    """Return a star: of everything, of a relation, of a struct; with or without EXCEPT."""
    form = g.weigh(all=2, one=5, struct=3)
    if form == "all":
        text, attrs = "*", list(scope.shown)
    elif form == "one" and scope.qualifiers:
        name = g.pick(scope.qualifiers)
        text, attrs = f"{g.spell((name,))}.*", scope.of(name)
    else:
        found = ref(g, scope, ("struct",))
        if found is None or (len(found.parts) == 1 and scope.of(found.parts[0])):
            return None
        return Item(f"{g.spell(found.parts)}.*", list(found.type.parts))
    if len(attrs) > 2 and g.chance(0.3):
        inner = Scope(attrs)
        gone = [a for a in g.some(attrs, 1, 2) if inner.naming(a)]
        if gone:
            names = [g.spell(g.pick(inner.naming(a)).parts if form == "all" else (a.name,)) for a in gone]
            if form == "all" or all(inner.one(a.name) for a in gone):
                text += f" EXCEPT ({', '.join(names)})"
                attrs = [a for a in attrs if a not in gone]
    return Item(text, [(a.name, a.type) for a in attrs])


def wanted_items(g: Gen, scope: Scope, want: list[Type]) -> list[Item]:
    """Return items of just these types."""
    found = []
    for type_ in want:
        refs = [r for r in scope.refs if r.type.sql == type_.sql and r.type.kind == type_.kind]
        refs = refs or [r for r in scope.refs if r.type.kind == type_.kind and not type_.parts]
        if refs and g.chance(0.95):
            chosen = g.pick(refs)
            found.append(Item(g.spell(chosen.parts), [(chosen.parts[-1], chosen.type)]))
        else:
            found.append(Item(f"CAST(NULL AS {type_.sql})", [(None, type_)]))
    return found


def _call(g: Gen, scope: Scope, templates: dict[str, list[str]]) -> tuple[str, Type]:
    kind, template = g.pick([(kind, text) for kind, texts in templates.items() for text in texts])
    text = fill(template, lambda name: compare(g, scope) if name == "condition" else value(g, scope, name))
    return text, OF_KIND[kind]


def aggregate(g: Gen, scope: Scope) -> tuple[str, Type]:
    text, type_ = _call(g, scope, AGGREGATES)
    if g.chance(0.12) and type_.kind != "array":
        text += f" FILTER (WHERE {compare(g, scope)})"
    return text, type_


def window(g: Gen, scope: Scope) -> tuple[str, Type]:
    """Return a window function, always with an order."""
    call, type_ = _call(g, scope, WINDOWS)
    key, order = ref(g, scope, PLAIN), ref(g, scope, PLAIN)
    over = "ORDER BY 1"
    if order is not None:
        over = f"ORDER BY {g.spell(order.parts)}{g.pick(['', ' DESC', ' ASC NULLS LAST'])}"
    if key is not None and g.chance(0.7):
        over = f"PARTITION BY {g.spell(key.parts)} {over}"
    return f"{call} OVER ({over})", type_
