"""Comparing answers, and naming the blocks of a query."""

from __future__ import annotations

from collections import Counter

from millrace.api.query import Query


def bag(frame) -> Counter[str]:
    """The rows as a multiset."""
    return bag_of(frame.collect())


def bag_of(rows) -> Counter[str]:
    """Rows as a multiset, by position; NaN equals itself in text."""
    return Counter(repr(tuple(row)) for row in rows)


def taken(found: Query) -> str:
    """The blocks as ``a b|c d+``: ``+`` where tasks aggregate; subqueries made relations are ``__in``."""
    names = []
    for block in found.blocks:
        aliases = ["__in" if a.startswith("__in") else a for a in block.join.aliases]
        names.append(" ".join(aliases) + ("+" if block.aggregate else ""))
    return "|".join(names)
