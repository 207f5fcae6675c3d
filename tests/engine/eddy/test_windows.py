"""Sliding windows: state stays bounded, nothing points to what is gone, and what cannot be is refused.

That windows are conjuncts, and what eviction may not do, is for the law of ``test_answers.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from millrace.engine.architectures.stairs import StairState
from millrace.engine.arrivals.schedule import Schedule
from millrace.engine.runs.block_run import Run
from millrace.engine.runs.eddy_run import EddyRun
from millrace.engine.runs.run_of import run_of
from millrace.engine.spec import JoinSpec, RelationSpec, Window
from millrace.engine.spill.run_of import run_of as run_within
from millrace.errors import InputError
from millrace.limits.clock import VirtualClock
from millrace.options import ARCHITECTURES, Options
from tests.engine.eddy.blocks import batches, stream
from tests.engine.eddy.oracle import Case, Rows, answer_of, block, multiset, with_windows

SCHEMA = pa.schema([("k", pa.int64()), ("at", pa.timestamp("us")), ("name", pa.string())])


def ran(case: Case, options: Options, schedule: Schedule | None = None, chunk: int = 3) -> tuple[Rows, Run]:
    """Run a block in virtual time; return its rows and what ran it."""
    run = run_of(case.spec, case.batches(chunk), options, schedule=schedule, clock=VirtualClock())
    return multiset(pa.Table.from_batches(list(run.run()), case.spec.output_schema)), run


@pytest.mark.parametrize("architecture", ["stairs", "joins"])
def test_no_tuple_held_has_an_evicted_component(architecture: str) -> None:
    """Intermediate tuples point to base tuples, so they go before these do; at every point of stasis."""
    options = Options(architecture=architecture, batch_size=2, reoptimize_every=3)
    eddy = EddyRun(stream(1).spec, batches(stream(1), 3), options, clock=VirtualClock())
    state = eddy._state
    assert isinstance(state, StairState)
    seen: list[int] = []

    def rest(right: Any = state.at_stasis) -> bool:
        seen.append(dangling(state))
        return bool(right())

    state.at_stasis = rest  # type: ignore[method-assign]
    list(eddy.run())
    assert seen and not any(seen)
    assert sum(one.evicted for one in eddy.figures().state) > 0


def dangling(state: StairState) -> int:
    """Return how many held tuples have a component that is evicted."""
    first = [stem.store.first for stem in state.stems]
    return sum(
        int((rows[segment.positions()] < first[r]).sum())
        for _, stair in state.stairs.stairs()
        for segment in stair.segments.values()
        for r, rows in segment.rows().items()
    )


@dataclass(frozen=True)
class Endless:
    """A chain ``a.k = b.k AND b.j = c.j`` over long streams that are made batch by batch.

    Attributes:
        rows: Of each relation, one for each tick.
        length: Of each window.
        chunk: Rows of a batch.
    """

    rows: int
    length: int
    chunk: int

    @property
    def spec(self) -> JoinSpec:
        """The block, which only counts."""
        empty = {alias: pa.Table.from_batches([self.batch(alias, 0, 0)]) for alias in "abc"}
        case = block(empty, ["a.k = b.k", "b.j = c.j"], count_only=True)
        return with_windows(case, dict.fromkeys("abc", self.length)).spec

    def batch(self, alias: str, low: int, high: int) -> pa.RecordBatch:
        """Return rows of a relation: keys are a mixture of the tick, so that each meets about one."""
        ticks = np.arange(low, high, dtype=np.int64)
        seed = np.int64(1 + ord(alias))
        keys = {
            key: (ticks * np.int64(2_654_435_761) + seed * np.int64(97 + i) * ticks // 7) % self.length
            for i, key in enumerate({"a": "k", "b": "kj", "c": "j"}[alias])
        }
        return pa.RecordBatch.from_arrays(
            [pa.array(ticks), *(pa.array(v) for v in keys.values())], names=["at", *keys]
        )

    def source(self, alias: str) -> Iterator[pa.RecordBatch]:
        """Yield the batches of a relation."""
        for low in range(0, self.rows, self.chunk):
            yield self.batch(alias, low, min(low + self.chunk, self.rows))

    def expected(self) -> int:
        """Return DuckDB's count, joining pairs of batches that may meet."""
        # Rows of neighbouring eras alone can meet, so DuckDB need not try all pairs.
        tables = {}
        for alias in "abc":
            table = pa.Table.from_batches(self.source(alias))
            tables[alias] = table.append_column("era", pa.array(table["at"].to_numpy() // self.length))
        near = " AND ".join(f"abs({x}.at - {y}.at) <= {self.length}" for x, y in ("ab", "bc", "ac"))
        steps = "(VALUES (-1), (0), (1))"
        ((count,),) = answer_of(
            f"SELECT count(*) FROM t_a a, t_b b, t_c c, {steps} d(x), {steps} e(y)"
            f" WHERE a.k = b.k AND b.j = c.j AND a.era + x = b.era AND b.era + y = c.era AND {near}",
            tables,
        )
        return int(count)


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


def windows_on(tables: dict[str, pa.Table], length: int) -> Case:
    return with_windows(block(tables, ["a.k = b.k"]), dict.fromkeys("ab", length))


def test_what_has_no_window_is_never_evicted_and_holds_up_eviction() -> None:
    """A table without times may meet anything until it has ended: it is read first, and nothing goes."""
    keys = pa.array([i % 5 for i in range(100)])
    tables = {"a": pa.table({"at": pa.array(range(100)), "k": keys}), "b": pa.table({"k": keys})}
    case = with_windows(block(tables, ["a.k = b.k"]), {"a": 3})
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
