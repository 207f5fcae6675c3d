"""Queries in pipe syntax: FROM, then one operator after the other."""

from __future__ import annotations

from tests.sql.fuzz.conditions import condition, equality, linked
from tests.sql.fuzz.expressions import ref, value
from tests.sql.fuzz.gen import OUTPUTS, Gen
from tests.sql.fuzz.items import aggregate
from tests.sql.fuzz.joins import from_clause
from tests.sql.fuzz.relations import Columns, relation
from tests.sql.fuzz.scope import Attr, Scope
from tests.sql.fuzz.selects import Block
from tests.sql.fuzz.types import INT, PLAIN


def pipe(g: Gen, depth: int) -> Block:
    """Return a query in pipe syntax."""
    source = from_clause(g, depth, 3)
    scope, steps = source.scope, [f"FROM {source.text}"]
    links = [equality(g, scope, pair) for pair in source.pending]
    if any(links):
        steps.append("|> WHERE " + " AND ".join(link for link in links if link))
    for _ in range(g.number(0, 3)):
        text, scope = _step(g, scope, source.used)
        steps += [f"|> {text}"] if text else []
    if g.chance(0.75) and "AGGREGATE" not in steps[-1]:
        text, scope = _select(g, scope)
        steps += [f"|> {text}"] if text else []
    columns: Columns = [(attr.name, attr.type) for attr in scope.shown]
    return Block(g.join(steps), columns, source.rows)


def _step(g: Gen, scope: Scope, used: set[str]) -> tuple[str, Scope]:
    form = g.weigh(where=5, join=4, extend=3, aggregate=1, order=1, rename=1, drop=1)
    if form == "where":
        return f"WHERE {condition(g, scope)}", scope
    if form == "join":
        right = relation(g, used, 0)
        both = scope.beside(right.scope)
        pair = linked(g, scope, right.scope)
        link = equality(g, both, pair) if pair else None
        return f"{g.pick(['JOIN', 'LEFT JOIN', 'INNER JOIN'])} {right.text} ON {link or 'true'}", both
    if form == "extend":
        name = g.pick(OUTPUTS)
        return f"EXTEND {value(g, scope, 'int')} AS {g.quoted(name)}", Scope(
            [*scope.shown, Attr(None, name, INT)]
        )
    if form == "aggregate":
        return _aggregate(g, scope)
    found = ref(g, scope, PLAIN, whole=True)
    if form == "order" and found is not None:
        return f"ORDER BY {g.spell(found.parts)}", scope
    if (
        form == "drop"
        and found is not None
        and len(scope.shown) > 1
        and scope.one(found.attr.name) is found.attr
    ):
        return f"DROP {g.spell((found.attr.name,))}", Scope([a for a in scope.shown if a is not found.attr])
    if form == "rename":
        alias = g.alias(used)
        return f"AS {g.quoted(alias)}", Scope([Attr(alias, a.name, a.type) for a in scope.shown])
    return "", scope


def _select(g: Gen, scope: Scope) -> tuple[str, Scope]:
    texts, attrs = [], []
    for _ in range(g.number(1, 3)):
        found = ref(g, scope, (*PLAIN, "struct", "array"))
        if found is None:
            continue
        text = g.spell(found.parts)
        if g.chance(0.3):
            name = g.pick(OUTPUTS)
            texts.append(f"{text} AS {g.quoted(name)}")
            attrs.append(Attr(None, name, found.type))
        else:
            texts.append(text)
            attrs.append(found.attr if found.whole else Attr(None, found.parts[-1], found.type))
    return (f"SELECT {', '.join(texts)}", Scope(attrs)) if texts else ("", scope)


def _aggregate(g: Gen, scope: Scope) -> tuple[str, Scope]:
    text, type_ = aggregate(g, scope)
    name = g.pick(OUTPUTS)
    key = ref(g, scope, PLAIN, whole=True)
    if key is None or g.chance(0.3):
        return f"AGGREGATE {text} AS {g.quoted(name)}", Scope([Attr(None, name, type_)])
    scope = Scope([key.attr, Attr(None, name, type_)])
    return f"AGGREGATE {text} AS {g.quoted(name)} GROUP BY {g.spell(key.parts)}", scope
