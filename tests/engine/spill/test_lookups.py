"""Lookups under a memory budget: what is scanned is joined first, and answers are a cache."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, assume, find, given, settings, strategies as st

from millrace.engine.eddy.output import Output
from millrace.engine.plan.expressions import exists_in, relations_of
from millrace.engine.plan.graph import QueryGraph
from millrace.engine.plan.spec import JoinSpec
from millrace.engine.spill import lookups
from millrace.engine.spill.lookups import CacheMonitor, LookupEddies
from millrace.engine.spill.run_of import run_of
from millrace.errors import InputError
from millrace.limits.clock import VirtualClock
from millrace.options import ALGORITHMS, ARCHITECTURES, Options
from tests.engine.eddy import oracle
from tests.engine.eddy.access_cases import Plan, asked, left_joins_asking, modules, plans
from tests.engine.eddy.blocks import block, chain
from tests.engine.eddy.oracle import Case, multiset
from tests.engine.laws import examples
from tests.engine.spill.test_spilling import LARGE_BUDGET, RATIO, beside, large, within

BATCH = 2_000
"""Bytes for a batch of one tuple, twice and with all that a budget is for."""

Asking = tuple[Case, dict[str, Plan], Options, int]


@st.composite
def asking(draw: st.DrawFn) -> Asking:
    """Draw a block with lookups, a budget that may be too small for it, and rows of a batch."""
    case = draw(oracle.cases(4, 16))
    found: dict[str, Plan] = {}
    if draw(st.booleans()):
        case = oracle.with_self_joins(case)
    if draw(st.booleans()):
        case = draw(oracle.cases_beside(case))
    if case.spec.outer and draw(st.booleans()):
        case, found = draw(left_joins_asking(case))
    found |= {alias: plan for alias, plan in draw(plans(case, alone=True)).items() if plan.indexes}
    assume(found and is_divisible(case.spec, found))
    batch = draw(st.sampled_from([1, 3, 10]))
    options = Options(
        architecture=draw(st.sampled_from(ARCHITECTURES)),
        algorithm=draw(st.sampled_from(ALGORITHMS)),
        batch_size=batch,
        memory_budget=BATCH * batch * draw(st.sampled_from([1, 4, 1_000])),
    )
    return case, found, options, draw(st.sampled_from([1, 5]))


def is_divisible(spec: JoinSpec, looked_up: Collection[str]) -> bool:
    """Whether equalities join what is scanned, and nothing else that is scanned waits for answers."""
    scanned = {relation.alias for relation in spec.sources} - {*looked_up}
    own = scanned.intersection(spec.aliases)
    reached = {min(own)}
    links = [{spec.aliases[r] for r, _ in each.members} & own for each in QueryGraph.of(spec).classes]
    for link in links * len(links):
        reached |= link if link & reached else set()
    asks = [p for p in spec.residuals if [*exists_in(p)]]
    asks += [join for join in spec.outer if join.relation in scanned]
    return reached == own and all(relations_of(each) <= scanned for each in asks)


def answer(example: Asking) -> tuple[oracle.Rows, LookupEddies]:
    """Return the rows, and what made them."""
    case, found, options, chunk = example
    clock = VirtualClock()
    access, _ = modules(case, found, clock, chunk)
    sources = {alias: own for alias, own in case.batches(chunk).items() if alias not in access}
    run = run_of(case.spec, sources, options, clock=clock, access=access)
    assert isinstance(run, LookupEddies)
    return multiset(pa.Table.from_batches(run.run(), case.spec.output_schema)), run


@pytest.mark.law
@pytest.mark.parametrize("share", [0.0, lookups.CACHED_SHARE])
def test_the_rows_are_duckdbs(monkeypatch, share) -> None:
    """However often a new eddy goes on, here also after every batch; answers may come late."""
    monkeypatch.setattr(lookups, "CACHED_SHARE", share)

    @examples(100)
    @given(asking())
    def law(example: Asking) -> None:
        assert answer(example)[0] == example[0].expected(), example[0].sql()

    law()


def forget_the_next(reading: Callable[..., Any]) -> Callable[..., Any]:
    """Return an eddy's input that drops the tuples with which another eddy is to begin."""

    def careless(self: CacheMonitor) -> Any:
        yield from reading(self)
        self.left = next(self._source, None)

    return careless


@pytest.mark.broken_rule
def test_a_new_eddy_begins_where_the_last_one_stopped(monkeypatch) -> None:
    monkeypatch.setattr(lookups, "CACHED_SHARE", 0.0)
    monkeypatch.setattr(CacheMonitor, "reading", forget_the_next(CacheMonitor.reading))
    chosen = settings(
        max_examples=400, derandomize=True, phases=[Phase.generate], suppress_health_check=HealthCheck
    )
    wrong = find(asking(), lambda example: answer(example)[0] != example[0].expected(), settings=chosen)
    monkeypatch.undo()
    assert answer(wrong)[0] == wrong[0].expected()


def test_whoever_leaves_early_closes_the_source(tmp_path) -> None:
    """It is a generator, which may hold files open."""
    case = large(2_000, 2_000, 2_000, 0.01)
    closed = []

    def read() -> Iterator[pa.RecordBatch]:
        try:
            yield from batches["a"]
        finally:
            closed.append("a")

    options = within(tmp_path, "hybrid", LARGE_BUDGET, 64)
    access, _ = modules(case, {"b": asked("k"), "c": asked("j")}, clock := VirtualClock(), 64)
    batches, source = case.batches(64), read()
    results = run_of(case.spec, {"a": source}, options, clock=clock, access=access).run()
    next(results)
    results.close()
    assert closed == ["a"]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_lookups_stay_within_the_budget(architecture, tmp_path) -> None:
    """What is scanned would take several times as much, and so would the answers."""
    case = large(30_000, 30_000, 60_000, 0.002, count_only=True)
    options = within(tmp_path, "hybrid", LARGE_BUDGET, 2048, architecture=architecture)
    rows, run = answer((case, {"c": asked("j", delay=0.1)}, options, 4096))
    figures = run.figures()
    assert rows == case.expected()
    assert figures.spilled_bytes > 0
    assert 0.2 < figures.budget_peak_ratio <= RATIO, figures.budget_peak_ratio
    assert figures.output_tuples == sum(count for (count,) in rows.elements())
    assert not list(tmp_path.iterdir())


def test_wide_answers_stay_within_the_budget(tmp_path) -> None:
    """However many rows of a source come at once, before the size of any answer is known."""
    wide = pa.table({"k": range(5_000), "text": ["x" * 1_000] * 5_000})
    case = block({"a": wide.select(["k"]), "b": wide}, ["a.k = b.k"])
    options = within(tmp_path, "hybrid", LARGE_BUDGET, 8192)
    rows, run = answer((case, {"b": asked("k", delay=0.1)}, options, 5_000))
    assert rows == case.expected()
    assert 0.1 < run.figures().budget_peak_ratio <= RATIO


def test_bindings_without_a_match_are_counted(monkeypatch, tmp_path) -> None:
    """A left join whose index has nothing keeps what it was asked for, until another eddy goes on."""
    case = beside(large(20_000, 20_000, 20_000), "left", 0, 1)
    (join,) = case.spec.outer
    case = replace(case, spec=replace(case.spec, outer=(replace(join, bind=("k",)),)))
    begun: list[CacheMonitor] = []

    def begin(*given: Any) -> CacheMonitor:
        begun.append(CacheMonitor(*given))
        return begun[-1]

    monkeypatch.setattr(lookups, "CacheMonitor", begin)
    options = within(tmp_path, "hybrid", LARGE_BUDGET, 1024)
    rows, _ = answer((case, {"e": asked("k")}, options, 1024))
    assert rows == case.expected()
    assert len(begun) > 1


def test_an_eddy_is_seen_at_work() -> None:
    """Its figures come with its first rows, as do those of a run without a budget."""
    case, clock = large(200, 20, 20), VirtualClock()
    access, _ = modules(case, {"c": asked("j")}, clock, 4)
    sources = {alias: own for alias, own in case.batches(4).items() if alias != "c"}
    options = Options(memory_budget=1 << 22, batch_size=4)
    run = run_of(case.spec, sources, options, clock=clock, access=access)
    rows = run.run()
    next(rows)
    assert "SteM(c)" in {module.name for module in run.figures().modules}
    rows.close()


CHAIN = chain(1)


@pytest.mark.parametrize(
    ("spec", "lookups", "options", "named"),
    [
        (CHAIN.spec, {"b": asked("k")}, {}, "no equality joins the other relations with each other"),
        (CHAIN.spec, {"c": replace(asked("j"), source=True)}, {}, "looks up c, and a scan has all"),
        (CHAIN.spec, {"c": asked("j")}, {"policy": "fixed", "order": ("a", "b", "c")}, "order"),
        (beside(CHAIN, "semi", 9, 3).spec, {"b": asked("k")}, {}, "matches in e depend on"),
    ],
)
def test_what_cannot_be_divided_is_refused(spec, lookups, options, named) -> None:
    """Before a source is read; what would work is said."""
    tables = {relation.alias: pa.table(relation.schema.empty_table()) for relation in spec.sources}
    case = Case(spec, tables)
    clock = VirtualClock()
    access, _ = modules(case, lookups, clock, 1)
    sources = {alias: () for alias in tables if lookups.get(alias, Plan()).source}
    with pytest.raises(InputError, match=f"{named}[\\s\\S]*load the looked-up rows into a table"):
        run_of(spec, sources, Options(memory_budget=1 << 20, **options), access=access)


def test_an_output_is_refused() -> None:
    """It would get tuples of a block that has been divided."""
    access, _ = modules(CHAIN, {"c": asked("j")}, VirtualClock(), 1)
    with pytest.raises(InputError, match="a run that is given output"):
        run_of(CHAIN.spec, {}, Options(memory_budget=1 << 20), access=access, output=Output(CHAIN.spec, 1))
