"""Sources that stall: STAIRs use the time (query scrambling), results come out, and others are read on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest

from millrace.engine.architectures.stairs import StairState
from millrace.engine.arrivals.schedule import STALLED, Schedule
from millrace.engine.runs.eddy_run import EddyRun
from millrace.engine.runs.run_of import run_of
from millrace.engine.state.stairs import Stairs
from millrace.engine.trees import edges_of
from millrace.limits.clock import VirtualClock
from millrace.options import ARCHITECTURES, Options
from tests.engine.eddy.blocks import batches, block
from tests.engine.eddy.oracle import Case, multiset

Feed = Iterator[Any]


def chain(sizes: Sequence[int] = (40, 40, 40), distinct: int = 8) -> Case:
    """Return ``r.a = s.a AND s.b = t.b`` with keys that meet several times."""
    n, m, o = sizes
    tables = {
        "r": pa.table({"a": pa.array([i % distinct for i in range(n)])}),
        "s": pa.table(
            {"a": pa.array([i % distinct for i in range(m)]), "b": pa.array([i // 2 for i in range(m)])}
        ),
        "t": pa.table({"b": pa.array([i // 2 for i in range(o)])}),
    }
    return block(tables, ["r.a = s.a", "s.b = t.b"])


def stalled_chain(pauses: int, options: Options, before: int = 0) -> tuple[EddyRun, dict[str, int]]:
    """Run a chain whose ``t`` stalls for some rounds, maybe after some data; return figures at its return."""
    case = chain()
    rs = batches(case, 8)
    at: dict[str, int] = {}

    def t() -> Feed:
        yield from rs["t"][:before]
        for _ in range(pauses):
            yield STALLED
        at["made"] = eddy._statistics.intermediate
        state = eddy._state
        assert isinstance(state, StairState)
        edge = next(e.number for e in edges_of(eddy._graph) if e.ends == (1, 2))
        waiting = state.stairs.joins[edge].stairs[1] if edge in state.stairs.joins else None
        at["pairs"] = sum(
            s.live for sig, s in (waiting.segments.items() if waiting else ()) if sig.span == 0b011
        )
        at["recomputed"] = state.stairs.recomputed
        yield from rs["t"][before:]

    sources: dict[str, Any] = {"r": rs["r"], "s": rs["s"], "t": t()}
    schedule = Schedule(None, True, (0, 1, 2))
    eddy = EddyRun(case.spec, sources, options, schedule=schedule, clock=VirtualClock())
    rows = multiset(pa.Table.from_batches(list(eddy.run()), case.spec.output_schema))
    assert rows == case.expected()
    return eddy, at


LAST_S_R = Options(architecture="stairs", migration="never", policy="fixed", order=("t", "s", "r"))
"""``s`` goes to its join with ``t`` first: then nothing is joined with ``r`` before ``t`` comes."""


def test_an_empty_batch_gives_back_control() -> None:
    """When sources stall and nothing is ready, the caller hears of it once for each stall."""
    case = chain()
    pieces = batches(case, 20)
    sources: dict[str, Any] = {**pieces, "t": [*([None] * 9), *pieces["t"]]}
    eddy = EddyRun(case.spec, sources, Options(online=True), clock=VirtualClock())
    found = list(eddy.run())
    assert [batch.num_rows for batch in found] == [0, case.expected().total()]
    assert all(batch.schema == case.spec.output_schema for batch in found)


@pytest.mark.parametrize("before", [0, 2])
def test_what_waits_for_a_stalled_source_is_joined_meanwhile(before: int) -> None:
    """All of ``r ⋈ s`` waits at the border to ``t``, even after some of ``t`` has come; else none does."""
    _, with_stall = stalled_chain(12, LAST_S_R, before)
    _, without = stalled_chain(0, LAST_S_R, before)
    pairs = sum(1 for i in range(40) for j in range(40) if i % 8 == j % 8)
    assert with_stall["pairs"] == pairs
    assert with_stall["recomputed"] >= pairs
    assert without["pairs"] == 0


@pytest.mark.broken_rule
def test_work_done_while_stalled_is_spared_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once the source goes on, fewer intermediate tuples are made than without precomputing."""

    def later() -> int:
        eddy, at = stalled_chain(12, LAST_S_R)
        return eddy._statistics.intermediate - at["made"]

    spared = later()
    monkeypatch.setattr(Stairs, "precompute", lambda *_: True)
    assert spared < later()


def test_only_stairs_move_state() -> None:
    """Joins without STAIRs' freedom keep what routing put into them."""
    joins = Options(architecture="joins", policy="fixed", order=("t", "s", "r"))
    _, at = stalled_chain(12, joins)
    assert at["recomputed"] == 0
    _, at = stalled_chain(12, Options(architecture="stairs", intermediate=False, migration="never"))
    assert at["recomputed"] == 0


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_time_passes_while_every_source_has_stalled(architecture: str) -> None:
    """The schedule does not spin: each round of nothing takes a moment of the clock, others take none."""
    case, clock = chain(), VirtualClock()
    pieces = batches(case, 100)
    sources: dict[str, Any] = {**pieces, "t": [*([STALLED] * 10), *pieces["t"]]}
    run = run_of(case.spec, sources, Options(architecture=architecture, online=True), clock=clock)
    found = multiset(pa.Table.from_batches(list(run.run()), case.spec.output_schema))
    assert found == case.expected()
    # Rounds 1 and 2 bring the others' rows and their ends.
    assert 0.007 < clock.now() < 0.011


def test_rows_that_are_ready_come_out_when_sources_stall() -> None:
    """Results are not held back for a full batch: two stalls, two batches, and none is left at the end."""
    case = chain()
    pieces = batches(case, 20)
    sources: dict[str, Any] = {**pieces, "t": [pieces["t"][0], *([None] * 9), pieces["t"][1], None, None]}
    eddy = EddyRun(case.spec, sources, Options(online=True), clock=VirtualClock())
    sizes = [batch.num_rows for batch in eddy.run()]
    assert len(sizes) == 2
    assert min(sizes) > 0
    assert sum(sizes) == case.expected().total()


def rounds(schedule: Schedule, feeds: dict[int, list[Any]]) -> list[list[tuple[int, Any]]]:
    """Return what a schedule yields: numbers of rows, ``STALLED`` and None."""
    return [
        [(r, b.num_rows if isinstance(b, pa.RecordBatch) else b) for r, b in arrivals]
        for arrivals in schedule.arrivals(feeds, 10)
    ]


def test_a_stalled_source_holds_up_no_other() -> None:
    """One after the other: the next one is read meanwhile, but the unbuilt one comes last all the same."""
    one = pa.record_batch({"a": pa.array([1])})
    feeds = {0: [None, None, one], 1: [one, STALLED], 2: [one]}
    assert rounds(Schedule(2, False, (0, 1, 2)), feeds) == [
        [(0, STALLED), (1, 1)],
        [(0, STALLED), (1, STALLED)],
        [(0, 1)],
        [(0, None)],
        [(1, None)],
        [(2, 1)],
        [(2, None)],
    ]


def test_interleaved_a_stalled_source_is_asked_every_round() -> None:
    """It keeps its turn."""
    one = pa.record_batch({"a": pa.array([1])})
    assert rounds(Schedule(None, True, (0, 1)), {0: [None, one], 1: [one]}) == [
        [(0, STALLED), (1, 1)],
        [(0, 1), (1, None)],
        [(0, None)],
    ]
