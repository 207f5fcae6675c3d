"""What it costs to move state, over what it cost to route the same tuples: the paper's micro-benchmark.

Deshpande & Hellerstein 2004, section 5.2 and figure 7 (ii). R and T are in, and every S tuple finds one tuple
of either. All S tuples are routed to R ⋈ S, and their matches to S ⋈ T. Then S is decided to go to S ⋈ T:
``r s`` in S.b is demoted to ``s``, and ``s`` in S.a is promoted to ``s t``, all in one go.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from lab.bench.harness import Run, spread, timed
from lab.joins import block
from millrace.engine.access.paths import Paths
from millrace.engine.plan.graph import QueryGraph
from millrace.engine.plan.trees import spanning_tree
from millrace.engine.stairs.invariants import Stairs
from millrace.engine.stairs.migration import places_of, settle
from millrace.engine.stems.state import stems_of
from millrace.engine.stems.stem import singletons
from millrace.engine.tuples.batch import TupleBatch
from millrace.errors import ExecutionError

ROWS = 1_000_000
"""Of each relation at scale 1."""

_BATCH = 65_536
_R, _S, _T = 1, 2, 4


def measure(run: Run) -> None:
    """Time routing and moving in STAIRs that are new in each round.

    Raises:
        ExecutionError: There were other results than there should be, or state is not where it belongs.
    """
    rows, times = max(10, round(ROWS * run.scale)), {"routing": list[float](), "moving": list[float]()}
    for number in range(-1, run.rounds):
        run.says(f"migrate: moving over routing, round {number + 1}")
        state = _State(rows)
        seconds = timed(state.route)[0], timed(state.move)[0]
        expected = {("b", _S): rows, ("b", _R | _S): 0, ("a", _S): 0, ("a", _S | _T): rows}
        if state.results != rows or state.live(expected) != expected:
            raise ExecutionError(f"{state.results} results of {rows}, {state.live(expected)} of {expected}")
        if number >= 0:  # the first round loads compiled kernels
            for each, taken in zip(times.values(), seconds, strict=True):
                each.append(taken)
    medians = {side: statistics.median(each) for side, each in times.items()}
    run.figures["migrate_ratio"] = medians["moving"] / medians["routing"]
    run.rows += [
        {"case": "migrate", "side": side, "median_s": medians[side], "spread": spread(each)}
        for side, each in times.items()
    ]


class _State:
    """STAIRs of R(a), S(a, b) and T(b), into which R and T have been put already."""

    def __init__(self, rows: int) -> None:
        draw = np.random.default_rng(20_041)
        keys = [draw.permutation(rows) for _ in range(4)]
        columns = {"r": {"a": keys[0]}, "s": {"a": keys[1], "b": keys[2]}, "t": {"b": keys[3]}}
        self._tables = {alias: pa.table(each) for alias, each in columns.items()}
        spec = block(self._tables, "r.a = s.a", "s.b = t.b")
        graph = QueryGraph.of(spec)
        self._stems = stems_of(spec, graph, Paths(graph.everything))
        self._stairs = Stairs(spec, graph, spanning_tree(graph, [1, 1, 1]), self._stems)
        edges = {edge.ends: edge.number for edge in self._stairs.tree.edges}
        self._rs, self._st = edges[0, 1], edges[1, 2]
        for relation, edge in ((0, self._rs), (2, self._st)):
            for batch in self._base(relation):
                self._stairs.route(edge, batch)
        self._coming = list(self._base(1))
        self.results = 0

    def _base(self, relation: int) -> Iterator[TupleBatch]:
        stem, (alias, table) = self._stems[relation], list(self._tables.items())[relation]
        for batch in table.to_batches(max_chunksize=_BATCH):
            yield stem.build(singletons(stem, batch, alias, built=False), None)

    def route(self) -> None:
        """Send all S tuples to R ⋈ S, and what comes of them to S ⋈ T."""
        for batch in self._coming:
            for found in self._matches(self._rs, batch):
                self.results += sum(result.size for result in self._matches(self._st, found))

    def _matches(self, edge: int, batch: TupleBatch) -> Iterator[TupleBatch]:
        probe = self._stairs.route(edge, batch)
        while not probe.is_done:
            yield self._stairs.joins[edge].matches(probe, _BATCH)

    def move(self) -> None:
        """Move everything to where it would be if S had gone to S ⋈ T from the start."""
        peak = self._stairs.tuples + sum(stem.rows for stem in self._stems)
        edges = {_R: self._rs, _S: self._st, _T: self._st, _S | _T: self._rs, _R | _S: self._st}
        settle(self._stairs, edges.__getitem__, places_of(self._stairs.tree, edges.__getitem__), peak)

    def live(self, kinds: dict[tuple[str, int], int]) -> dict[tuple[str, int], int]:
        """Return how many tuples of a span each STAIR of S has, by the STAIR's column and the span."""
        found = {}
        for column, span in kinds:
            stair = self._stairs.joins[{"a": self._rs, "b": self._st}[column]].stairs[1]
            found[column, span] = sum(each.live for s, each in stair.segments.items() if s.span == span)
        return found
