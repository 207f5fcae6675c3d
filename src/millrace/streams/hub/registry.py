"""Which queries stand, and since when: a function of the changes, in their order.

Changes come to a cell as tuples do, as one more source, so that a micro-batch that is run again has the same
queries. Each has a number and knows the one before it; a change that overtook another waits for it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from millrace.errors import StateError
from millrace.streams.hub.query import StandingQuery

FORMAT = 1
"""Version of changes and registries."""

BITS = 64
"""A lineage has so many bits a word."""


@dataclass(frozen=True)
class Change:
    """A query that comes, or goes.

    Attributes:
        number: Its place among all changes of a hub, from 1.
        query: What comes; None where one goes.
        gone: The number of the query that goes; None where one comes.
        before: The number of the change before it, where numbers between were lost with their files; else
            None.
    """

    number: int
    query: StandingQuery | None = None
    gone: int | None = None
    before: int | None = None

    @property
    def previous(self) -> int:
        """The number of the change that it waits for."""
        return self.number - 1 if self.before is None else self.before

    def to_json(self) -> dict[str, Any]:
        query = None if self.query is None else self.query.to_json()
        fields = {"format": FORMAT, "number": self.number, "query": query, "gone": self.gone}
        return fields if self.before is None else fields | {"before": self.before}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Change:
        """Return what :meth:`to_json` gave.

        Raises:
            StateError: Another version wrote it.
        """
        _check(fields, "a change of a hub's queries")
        query = fields["query"]
        came = None if query is None else StandingQuery.from_json(query)
        return cls(fields["number"], came, fields["gone"], fields.get("before"))


@dataclass(frozen=True)
class Admitted:
    """A query that stands, as a cell sees it.

    Attributes:
        slot: The place of its bit in lineages.
        batch: Number of the micro-batch that it came with, counted by the cell.
        watermark: Of that micro-batch, microseconds; None while there was none.
    """

    query: StandingQuery
    slot: int
    batch: int
    watermark: int | None

    @property
    def word(self) -> int:
        """The word of a lineage that has its bit."""
        return self.slot // BITS

    @property
    def bit(self) -> int:
        """That word with nothing but its bit."""
        return 1 << self.slot % BITS


@dataclass(frozen=True)
class Registry:
    """The queries of a cell after some changes.

    Attributes:
        version: Number of the latest change.
        queries: Those that stand.
        words: Of a lineage.
        last: The slot that was given last. They are given in turn, so that one is not soon another's.
        waiting: Changes that came before an earlier one.
    """

    version: int = 0
    queries: tuple[Admitted, ...] = ()
    words: int = 1
    last: int = -1
    waiting: tuple[Change, ...] = field(default=())

    def after(self, changes: Iterable[Change], batch: int, watermark: int | None) -> Registry:
        """Return the registry after further changes, in any order; those that it has already are left out.

        ``batch`` is the micro-batch that they come with; its watermark is in microseconds.
        """
        registry = self
        waiting = sorted({each.number: each for each in (*self.waiting, *changes)}.items())
        for number, change in waiting:
            # It may know an earlier one than the latest here, whose file was damaged after that was read.
            if change.previous <= registry.version < number:
                registry = registry._changed(change, batch, watermark)
        left = tuple(change for number, change in waiting if number > registry.version)
        return replace(registry, waiting=left)

    def _changed(self, change: Change, batch: int, watermark: int | None) -> Registry:
        queries = tuple(each for each in self.queries if each.query.id != change.gone)
        if change.query is None:
            return replace(self, version=change.number, queries=queries)
        words = max(self.words, len(queries) // BITS + 1)
        taken = {each.slot for each in queries}
        turn = (slot % (words * BITS) for slot in range(self.last + 1, self.last + 1 + words * BITS))
        slot = next(slot for slot in turn if slot not in taken)
        came = Admitted(change.query, slot, batch, watermark)
        return replace(self, version=change.number, queries=(*queries, came), words=words, last=slot)

    @property
    def seen(self) -> int:
        """How many changes have come."""
        return self.version + len(self.waiting)

    @cached_property
    def slots(self) -> frozenset[int]:
        """The slots that are taken."""
        return frozenset(each.slot for each in self.queries)

    def to_text(self) -> str:
        """Return it as JSON."""
        fields = {
            "format": FORMAT,
            "version": self.version,
            "queries": [
                [each.query.to_json(), each.slot, each.batch, each.watermark] for each in self.queries
            ],
            "words": self.words,
            "last": self.last,
            "waiting": [each.to_json() for each in self.waiting],
        }
        return json.dumps(fields, separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str) -> Registry:
        """Return what :meth:`to_text` gave.

        Raises:
            StateError: Another version wrote it.
        """
        fields = json.loads(text)
        _check(fields, "the queries of a hub in the checkpoint")
        queries = (Admitted(StandingQuery.from_json(query), *rest) for query, *rest in fields["queries"])
        waiting = tuple(map(Change.from_json, fields["waiting"]))
        return cls(fields["version"], tuple(queries), fields["words"], fields["last"], waiting)


def read_fields(text: str | bytes) -> dict[str, Any] | None:
    """Return the JSON of a file; None for a file that a failure of the machine left empty or cut off."""
    try:
        fields: dict[str, Any] = json.loads(text)
    except ValueError:
        return None
    return fields


def _check(fields: Mapping[str, Any], what: str) -> None:
    if fields.get("format") != FORMAT:
        raise StateError(
            f"{what}: found format {fields.get('format')}, and this version of Millrace reads {FORMAT}: "
            "go on with the version that wrote it, or begin with an empty checkpoint folder"
        )
