"""Random access modules for blocks, and one way to run blocks with them in virtual time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from lab.access import Index, PacedScan
from millrace.engine.access.modules import Answer, IndexAM, ScanAM
from millrace.engine.eddy.run import Run
from millrace.engine.plan.expressions import Column
from millrace.errors import BudgetError
from millrace.limits.clock import VirtualClock
from millrace.options import POLICY_NAMES, Options
from tests.engine.eddy.oracle import Case, Rows, canonical, multiset


class Noted(Index):
    """An index that notes the bindings it was asked for, and how many were pending at most.

    ``late`` counts how often it was asked after it had said that its budget is spent.
    """

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self.bindings: list[tuple[str, ...]] = []
        self.highest = self.late = 0
        self._told = False

    def submit(self, bindings: pa.RecordBatch) -> None:
        types = str(bindings.schema.types)
        self.bindings += [(types, *map(repr, map(canonical, row.values()))) for row in bindings.to_pylist()]
        self.late += self._told
        super().submit(bindings)
        self.highest = max(self.highest, self.pending)

    def poll(self) -> list[Answer]:
        try:
            return super().poll()
        except BudgetError:
            self._told = True
            raise

    @property
    def keys(self) -> list[int]:
        """The bindings, where they are one whole number each."""
        return [int(binding[-1]) for binding in self.bindings]


@dataclass(frozen=True)
class IndexPlan:
    columns: tuple[str, ...]
    delay: float = 0.0
    in_flight: int | None = None
    generous: bool = False
    budget: int | None = None

    def module(self, alias: str, table: pa.Table, clock: VirtualClock) -> Noted:
        """Return the AM; a generous one returns more than it was asked for: the whole table."""
        whole = table.combine_chunks().to_batches()
        everything = whole[0] if whole else pa.RecordBatch.from_pylist([], table.schema)
        source = (lambda _: everything) if self.generous else table
        name, how = f"{alias} by {self.columns}", {"in_flight": self.in_flight, "budget": self.budget}
        return Noted(name, self.columns, source, clock, self.delay, **how)


@dataclass(frozen=True)
class ScanPlan:
    every: float = 0.0
    stall: tuple[int, float] | None = None
    rows: int | None = None

    def module(self, alias: str, table: pa.Table, clock: VirtualClock, chunk: int) -> PacedScan:
        """Return the AM; with ``rows`` it breaks off after so many."""
        part = table if self.rows is None else table.slice(0, self.rows)
        batches = part.combine_chunks().to_batches(max_chunksize=chunk)
        return PacedScan(alias, batches, clock, self.every, self.stall, breaks=self.rows is not None)


@dataclass(frozen=True)
class Plan:
    """The access modules of one relation; ``source`` says whether it has a plain source too."""

    source: bool = True
    indexes: tuple[IndexPlan, ...] = ()
    scans: tuple[ScanPlan, ...] = ()


def asked(*columns: str, delay: float = 0.0, in_flight: int | None = None) -> Plan:
    """Return the plan of a relation that has one index and nothing else."""
    return Plan(source=False, indexes=(IndexPlan(columns, delay, in_flight),))


@dataclass
class Ran:
    rows: Rows
    run: Any
    clock: Any
    indexes: list[Noted]
    results: list[tuple[float, pa.RecordBatch]]

    @property
    def index(self) -> Noted:
        return self.indexes[0]

    @property
    def when(self) -> list[float]:
        return [when for when, batch in self.results for _ in range(batch.num_rows)]


def modules(case: Case, plans: Mapping[str, Plan], clock, chunk: int) -> tuple[dict, list[Noted]]:
    """Return the access modules that plans make, and the indexes among them."""
    access: dict[str, Sequence[ScanAM | IndexAM]] = {}
    indexes: list[Noted] = []
    for alias, plan in plans.items():
        mine = [p.module(alias, case.tables[alias], clock) for p in plan.indexes]
        scans = [p.module(alias, case.tables[alias], clock, chunk) for p in plan.scans]
        indexes += mine
        if mine or scans:
            access[alias] = [*mine, *scans]
    return access, indexes


def run(case: Case, plans, options=None, *, chunk=4, own=None, sources=None, clock=None, **given) -> Ran:
    """Run the block, in virtual time if nothing else is said, with access modules made by the plans.

    A test's ``own`` access modules are of relations that have nothing else, its ``sources`` replace rows.
    """
    clock, options, own = clock or VirtualClock(), options or Options(), own or {}
    access, indexes = modules(case, plans, clock, chunk)
    access |= {alias: [module] for alias, module in own.items()}
    feeds = {a: b for a, b in case.batches(chunk).items() if a not in own and plans.get(a, Plan()).source}
    feeds |= sources or {}
    running = Run(case.spec, feeds, options, clock=clock, access=access, **given)
    results = [(clock.now(), batch) for batch in running.run()]
    table = pa.Table.from_batches([batch for _, batch in results], case.spec.output_schema)
    return Ran(multiset(table), running, clock, indexes, results)


@st.composite
def plans(draw: st.DrawFn, case: Case, *, alone: bool = False) -> dict[str, Plan]:
    """Draw access modules with which the block can be answered.

    A relation that has indexes alone is bound by relations before it, in some order, as many cases are made.
    All may have to be ``alone``: a source, or one index that values of one relation with a source bind. A
    relation with a window has a source, for its rows come in order of time.
    """
    found: dict[str, Plan] = {}
    leads = {r.alias: r.same_as or r.alias for r in case.spec.relations}
    own = [relation for relation in case.spec.relations if relation.same_as is None]
    for relation in draw(st.permutations(own)):
        alias, is_shared = relation.alias, [*leads.values()].count(relation.alias) > 1
        bound: dict[str, set[str]] = {}
        for e in case.spec.equalities if relation.window is None else ():
            for mine, other in ((e.left, e.right), (e.right, e.left)):
                lead = leads[other.relation]
                if mine.relation == alias and lead in found and (found[lead].source or not alone):
                    bound.setdefault(other.relation if alone else "", set()).add(mine.column)
        found[alias] = Plan()
        if alone:
            if bound and not is_shared and draw(st.booleans()):
                columns = bound[draw(st.sampled_from(sorted(bound)))]
                found[alias] = Plan(False, (draw(_indexes(columns)),))
        elif relation.window is None:
            indexes = draw(st.lists(_indexes(bound[""]), max_size=2)) if bound else []
            scans = draw(st.lists(SCANS, max_size=2))
            ends = any(s.rows is None and (s.stall is None or s.stall[1] < math.inf) for s in scans)
            source = is_shared or draw(st.booleans())
            if not ends and (scans or not indexes):
                source = True  # some scan has to end
            found[alias] = Plan(source, tuple(indexes), tuple(scans))
    return found


SCANS = st.builds(
    ScanPlan,
    st.sampled_from([0.0, 0.5]),
    st.sampled_from([None, (0, 3.0), (1, 3.0), (1, math.inf)]),
    st.sampled_from([None, 1]),
)


@st.composite
def _indexes(draw: st.DrawFn, columns: set[str]) -> IndexPlan:
    bound = draw(st.permutations(sorted(columns)))[: draw(st.sampled_from([1, 1, 2]))]
    delay, in_flight = draw(st.sampled_from([0.0, 1.0, 2.5])), draw(st.sampled_from([None, 1, 3]))
    return IndexPlan(tuple(bound), delay, in_flight, draw(st.integers(0, 4)) == 0)


@st.composite
def left_joins_asking(draw: st.DrawFn, case: Case) -> tuple[Case, dict[str, Plan]]:
    """Let left joins ask indexes, one at least, for relations that then have no source."""
    joins, found = list(case.spec.outer), dict[str, Plan]()
    for place in draw(st.lists(st.integers(0, len(joins) - 1), min_size=1, unique=True)):
        keys = (key.right for key in joins[place].keys)
        index = draw(_indexes({key.ref.column for key in keys if isinstance(key, Column)}))
        joins[place] = replace(joins[place], bind=index.columns)
        found[joins[place].relation] = Plan(False, (index,))
    return replace(case, spec=replace(case.spec, outer=tuple(joins))), found


@st.composite
def any_options(draw: st.DrawFn, **others: Sequence[Any]) -> Options:
    """Draw settings that change the routing and nothing else, and other ones among some values."""
    values: dict[str, Sequence[Any]] = {
        "policy": POLICY_NAMES,
        "batch_size": [1, 2, 3, 7, 100],
        "reoptimize_every": [1, 3, 10, 1000],
        "seed": range(4),
        "online": [False, True],
    }
    drawn = {name: draw(st.sampled_from(some)) for name, some in (values | others).items()}
    return Options(**drawn | ({"policy": None} if drawn.get("architecture") == "static" else {}))
