"""One SELECT from its FROM to its LIMIT."""

from __future__ import annotations

from dataclasses import dataclass

from tests.sql.fuzz import types
from tests.sql.fuzz.conditions import condition, correlated, equality, scalar, subquery_condition
from tests.sql.fuzz.expressions import computed, ref
from tests.sql.fuzz.gen import Gen
from tests.sql.fuzz.items import Item, Items, aggregate, plain_items, wanted_items, window
from tests.sql.fuzz.relations import Columns, from_clause
from tests.sql.fuzz.scope import Scope
from tests.sql.fuzz.types import PLAIN, Type


@dataclass
class Block:
    """A query: its text, its columns, about how many rows it has."""

    text: str
    columns: Columns
    rows: int = 6


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
) -> Block:
    """Return a SELECT whose relations and conditions are nested at most that deep.

    It may name columns of ``outer``; it has columns of the types that are wanted, or, as a total, one number.
    """
    source = from_clause(g, depth, 2 if small else 5)
    where = _where(g, source.scope, source.pending, depth)
    if outer is not None:
        link = correlated(g, source.scope, outer)
        where += [link] if link else []
    if total:
        clauses = Clauses([Item(_number(g, source.scope), [(None, types.BIGINT)])], rows=1)
    elif want is not None:
        clauses = Clauses(wanted_items(g, source.scope, want))
    else:
        clauses = _clauses(g, source.scope, depth)
        _order(g, source.scope, clauses, limited=outer is None)
    rows = min(source.rows, clauses.rows) if clauses.rows else source.rows
    return Block(_text(g, source.text, where, clauses), clauses.columns, rows)


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
            item = items.named(g, text, types.INT)
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
            clauses.items.append(Item(f"grouping({keys[0]})", [(None, types.INT)]))
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
