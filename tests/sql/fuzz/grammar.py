"""Random SQL that Spark accepts, most of it inner joins.

Whatever a query calls is deterministic and does not fail on the tables in :mod:`tests.sql.fuzz.tables`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.sql import cases
from tests.sql.fuzz.expressions import (
    compare,
    computed,
    condition,
    correlated,
    equality,
    literal,
    ref,
    scalar,
    subquery_condition,
    value,
)
from tests.sql.fuzz.gen import MOMENTS, OF_KIND, OUTPUTS, PLAIN, Gen, Relation, Scope, Type, fill, quote
from tests.sql.fuzz.relations import Columns, from_clause

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
    return found or [Item("1 AS one", [("one", OF_KIND["int"])])]


def _plain(g: Gen, items: Items, depth: int) -> Item | None:
    nested = 2.5 * (depth > 0)
    form = g.weigh(column=60, computed=14, struct=4, star=9, lateral=5, nested=nested, constant=1)
    scope = items.scope
    if form == "star":
        return star(g, scope)
    if form == "struct":
        text = value(g, scope, "struct")
        if g.chance(0.5):
            return items.named(g, f"to_json({text})", OF_KIND["string"], share=0.6)
        return items.named(g, text, OF_KIND["struct"], share=0.6)
    if form == "lateral" and items.aliases:
        name = g.spell((g.pick(items.aliases),))
        return items.named(g, g.pick(["{} + 1", "coalesce({}, 0)", "-{}", "{}"]).format(name), OF_KIND["int"])
    if form == "nested":
        if g.chance(0.6):
            return items.named(g, scalar(g, scope, depth), OF_KIND["int"])
        return items.named(g, subquery_condition(g, scope, depth), OF_KIND["bool"])
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


# One SELECT from its FROM to its LIMIT


@dataclass
class Clauses:
    """What stands behind SELECT, in the order of the text."""

    items: list[Item]
    group: str = ""
    having: str = ""
    order: str = ""
    distinct: str = ""
    rows: int | None = None

    @property
    def columns(self) -> Columns:
        return [column for item in self.items for column in item.columns]


def select(
    g: Gen,
    depth: int,
    *,
    outer: Scope | None = None,
    want: list[Type] | None = None,
    total: bool = False,
    small: bool = False,
) -> Relation:
    """Return a SELECT whose relations and conditions are nested at most that deep.

    It may name columns of ``outer``; it has columns of the types that are wanted, or, as a total, one number.
    """
    source = from_clause(g, depth, 2 if small else 5)
    where = _where(g, source.scope, source.pending, depth)
    if outer is not None:
        link = correlated(g, source.scope, outer)
        where += [link] if link else []
    if total:
        clauses = Clauses([Item(_number(g, source.scope), [(None, OF_KIND["bigint"])])], rows=1)
    elif want is not None:
        clauses = Clauses(wanted_items(g, source.scope, want))
    else:
        clauses = _clauses(g, source.scope, depth)
        _order(g, source.scope, clauses, limited=outer is None)
    rows = min(source.rows, clauses.rows) if clauses.rows else source.rows
    return Relation(_text(g, source.text, where, clauses), clauses.columns, rows)


def _where(g: Gen, scope: Scope, pending: list, depth: int) -> list[str]:
    links = [equality(g, scope, pair) for pair in pending]
    where = [link for link in links if link is not None]
    while g.chance(0.22) and len(where) < 5:
        where.append(condition(g, scope))
    if depth > 0 and g.chance(0.13):
        where.append(subquery_condition(g, scope, depth))
    return g.shuffled(where)


def _number(g: Gen, scope: Scope) -> str:
    found = ref(g, scope, ("int",))
    inner = g.spell(found.parts) if found else "1"
    return g.pick([f"max({inner})", f"min({inner})", "count(*)", f"count({inner})", f"sum({inner})"])


def _clauses(g: Gen, scope: Scope, depth: int) -> Clauses:
    form = g.weigh(plain=58, grouped=18, total=6, distinct=8, window=8)
    if form == "grouped":
        return _grouped(g, scope, depth)
    if form == "total":
        items = Items(scope)
        found = [items.named(g, *aggregate(g, scope)) for _ in range(g.number(1, 3))]
        return Clauses(found, rows=1, having=g.pick(["", "", "count(*) > 0"]))
    clauses = Clauses(plain_items(g, scope, depth))
    if form == "distinct" and all(type_.comparable for _, type_ in clauses.columns):
        clauses.distinct = "DISTINCT"
    if form == "window":
        clauses.items.append(Items(scope).named(g, *window(g, scope), share=0.6))
    return clauses


def _grouped(g: Gen, scope: Scope, depth: int) -> Clauses:
    """Return keys, aggregates, and GROUP BY in one of its forms."""
    items, keys, chosen = Items(scope), [], []
    for _ in range(g.number(1, 3)):
        found = ref(g, scope, (*PLAIN, "struct"))
        if found is not None and g.chance(0.85):
            item = items.named(g, g.spell(found.parts), found.type, share=0.2, implied=found.parts[-1])
            again = g.pick(scope.naming(found.attr)) if found.whole else found
            keys.append(g.spell(again.parts))
        else:
            text = computed(g, scope, "int")
            text = f"({text} + 0)" if text.lstrip("-").isdigit() else text  # a number alone is a position
            item = items.named(g, text, OF_KIND["int"])
            keys.append(text)
        chosen.append(item)
    totals = [items.named(g, *aggregate(g, scope)) for _ in range(g.number(0 if g.chance(0.1) else 1, 2))]
    clauses = Clauses([*chosen, *totals], rows=6)
    _group_by(g, scope, clauses, keys)
    if g.chance(0.25):
        clauses.having = g.pick(
            ["count(*) > 1", f"{aggregate(g, scope)[0]} IS NOT NULL", f"{keys[0]} IS NOT NULL"]
        )
    elif depth > 0 and g.chance(0.06):
        clauses.having = f"count(*) {g.pick(['>', '<>'])} {scalar(g, Scope(), depth)}"
    if len(clauses.items) > 1 and g.chance(0.1):
        clauses.items = clauses.items[1:] if "1" not in clauses.group else clauses.items
    return clauses


def _group_by(g: Gen, scope: Scope, clauses: Clauses, keys: list[str]) -> None:
    form = g.weigh(keys=10, ordinals=3, all=2, rollup=1, cube=1, sets=1, alias=2)
    texts = ", ".join(keys)
    if form == "ordinals":
        texts = ", ".join(str(n) for n in range(1, len(keys) + 1))
    elif form == "all" and any(item.columns for item in clauses.items[len(keys) :]):
        texts = "ALL"
    elif form in ("rollup", "cube"):
        texts = f"{form.upper()} ({texts})"
        if g.chance(0.5):
            clauses.items.append(Item(f"grouping({keys[0]})", [(None, OF_KIND["int"])]))
    elif form == "sets":
        texts = f"GROUPING SETS (({texts}), ({keys[0]}), ())"
    elif form == "alias":
        aliases = [item.columns[0][0] if item.named else None for item in clauses.items]
        # GROUP BY does not find an alias with a dot in it.
        names = [a if a and "." not in a and not scope.find((a,)) else None for a in aliases]
        texts = ", ".join(g.quoted(name) if name else key for key, name in zip(keys, names, strict=False))
    clauses.group = f"GROUP BY {texts}"


def _order(g: Gen, scope: Scope, clauses: Clauses, *, limited: bool) -> None:
    """Order rows; limit them only where equal rows are all that the order leaves open."""
    if not g.chance(0.2):
        return
    columns = clauses.columns
    keys = []
    names = [name for name, type_ in columns if name is not None and type_.comparable]
    if names and g.chance(0.5):
        unique = [n for n in names if names.count(n) == 1]
        keys += [g.spell((n,)) for n in unique[:1]]
    elif not clauses.group and not clauses.distinct and clauses.rows is None:
        found = ref(g, scope, PLAIN)
        keys += [g.spell(found.parts)] if found else []
    keys = [key + g.pick(["", " DESC", " ASC", " NULLS LAST"]) for key in keys]
    if limited and g.chance(0.4) and all(type_.comparable and type_.kind != "other" for _, type_ in columns):
        every = [str(n) for n in range(1, len(columns) + 1)]
        clauses.order = f"ORDER BY {', '.join(keys + every)}"
        if g.chance(0.3):
            clauses.order = "ORDER BY ALL"
        clauses.order += g.pick([" LIMIT 3", " LIMIT 5", " LIMIT 4 OFFSET 1", ""])
    elif keys:
        clauses.order = f"ORDER BY {', '.join(keys)}"


def _text(g: Gen, source: str, where: list[str], clauses: Clauses) -> str:
    head = f"SELECT {clauses.distinct or ('ALL' if g.chance(0.1) else '')}".rstrip()
    items = f",{g.gap()}".join(item.text for item in clauses.items)
    body = [f"FROM {source}"]
    if where:
        body.append("WHERE " + g.all_of(where))
    tail = [clauses.group, f"HAVING {clauses.having}" if clauses.having else "", clauses.order]
    body.insert(1 if g.chance(0.02) else 0, f"{head} {items}")
    return g.join([part for part in [*body, *tail] if part])


# Whole queries

CTE_NAMES = ["a", "b", "c", "k", "t", "q", "r", "e", "cte", "odd name", "st", "A"]
_OUTSIDE = re.compile(r"('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|`(?:[^`])*`|/\*.*?\*/|--[^\n]*\n)", re.DOTALL)


def query(draw: Callable[[int], int]) -> str:
    """Return the text of a query that these choices make; see :class:`Gen`."""
    g = Gen(draw, block)
    text = _statement(g, g.pick([1, 1, 2])).text
    if g.chance(0.2):
        text = "".join(t if n % 2 else t.lower() for n, t in enumerate(_OUTSIDE.split(text)))
    return text + (";" if g.chance(0.02) else "")


def _statement(g: Gen, depth: int) -> Relation:
    if g.chance(0.2):
        return _with(g, depth)
    return _operation(g, depth) if g.chance(0.12) else select(g, depth)


def block(g: Gen, depth: int, *, want: list[str] | None = None, **how: Any) -> Relation:
    """Return a query for inside another; see :func:`select`."""
    wanted = None if want is None else [OF_KIND[kind] for kind in want]
    if wanted is None and how.get("outer") is None and "total" not in how and depth >= 0:
        form = g.weigh(select=86, **{"with": 5, "union": 7})
        if form == "with":
            return _with(g, depth)
        if form == "union":
            return _operation(g, depth, small=True)
    return select(g, max(depth, 0), want=wanted, **how)


def _with(g: Gen, depth: int) -> Relation:
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
    return Relation(g.join([f"WITH {f',{g.gap()}'.join(texts)}", body.text]), body.columns, body.rows)


def _common(g: Gen, name: str, depth: int) -> tuple[str, Relation]:
    inner = block(g, depth - 1, small=True)
    columns, listed = inner.columns, ""
    if g.chance(0.25):
        used: set[str] = set()
        columns = [(g.alias(used, ["id", "k", "v", "s", "x", "b", "n"]), type_) for _, type_ in columns]
        listed = f"({', '.join(quote(column) for column, _ in columns)})"
    text = f"{g.quoted(name)}{listed} AS ({inner.text})"
    return text, Relation(name, columns, inner.rows)


def _operation(g: Gen, depth: int, *, small: bool = False) -> Relation:
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
    return Relation(text, columns, left.rows + right.rows)


def _unknown(type_: Type) -> bool:
    return type_.kind == "other" or any(_unknown(part) for _, part in type_.parts)


def _joined(type_: Type) -> Type:
    """Return the type of a column of a set operation: strings with numbers meet strings without."""
    return OF_KIND["string"] if type_.kind == "digits" else type_
