"""Sliding windows: DuckDB's rows whatever is routed, moved and evicted, and state that stays bounded."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, note, settings, strategies as st

from millrace.engine.architectures.stairs import StairState
from millrace.engine.arrivals.schedule import Schedule
from millrace.engine.relations import RelationStore
from millrace.engine.runs.block_run import Run
from millrace.engine.runs.eddy_run import EddyRun
from millrace.engine.runs.run_of import run_of
from millrace.engine.spec import JoinSpec, RelationSpec, Window
from millrace.engine.spill.run_of import run_of as run_within
from millrace.engine.state.stairs import Stairs
from millrace.engine.state.waiting import Waiting
from millrace.engine.state.windows import Windows
from millrace.errors import InputError
from millrace.limits.clock import VirtualClock
from millrace.options import ARCHITECTURES, Options
from tests.engine.eddy.blocks import Rows, batches, block
from tests.engine.eddy.oracle import multiset
from tests.engine.eddy.test_laws import schedules
from tests.engine.eddy.window_cases import Endless, Windowed, settings_of, stream, windowed

SCHEMA = pa.schema([("k", pa.int64()), ("at", pa.timestamp("us")), ("name", pa.string())])
SEEDS = range(12)


def ran(
    case: Windowed, options: Options, schedule: Schedule | None = None, chunk: int = 3
) -> tuple[Rows, Run]:
    """Run a block in virtual time; return its rows and what ran it."""
    run = run_of(case.spec, batches(case, chunk), options, schedule=schedule, clock=VirtualClock())
    return multiset(pa.Table.from_batches(list(run.run()), case.spec.output_schema)), run


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.data())
def test_windows_are_duckdbs_conjuncts(data: st.DataObject) -> None:
    """Random graphs, all kinds of times, nulls, any schedule, any architecture, policy and migration."""
    case = data.draw(windowed())
    options = data.draw(settings_of())
    schedule = data.draw(st.one_of(st.none(), schedules(case)))
    rows, _ = ran(case, options, schedule, data.draw(st.sampled_from([1, 2, 5])))
    note(f"{case.sql()}\n{options}\n{schedule}")
    assert rows == case.expected()


def wrong(architecture: str, **changes: Any) -> int:
    """Return for how many streams the answer is not DuckDB's."""
    found = 0
    for seed in SEEDS:
        case = stream(seed)
        options = Options(architecture=architecture, batch_size=2, reoptimize_every=3, seed=seed, **changes)
        try:
            found += int(ran(case, options)[0] != case.expected())
        except (IndexError, pa.ArrowException):  # rows that are gone already were asked for
            found += 1
    return found


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_streams_are_right_and_evicted(architecture: str) -> None:
    """The streams that rules are broken on below: the answers are right as long as none is."""
    assert wrong(architecture) == 0
    _, run = ran(stream(1), Options(architecture=architecture, batch_size=2))
    assert sum(one.evicted for one in run.figures().state) > 0


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_without_the_check_tuples_meet_that_are_too_far_apart(
    architecture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eviction alone does not make the answer right: what is evicted when depends on arrival."""
    monkeypatch.setattr(Windows, "decide", lambda *_: False)
    assert wrong(architecture) > 0


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_evicting_a_tick_too_early_loses_results(architecture: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tuple whose window ends exactly at the watermark may still meet what comes at that time."""
    right = Windows.expired

    def early(self: Windows, relation: int, store: RelationStore, watermark: int) -> int:
        return right(self, relation, store, watermark + 1)

    monkeypatch.setattr(Windows, "expired", early)
    assert wrong(architecture) > 0


def watched(architecture: str) -> list[int]:
    """Return, for all points of stasis of all streams, how many held tuples dangle."""
    seen: list[int] = []
    for seed in SEEDS:
        case = stream(seed)
        options = Options(architecture=architecture, batch_size=2, reoptimize_every=3)
        eddy = EddyRun(case.spec, batches(case, 3), options, clock=VirtualClock())
        state = eddy._state
        assert isinstance(state, StairState)

        def rest(state: StairState = state, right: Any = state.at_stasis) -> bool:
            seen.append(dangling(state))
            return bool(right())

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(state, "at_stasis", rest)
            list(eddy.run())
    return seen


@pytest.mark.parametrize("architecture", ["stairs", "joins"])
def test_no_tuple_held_has_an_evicted_component(architecture: str) -> None:
    """Intermediate tuples point to base tuples, so they go before these do."""
    seen = watched(architecture)
    assert seen
    assert not any(seen)


def test_without_expiry_stairs_point_to_what_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rule of the test above broken: what is held dangles, or a row that is gone is asked for."""
    monkeypatch.setattr(Stairs, "expire", lambda *_: None)
    with pytest.raises((AssertionError, IndexError)):
        assert not any(watched("joins"))


def test_prior_probers_expire_where_they_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tuples of an unbuilt relation wait; they go before their components are evicted."""

    def check() -> None:
        for seed in SEEDS:
            case, options = stream(seed), Options(batch_size=2, seed=seed, policy="random")
            rows, _ = ran(case, options, Schedule(seed % 3, True, (0, 1, 2)))
            assert rows == case.expected()

    check()
    monkeypatch.setattr(Waiting, "expire", lambda *_: None)
    with pytest.raises((AssertionError, IndexError, ValueError)):
        check()


def dangling(state: StairState) -> int:
    """Return how many held tuples have a component that is evicted."""
    first = [stem.store.first for stem in state.stems]
    return sum(
        int((rows[segment.positions()] < first[r]).sum())
        for _, stair in state.stairs.stairs()
        for segment in stair.segments.values()
        for r, rows in segment.rows().items()
    )


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_state_is_bounded_over_a_million_rows(architecture: str) -> None:
    """Windows of 3,000 over streams of a million rows hold a few windows' worth of tuples, all the time."""
    endless = Endless(rows=340_000, length=3_000, chunk=4_000)
    sources = {alias: endless.source(alias) for alias in "abc"}
    options = Options(architecture=architecture, batch_size=4_000)
    run = run_of(endless.spec, sources, options, clock=VirtualClock())
    counted = sum(batch.column(0)[0].as_py() for batch in run.run())
    figures = run.figures()
    # A window and a third of it, what has come ahead of the others, in a SteM and up to two STAIRs; and
    # about one intermediate tuple for each base tuple.
    most = 3 * 5 * (3_000 * 4 // 3 + 2 * 4_000)
    assert figures.peak_state <= most
    assert sum(one.tuples for one in figures.state) <= most
    stems = [one for one in figures.state if one.name.startswith("SteM")]
    assert sum(one.evicted for one in stems) >= 1_000_000
    if architecture in ("static", "joins", "stairs"):
        assert sum(one.evicted for one in figures.state if one.name.startswith("STAIR")) >= 900_000
    assert counted > 100_000
    assert counted == EXPECTED.setdefault(endless, endless.expected())


EXPECTED: dict[Endless, int] = {}


def test_streams_of_different_pace_are_read_by_time() -> None:
    """A stream with ten times as many rows a tick does not make the other wait in state."""
    tables = {
        "a": pa.table({"at": pa.array(range(2_000)), "k": pa.array([0] * 2_000)}),
        "b": pa.table({"at": pa.array([i // 10 for i in range(20_000)]), "k": pa.array([1] * 20_000)}),
    }
    case = windows_on(tables, 20)
    _, run = ran(case, Options(batch_size=50), chunk=50)
    assert run.figures().peak_state < 1_000
    _, in_turn = ran(case, Options(batch_size=50), Schedule(None, True, (0, 1)), chunk=50)
    assert in_turn.figures().peak_state > 1_700


def windows_on(tables: dict[str, pa.Table], length: int) -> Windowed:
    case = block(tables, ["a.k = b.k"])
    relations = tuple(replace(r, window=Window("at", length)) for r in case.spec.relations)
    return Windowed(replace(case.spec, relations=relations), tables)


def test_what_has_no_window_is_never_evicted_and_holds_up_eviction() -> None:
    """A table without times may meet anything until it has ended: it is read first, and nothing goes."""
    keys = pa.array([i % 5 for i in range(100)])
    tables = {"a": pa.table({"at": pa.array(range(100)), "k": keys}), "b": pa.table({"k": keys})}
    case = block(tables, ["a.k = b.k"])
    a, b = case.spec.relations
    case = Windowed(replace(case.spec, relations=(replace(a, window=Window("at", 3)), b)), tables)
    for architecture in ARCHITECTURES:
        rows, run = ran(case, Options(architecture=architecture, batch_size=5))
        assert rows == case.expected()
        evicted = {one.name: one.evicted for one in run.figures().state}
        assert evicted["SteM(b)"] == 0
        assert evicted["SteM(a)"] > 80
        rows, run = ran(case, Options(architecture=architecture, batch_size=5), Schedule(None, True, (0, 1)))
        assert rows == case.expected()


# What cannot be


def spec(window: Window, other: Window | None = None, **changes: Any) -> JoinSpec:
    return JoinSpec(
        (
            RelationSpec("r", SCHEMA, window=window, **changes),
            RelationSpec("s", SCHEMA, window=other),
        )
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: spec(Window("", 1)), "relation 'r' names no time column: there is"),
        (lambda: spec(Window("att", 1)), "column 'att', which is not there: did you mean 'at'"),
        (lambda: spec(Window("name", 1)), "column 'name' of type string: expected a timestamp"),
        (lambda: spec(Window("at", 0)), "has length 0: expected a whole number above 0"),
        (lambda: spec(Window("at", -5)), "has length -5: expected a whole number above 0"),
        (lambda: spec(Window("at", 1.5)), "has length 1.5: expected a whole number"),  # type: ignore[arg-type]
        (lambda: spec(Window("at", 1 << 63)), "expected a whole number above 0"),
        (lambda: spec(Window("at", 1), distinct=True), "set semantics cannot have one"),
        (
            lambda: spec(Window("at", 1), Window("k", 1)),
            "'r' is a timestamp.us., 's' is a whole number; expected the same kind",
        ),
    ],
)
def test_windows_that_cannot_be_used(make: Any, message: str) -> None:
    """The error says which window, what is wrong with it, and what would work."""
    with pytest.raises(InputError, match=message):
        make()


def test_shared_tuples_share_the_window() -> None:
    """Relations with the same tuples evict the same ones."""
    a = RelationSpec("a", SCHEMA, window=Window("at", 3))
    with pytest.raises(InputError, match="both need the same window"):
        JoinSpec((a, RelationSpec("b", SCHEMA, same_as="a")))
    JoinSpec((a, RelationSpec("b", SCHEMA, same_as="a", window=Window("at", 3))))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("chunk", [1, 2, 10])
def test_rows_out_of_order_are_refused(architecture: str, chunk: int) -> None:
    """The error names relation, row and both times, whether they are in one batch or in two."""
    tables = {
        "a": pa.table({"at": pa.array([5, 6, None, 4], pa.timestamp("us")), "k": pa.array([1, 1, 1, 1])}),
        "b": pa.table({"at": pa.array([5], pa.timestamp("us")), "k": pa.array([1])}),
    }
    message = (
        "'a' has a window, so its rows have to come in order of 'at', but row 3 .*has time "
        "1970-01-01 00:00:00.000004 after 1970-01-01 00:00:00.000006; sort the source"
    )
    with pytest.raises(InputError, match=message):
        ran(windows_on(tables, 20), Options(architecture=architecture), chunk=chunk)


def test_a_memory_budget_does_not_go_with_windows() -> None:
    """Spilled partitions are joined one after the other, not in order of time."""
    case = stream(0)
    with pytest.raises(InputError, match="memory_budget is set for a join with sliding windows"):
        run_within(case.spec, batches(case, 3), Options(memory_budget=1 << 20))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_times_at_the_ends_of_their_range(architecture: str) -> None:
    """Differences of any two times are compared exactly, and nothing overflows."""
    low, high = -(2**63), 2**63 - 1
    ticks = pa.array([low, low + 1, 0, high - 1, high])
    tables = {alias: pa.table({"at": ticks, "k": pa.array([1] * 5)}) for alias in "ab"}
    for length in (1, 2**62, 2**63 - 1):
        case = windows_on(tables, length)
        assert ran(case, Options(architecture=architecture, batch_size=1))[0] == case.expected()


def test_a_self_join_with_a_window() -> None:
    """Two roles of one SteM: tuples are evicted once, for both."""
    ticks = [0, 1, 1, 2, 4, 7, 8, 8, 9, 12, 13, 13]
    table = pa.table({"at": pa.array(ticks), "k": pa.array([t % 2 for t in ticks])})
    case = windows_on({"a": table, "b": table}, 2)
    a, b = case.spec.relations
    shared = replace(case.spec, relations=(a, replace(b, same_as="a")))
    for architecture in ("stems", "stairs", "joins"):
        sources = {"a": table.to_batches(max_chunksize=2)}
        eddy = EddyRun(
            shared, sources, Options(architecture=architecture, batch_size=2), clock=VirtualClock()
        )
        got = multiset(pa.Table.from_batches(list(eddy.run()), shared.output_schema))
        assert got == case.expected()
        assert eddy.figures().state[0].evicted > 0
