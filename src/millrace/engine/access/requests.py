"""What index AMs were asked for: every binding once of each, and which answers are still to come."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from millrace.engine.access.measured_index import Paced
from millrace.engine.access.paths import Lookup
from millrace.engine.arrays import to_arrow
from millrace.engine.plan.graph import QueryGraph
from millrace.engine.stems.bindings import BindingSet, bound
from millrace.engine.stems.conditions import Matching
from millrace.engine.stems.stem import SteM
from millrace.engine.tuples.batch import TupleBatch


class Requests:
    """The bindings submitted to the index AMs of a block.

    Args:
        graph: The block's query graph.
        indexes: The index AMs with the relations that they belong to.
        stems: The block's SteMs.
    """

    def __init__(
        self, graph: QueryGraph, indexes: Sequence[tuple[int, Paced]], stems: Sequence[SteM]
    ) -> None:
        self._graph = graph
        self._indexes = indexes
        self._stems = stems
        self._matching = Matching(graph)
        self._asked: dict[tuple[int, tuple[str, ...]], BindingSet] = {}
        self._wanted: dict[tuple[int, tuple[str, ...]], BindingSet] = {}

    def asked(self, lookup: Lookup) -> BindingSet:
        """Return the bindings that an index AM was asked for in one combination of types."""
        key = lookup.module, tuple(str(k.type) for k in lookup.keys)
        if key not in self._asked:
            self._asked[key] = BindingSet(lookup.keys)
        return self._asked[key]

    def ask(self, lookup: Lookup, batch: TupleBatch) -> None:
        """Submit what tuples bind, but for what the AM was asked for, or some AM has answered."""
        coded, values = bound(self._matching, batch, lookup.classes)
        eots = self._stems[lookup.relation].eot(lookup.keys)
        unknown = np.flatnonzero(~eots.contains(coded, values))
        if not len(unknown):
            return
        some = [c[unknown] for c in coded]
        fresh = self.asked(lookup).add(some, lambda k: values(k).take(to_arrow(unknown)))
        if fresh.num_rows:
            self.submit(lookup, fresh)

    def submit(self, lookup: Lookup, fresh: pa.RecordBatch) -> None:
        """Submit bindings that have just been added to those that the AM was asked for."""
        key = self._graph.leads[lookup.relation], tuple(f"{k.name} {k.type}" for k in lookup.keys)
        if key not in self._wanted:
            self._wanted[key] = BindingSet(lookup.keys)
        self._wanted[key].add_rows(fresh)
        self._indexes[lookup.module][1].submit(fresh)

    def missing(self, relation: int) -> bool:
        """Whether some binding of the relation that was asked for has no EOT: that of one AM is enough."""
        stem = self._stems[relation]
        return not stem.complete and any(
            wanted.size > stem.eot(wanted.keys).size
            for (lead, _), wanted in self._wanted.items()
            if lead == relation
        )
