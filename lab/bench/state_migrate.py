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

from lab.bench.harness import Outcome, Run, spread, timed
from millrace.engine.expressions import ColumnRef
from millrace.engine.graph import QueryGraph
from millrace.engine.migration.placement import places_of, settle
from millrace.engine.spec import Equality, JoinSpec, RelationSpec
from millrace.engine.state.stairs import Stairs
from millrace.engine.state.stem import SteM, singletons
from millrace.engine.trees import spanning_tree
from millrace.engine.tuples import TupleBatch
from millrace.errors import ExecutionError

ROWS = 1_000_000
"""Of each relation at scale 1."""

_BATCH = 65_536
_SEED = 20_041
_R, _S, _T = 1, 2, 4


def measure(run: Run) -> Outcome:
    """Time routing and moving in STAIRs that are new in each round.

    Raises:
        ExecutionError: There were other results than there should be, or state is not where it belongs.
    """
    rows = max(10, round(ROWS * run.scale))
    routing, moving = list[float](), list[float]()
    for number in range(-1, run.rounds):
        run.says(f"migrate: moving over routing, round {number + 1}")
        state = _State(rows)
        seconds = timed(state.route), timed(state.move)
        expected = {"s at S.b": rows, "rs at S.b": 0, "s at S.a": 0, "st at S.a": rows}
        if state.results != rows or state.held() != expected:
            raise ExecutionError(
                f"{state.results} results, expected {rows}; {state.held()} are held, expected {expected}"
            )
        if number >= 0:  # the first round loads compiled kernels
            routing.append(seconds[0])
            moving.append(seconds[1])
    figures = {"migrate_ratio": statistics.median(moving) / statistics.median(routing)}
    sides = {"routing": routing, "moving": moving}
    return Outcome(
        figures,
        [
            {"case": "migrate", "side": side, "median_s": statistics.median(s), "spread": spread(s)}
            for side, s in sides.items()
        ],
    )


class _State:
    """STAIRs of R(a), S(a, b) and T(b), into which R and T have been put already."""

    def __init__(self, rows: int) -> None:
        draw = np.random.default_rng(_SEED)
        keys = [draw.permutation(rows) for _ in range(4)]
        columns = {"r": {"a": keys[0]}, "s": {"a": keys[1], "b": keys[2]}, "t": {"b": keys[3]}}
        tables = {alias: pa.table(each) for alias, each in columns.items()}
        pairs = (("r", "s", "a"), ("s", "t", "b"))
        self._tables = list(tables.items())
        spec = JoinSpec(
            tuple(RelationSpec(alias, table.schema, rows=rows) for alias, table in self._tables),
            tuple(Equality(ColumnRef(x, key), ColumnRef(y, key), pa.int64()) for x, y, key in pairs),
            count_only=True,
        )
        graph = QueryGraph.of(spec)
        self._stems = [SteM(i, relation, graph) for i, relation in enumerate(spec.relations)]
        self._stairs = Stairs(spec, graph, spanning_tree(graph, [1, 1, 1]), self._stems)
        edges = {edge.ends: edge.number for edge in self._stairs.tree.edges}
        self._rs, self._st = edges[0, 1], edges[1, 2]
        for relation, edge in ((0, self._rs), (2, self._st)):
            for batch in self._base(relation):
                self._stairs.route(edge, batch)
        self._coming = list(self._base(1))
        self.results = 0

    def _base(self, relation: int) -> Iterator[TupleBatch]:
        stem, (alias, table) = self._stems[relation], self._tables[relation]
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

    def held(self) -> dict[str, int]:
        """Return the tuples of each kind that a STAIR of S may hold."""
        places = {"S.b": (self._st, {"s": _S, "rs": _R | _S}), "S.a": (self._rs, {"s": _S, "st": _S | _T})}
        found = {}
        for place, (edge, spans) in places.items():
            segments = self._stairs.joins[edge].stairs[1].segments
            for name, span in spans.items():
                live = sum(segment.live for sign, segment in segments.items() if sign.span == span)
                found[f"{name} at {place}"] = live
        return found
