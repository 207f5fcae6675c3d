"""A standing query: what it wants of the join that it shares with others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa

from millrace.engine.plan.expressions import And, ColumnRef, Predicate, columns_of, relations_of
from millrace.streams.hub.encoding import decoded, decoded_schema, encoded, encoded_schema

Since = Literal["now", "window"]


@dataclass(frozen=True)
class StandingQuery:
    """A query over the hub's join.

    Attributes:
        id: Its number, which no other query of the hub ever has.
        name: Its name among those that run.
        filters: Its conditions over one relation, each an AND of nothing else.
        residuals: Its conditions over several relations.
        columns: Where the columns of its result come from.
        schema: These columns.
        streams: The streams that it joins, in the hub's order.
        since: Whether it begins with the tuples that arrive from now on, or with those of the window.
    """

    id: int
    name: str
    filters: tuple[Predicate, ...]
    residuals: tuple[Predicate, ...]
    columns: tuple[ColumnRef, ...]
    schema: pa.Schema
    streams: tuple[str, ...]
    since: Since = "now"

    def of(self, alias: str) -> tuple[Predicate, ...]:
        """Return its conditions over a relation alone."""
        return tuple(each for each in self.filters if relations_of(each) == {alias})

    @property
    def reads(self) -> frozenset[ColumnRef]:
        """The columns that have to be in a result of the join for it."""
        return frozenset((*self.columns, *(ref for p in self.residuals for ref in columns_of(p))))

    def to_json(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "name": self.name,
            "filters": [encoded(each) for each in self.filters],
            "residuals": [encoded(each) for each in self.residuals],
            "columns": [[ref.relation, ref.column] for ref in self.columns],
            "schema": encoded_schema(self.schema),
            "streams": list(self.streams),
            "since": self.since,
        }

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> StandingQuery:
        """Return what :meth:`to_json` gave."""
        return cls(
            fields["id"],
            fields["name"],
            tuple(map(decoded, fields["filters"])),
            tuple(map(decoded, fields["residuals"])),
            tuple(ColumnRef(*each) for each in fields["columns"]),
            decoded_schema(fields["schema"]),
            tuple(fields["streams"]),
            fields["since"],
        )


def terms(predicates: Iterable[Predicate]) -> Iterator[Predicate]:
    """Yield the terms of a conjunction."""
    for predicate in predicates:
        if isinstance(predicate, And):
            yield from terms(predicate.arguments)
        else:
            yield predicate
