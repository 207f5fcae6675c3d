"""The watermark of a stream join: below it no time will come any more, and what has expired may go.

Sources of windowed relations are in order of time, which is checked. So the watermark is the smallest of the
latest times of those that have not ended. While a relation without a window has not ended there is none: its
tuples have no time, and may meet anything.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from millrace.engine.plan.graph import QueryGraph
from millrace.engine.plan.spec import JoinSpec
from millrace.engine.stems.conditions import Matching
from millrace.engine.stems.stem import SteM
from millrace.engine.tuples import codes
from millrace.errors import InputError

_SHARE = 4
"""Base tuples are evicted once a quarter of those held has expired: looking costs O(1) a tuple over time."""


class Watermark:
    """Checks that windowed relations arrive in order of time, and says what has expired.

    Args:
        spec: The block.
        graph: Its query graph.
        stems: Base tuples by relation; they know which relations have ended.
    """

    def __init__(self, spec: JoinSpec, graph: QueryGraph, stems: Sequence[SteM]) -> None:
        self.windows = Matching(graph).windows
        self._spec = spec
        self._graph = graph
        self._stems = stems
        self._latest: dict[int, int] = {}
        self._last: dict[int, pa.Scalar] = {}
        self._rows = [0] * graph.relations

    def arrive(self, relation: int, batch: pa.RecordBatch) -> None:
        """Take note of the times of tuples that arrive.

        Raises:
            InputError: They are not in order of time.
        """
        window = self._spec.relations[relation].window
        if window is None or not batch.num_rows:
            return
        column = batch.column(window.column)
        times, valid = codes(column, column.type)
        places = np.arange(len(times)) if valid is None else np.flatnonzero(valid)
        first, self._rows[relation] = self._rows[relation], self._rows[relation] + len(times)
        if not len(places):
            return
        ordered = times[places]
        before = self._latest.get(relation, int(ordered[0]))
        fallen = np.flatnonzero(ordered < np.concatenate(([before], ordered[:-1])))
        if len(fallen):
            place = int(fallen[0])
            last = column[int(places[place - 1])] if place else self._last[relation]
            raise InputError(
                f"relation {self._spec.aliases[relation]!r} has a window, so its rows have to come in order "
                f"of {window.column!r}, but row {first + int(places[place])} of it (the first is 0) has time "
                f"{column[int(places[place])]} after {last}; sort the source by that column, or leave out "
                "the window"
            )
        self._last[relation] = column[int(places[-1])]
        for role in self._graph.roles(relation):
            self._latest[role] = int(ordered[-1])

    def value(self) -> int | None:
        """Return the watermark, in the unit of the times; None while there is none."""
        waited = [stem.number for stem in self._stems if not stem.complete]
        if not waited or any(r not in self._latest for r in waited):
            return None
        return min(self._latest[r] for r in waited)

    def due(self, watermark: int | None) -> dict[int, int]:
        """Return the relations to evict from, with the number of the first row that stays in each."""
        found: dict[int, int] = {}
        if watermark is None:
            return found
        for relation in self.windows.lengths:
            stem = self._stems[relation]
            expired = self.windows.expired(relation, stem.store, watermark)
            if expired and _SHARE * expired >= stem.store.held:
                found[relation] = stem.store.first + expired
        return found
