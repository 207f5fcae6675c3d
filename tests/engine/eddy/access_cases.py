"""Random access modules for blocks, and one way to run blocks with them in virtual time."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from millrace.engine.arrivals.access_modules import Index, IndexAM, Scan, ScanAM
from millrace.engine.arrivals.schedule import Schedule
from millrace.engine.runs.eddy_run import EddyRun
from millrace.engine.runs.preference import Wanted
from millrace.limits.clock import VirtualClock
from millrace.options import Options
from tests.engine.eddy.oracle import Case, multiset

Rows = Counter[tuple[Any, ...]]


class Noted(Index):
    """An index that notes the bindings it was asked for."""

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self.bindings: list[tuple[str, ...]] = []

    def submit(self, bindings: pa.RecordBatch) -> None:
        types = str(bindings.schema.types)
        self.bindings += [(types, *map(repr, row.values())) for row in bindings.to_pylist()]
        super().submit(bindings)


@dataclass(frozen=True)
class IndexPlan:
    """How to make an index AM."""

    columns: tuple[str, ...]
    delay: float = 0.0
    in_flight: int | None = None
    generous: bool = False

    def module(self, alias: str, table: pa.Table, clock: VirtualClock) -> Noted:
        """Return the AM; a generous one returns more than it was asked for: the whole table."""
        whole = table.combine_chunks().to_batches()
        everything = whole[0] if whole else pa.RecordBatch.from_pylist([], table.schema)
        source = (lambda _: everything) if self.generous else table
        return Noted(f"{alias} by {self.columns}", self.columns, source, clock, self.delay, self.in_flight)


@dataclass(frozen=True)
class ScanPlan:
    """How to make a scan AM."""

    every: float = 0.0
    stall: tuple[int, float] | None = None
    rows: int | None = None

    def module(self, alias: str, table: pa.Table, clock: VirtualClock, chunk: int) -> Scan:
        """Return the AM; with ``rows`` it breaks off after so many."""
        part = table if self.rows is None else table.slice(0, self.rows)
        batches = part.combine_chunks().to_batches(max_chunksize=chunk)
        return Scan(alias, batches, clock, self.every, self.stall, breaks=self.rows is not None)


@dataclass(frozen=True)
class Plan:
    """The access modules of one relation; ``source`` says whether it has a plain source too."""

    source: bool = True
    indexes: tuple[IndexPlan, ...] = ()
    scans: tuple[ScanPlan, ...] = ()


@dataclass
class Ran:
    """What a run returned and what it did."""

    rows: Rows
    eddy: EddyRun
    clock: VirtualClock
    indexes: list[Noted] = field(default_factory=list)
    results: list[tuple[float, pa.RecordBatch]] = field(default_factory=list)


def run(
    case: Case,
    plans: dict[str, Plan],
    options: Options | None = None,
    *,
    schedule: Schedule | None = None,
    stream: str | None = None,
    chunk: int = 4,
    prefer: Wanted = None,
    later: Wanted = None,
    changes_at: int = 2,
) -> Ran:
    """Run the block in virtual time with access modules made by the plans.

    Args:
        later: What is preferred from a batch of results on, where that is not what was before.
        changes_at: The number of that batch, from one.
    """
    clock = VirtualClock()
    access: dict[str, Sequence[ScanAM | IndexAM]] = {}
    indexes: list[Noted] = []
    sources = {}
    for relation in case.spec.relations:
        if relation.same_as is not None:
            continue
        alias, table = relation.alias, case.tables[relation.alias]
        plan = plans.get(alias, Plan())
        if plan.source:
            sources[alias] = table.combine_chunks().to_batches(max_chunksize=chunk)
        mine = [p.module(alias, table, clock) for p in plan.indexes]
        indexes += mine
        scans = [p.module(alias, table, clock, chunk) for p in plan.scans]
        if mine or scans:
            access[alias] = [*mine, *scans]
    eddy = EddyRun(
        case.spec,
        sources,
        options,
        schedule=schedule,
        stream=stream,
        clock=clock,
        access=access,
        prefer=prefer,
    )
    results: list[tuple[float, pa.RecordBatch]] = []
    for batch in eddy.run():
        results.append((clock.now(), batch))
        if later is not None and len(results) == changes_at:
            eddy.prefer(later)
    table = pa.Table.from_batches([batch for _, batch in results], case.spec.output_schema)
    return Ran(multiset(table), eddy, clock, indexes, results)


def with_self_joins(case: Case) -> Case:
    """Let relations that read the same table share its tuples."""
    first: dict[int, str] = {}
    relations = []
    for relation in case.spec.relations:
        lead = first.setdefault(id(case.tables[relation.alias]), relation.alias)
        relations.append(replace(relation, same_as=None if lead == relation.alias else lead))
    return replace(case, spec=replace(case.spec, relations=tuple(relations)))


@st.composite
def plans(draw: st.DrawFn, case: Case) -> dict[str, Plan]:
    """Draw access modules with which the block can be answered.

    A relation that has indexes alone is bound by relations before it, as many cases are made.
    """
    found = {}
    spec = case.spec
    leads = {r.same_as for r in spec.relations}
    for place, relation in enumerate(spec.relations):
        if relation.same_as is not None:
            continue
        alias = relation.alias
        columns = set()
        for equality in spec.equalities:
            for mine, other in ((equality.left, equality.right), (equality.right, equality.left)):
                if mine.relation == alias and spec.aliases.index(other.relation) < place:
                    columns.add(mine.column)
        indexes: list[IndexPlan] = []
        for _ in range(draw(st.integers(0, 2)) if columns else 0):
            bound = draw(st.permutations(sorted(columns)))[: draw(st.sampled_from([1, 1, 2]))]
            indexes.append(
                IndexPlan(
                    tuple(bound),
                    draw(st.sampled_from([0.0, 1.0, 2.5])),
                    draw(st.sampled_from([None, 1, 3])),
                    draw(st.integers(0, 4)) == 0,
                )
            )
        scans: list[ScanPlan] = []
        for _ in range(draw(st.sampled_from([0, 0, 1, 2]))):
            stall = draw(st.sampled_from([None, (0, 3.0), (1, 3.0), (1, math.inf)]))
            scans.append(ScanPlan(draw(st.sampled_from([0.0, 0.5])), stall, draw(st.sampled_from([None, 1]))))
        source = not indexes or alias in leads or draw(st.booleans())
        if scans and not any(s.rows is None and (s.stall is None or s.stall[1] < math.inf) for s in scans):
            source = True  # some scan has to end
        found[alias] = Plan(source, tuple(indexes), tuple(scans))
    return found


@st.composite
def options(draw: st.DrawFn, policies: Sequence[str]) -> Options:
    """Draw settings that change the routing and nothing else."""
    return Options(
        policy=draw(st.sampled_from(policies)),
        batch_size=draw(st.sampled_from([1, 2, 3, 7, 100])),
        reoptimize_every=draw(st.sampled_from([1, 3, 1000])),
        seed=draw(st.integers(0, 3)),
        online=draw(st.booleans()),
    )
