"""What it costs to move state, over what it cost to route the same tuples: the paper's micro-benchmark.

Deshpande & Hellerstein 2004, section 5.2 and figure 7 (ii). R and T are in, and every S tuple finds one tuple
of either. All S tuples are routed to R ⋈ S, and their matches to S ⋈ T. Then S is decided to go to S ⋈ T:
``r s`` in S.b is demoted to ``s``, and ``s`` in S.a is promoted to ``s t``, all in one go.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from lab.benchmarks import harness
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


@dataclass
class Migration:
    """R(a), S(a, b) and T(b), and how long routing and settling took in each round.

    Attributes:
        tables: By alias.
        expected: Rows of the join, by DuckDB.
        routing: Seconds of inserting the S tuples, of probing, and of the same for their matches.
        settling: Seconds of moving what these have left.
        work: Tuples moved, tuples made by moving, and tuples held afterwards, of the latest round.
    """

    tables: dict[str, pa.Table]
    expected: int
    routing: list[float] = field(default_factory=list)
    settling: list[float] = field(default_factory=list)
    work: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, rows: int) -> Migration:
        """Make the data."""
        draw = np.random.default_rng(_SEED)
        keys = [draw.permutation(rows) for _ in range(4)]
        tables = {
            "r": pa.table({"a": keys[0]}),
            "s": pa.table({"a": keys[1], "b": keys[2]}),
            "t": pa.table({"b": keys[3]}),
        }
        import duckdb  # an extra, which listing experiments does not need

        with duckdb.connect() as connection:
            for alias, table in tables.items():
                connection.register(alias, table)
            found = connection.execute("SELECT count(*) FROM r JOIN s USING (a) JOIN t USING (b)").fetchone()
        assert found is not None
        return cls(tables, int(found[0]))

    @property
    def ratio(self) -> float:
        """Median of settling over that of routing."""
        return harness.median(self.settling) / harness.median(self.routing)

    def measure(self) -> None:
        """Fill new STAIRs, route and settle.

        Raises:
            ExecutionError: There were other results than there should be, or state is not where it belongs.
        """
        inner = _Inner(self.tables)
        found: list[int] = []
        self.routing.append(harness.timed(lambda: found.append(inner.route())))
        self.settling.append(harness.timed(inner.settle))
        rows = self.tables["s"].num_rows
        expected = {"s at S.b": rows, "rs at S.b": 0, "s at S.a": 0, "st at S.a": rows}
        if found[0] != self.expected or (held := inner.held()) != expected:
            told = f"{found[0]} results, expected {self.expected}"
            if found[0] == self.expected:
                told = f"after settling {held} tuples are held, expected {expected}"
            raise ExecutionError(told)
        self.work = {
            "rows": found[0],
            "migrated": inner.stairs.moved,
            "recomputed": inner.stairs.recomputed,
            "peak_state": inner.peak,
        }

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield what to report."""
        for side, seconds in (("routing", self.routing), ("settle", self.settling)):
            row = {
                "side": side,
                "runs": len(seconds),
                "median_s": harness.median(seconds),
                "spread": harness.spread(seconds),
            }
            yield row | (self.work if side == "settle" else {})


class _Inner:
    """STAIRs into which R and T have been put already."""

    def __init__(self, tables: dict[str, pa.Table]) -> None:
        self._batches = {alias: table.to_batches(max_chunksize=_BATCH) for alias, table in tables.items()}
        kinds = pa.int64()
        self._spec = JoinSpec(
            tuple(RelationSpec(alias, table.schema, rows=table.num_rows) for alias, table in tables.items()),
            (
                Equality(ColumnRef("r", "a"), ColumnRef("s", "a"), kinds),
                Equality(ColumnRef("s", "b"), ColumnRef("t", "b"), kinds),
            ),
            count_only=True,
        )
        graph = QueryGraph.of(self._spec)
        self._stems = [SteM(i, relation, graph) for i, relation in enumerate(self._spec.relations)]
        self.stairs = Stairs(self._spec, graph, spanning_tree(graph, [1, 1, 1]), self._stems)
        edges = {edge.ends: edge.number for edge in self.stairs.tree.edges}
        self._rs, self._st = edges[0, 1], edges[1, 2]
        for relation, edge in ((0, self._rs), (2, self._st)):
            for batch in self._base(relation):
                self.stairs.route(edge, batch)
        self._coming = list(self._base(1))
        self.peak = 0

    def _base(self, relation: int) -> Iterator[TupleBatch]:
        stem, alias = self._stems[relation], self._spec.aliases[relation]
        for batch in self._batches[alias]:
            yield stem.build(singletons(stem, batch, alias, built=False), None)

    def route(self) -> int:
        """Send all S tuples to R ⋈ S, and what comes of them to S ⋈ T; return the results."""
        results = 0
        for batch in self._coming:
            for found in self._matches(self._rs, batch):
                results += sum(result.size for result in self._matches(self._st, found))
        return results

    def _matches(self, edge: int, batch: TupleBatch) -> Iterator[TupleBatch]:
        probe = self.stairs.route(edge, batch)
        while not probe.is_done:
            yield self.stairs.joins[edge].matches(probe, _BATCH)

    def settle(self) -> None:
        """Move everything to where it would be if S had gone to S ⋈ T from the start."""
        self.peak = self.stairs.tuples + sum(stem.rows for stem in self._stems)
        edges = {_R: self._rs, _S: self._st, _T: self._st, _S | _T: self._rs, _R | _S: self._st}
        settle(self.stairs, edges.__getitem__, places_of(self.stairs.tree, edges.__getitem__), self.peak)

    def held(self) -> dict[str, int]:
        """Return the tuples of each kind that a STAIR of S may hold."""
        places = {
            "s at S.b": (self._st, _S),
            "rs at S.b": (self._st, _R | _S),
            "s at S.a": (self._rs, _S),
            "st at S.a": (self._rs, _S | _T),
        }
        return {name: self._count(edge, span) for name, (edge, span) in places.items()}

    def _count(self, edge: int, span: int) -> int:
        segments = self.stairs.joins[edge].stairs[1].segments
        return sum(segment.live for signature, segment in segments.items() if signature.span == span)
