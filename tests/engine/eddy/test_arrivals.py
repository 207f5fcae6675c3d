"""Schedules: what is read when, and which relation is left unbuilt."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from millrace.engine.access.schedule import Schedule
from millrace.engine.eddy.ingest import KeyRanges
from millrace.engine.eddy.run import Run
from millrace.engine.figures import CellFigures
from millrace.engine.plan.spec import JoinSpec, RelationSpec, Window
from millrace.engine.spill.run_of import run_of as run_within
from millrace.engine.stairs.invariants import Stairs
from millrace.errors import InputError
from millrace.limits.clock import VirtualClock
from millrace.options import ALGORITHMS, ARCHITECTURES, Options
from tests.engine.eddy.answers import scanned
from tests.engine.eddy.blocks import chained, rows_of, run
from tests.engine.eddy.oracle import Case, block, with_self_joins, with_windows

SCHEMA = pa.schema([("n", pa.int64())])


def spec(*rows: int | None, distinct: tuple[int, ...] = ()) -> JoinSpec:
    return JoinSpec(tuple(RelationSpec(f"r{i}", SCHEMA, i in distinct, n) for i, n in enumerate(rows)))


@pytest.mark.parametrize(
    ("block", "how", "schedule"),
    [
        # Smaller ones are built first, the smallest foremost; an unknown size counts as small.
        (spec(5, 900, None, 20), {}, Schedule(1, False, (2, 0, 3, 1))),
        # What Spark streams through a task stays unbuilt there, whatever its size.
        (spec(5, 900, 20), {"stream": "r0"}, Schedule(0, False, (2, 1, 0))),
        # A set is never left unbuilt, even if that means building everything.
        (spec(5, 900, 20, distinct=(1,)), {}, Schedule(2, False, (0, 1, 2))),
        (spec(5, 900, distinct=(0, 1)), {}, Schedule(None, True, (0, 1))),
        # Early results need every source in turn; one relation alone has nothing to wait for.
        (spec(5, 900), {"online": True}, Schedule(None, True, (0, 1))),
        (spec(5, 900), {"online": True, "stream": "r0"}, Schedule(None, True, (0, 1))),
        (spec(5), {"online": True}, Schedule(0, False, (0,))),
    ],
)
def test_what_is_streamed_past_the_others(block: JoinSpec, how: dict[str, Any], schedule: Schedule) -> None:
    """The largest relation, where that may be."""
    assert Schedule.of(block, **{"online": False, **how}) == schedule


# Sources that stall: STAIRs use the time (query scrambling), results come out, and others are read on.


KEYS = {"a": [i % 8 for i in range(40)], "b": [i // 2 for i in range(40)]}
CHAIN = block(
    {
        alias: pa.table({key: KEYS[key] for key in keys})
        for alias, keys in (("r", "a"), ("s", "ab"), ("t", "b"))
    },
    ["r.a = s.a", "s.b = t.b"],
)


@pytest.mark.parametrize(("seen", "after", "batches"), [(0, 0, 2), (1, 2, 2)])
def test_rows_that_are_ready_come_out_when_sources_stall(seen: int, after: int, batches: int) -> None:
    """Once for each stall the caller gets control, with what is ready; nothing waits for a full batch."""
    pieces = CHAIN.batches(20)
    stalling = [*pieces["t"][:seen], *([None] * 9), *pieces["t"][seen:], *([None] * after)]
    eddy = Run(CHAIN.spec, {**pieces, "t": stalling}, Options(online=True), clock=VirtualClock())
    found = list(eddy.run())
    assert len(found) == batches
    assert (found[0].num_rows > 0) == (seen > 0)
    assert sum(batch.num_rows for batch in found) == CHAIN.expected().total()
    assert all(batch.schema == CHAIN.spec.output_schema for batch in found)


@pytest.mark.broken_rule
def test_work_done_while_stalled_is_spared_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once ``t`` goes on, fewer intermediate tuples are made than without precomputing ``r ⋈ s``."""
    pieces, schedule = CHAIN.batches(8), Schedule(None, True, (0, 1, 2))
    # ``s`` goes to its join with ``t`` first: then nothing is joined with ``r`` before ``t`` comes.
    options = Options(architecture="stairs", migration="never", policy="fixed", order=("t", "s", "r"))

    def later() -> int:
        then: list[CellFigures] = []

        def t() -> Iterator[Any]:
            yield from [None] * 12
            then.append(eddy.figures())
            yield from pieces["t"]

        eddy = Run(CHAIN.spec, {**pieces, "t": t()}, options, schedule=schedule, clock=VirtualClock())
        assert rows_of(CHAIN, eddy) == CHAIN.expected()
        return eddy.figures().intermediate_tuples - then[0].intermediate_tuples

    spared = later()
    monkeypatch.setattr(Stairs, "precompute", lambda *_: True)
    assert spared < later()


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_time_passes_while_every_source_has_stalled(architecture: str) -> None:
    """The schedule does not spin: each round of nothing takes a moment of the clock, others take none."""
    case, clock, pieces = CHAIN, VirtualClock(), CHAIN.batches(100)
    sources: dict[str, Any] = {**pieces, "t": [*([None] * 10), *pieces["t"]]}
    run = Run(case.spec, sources, Options(architecture=architecture, online=True), clock=clock)
    assert rows_of(case, run) == case.expected()
    # Rounds 1 and 2 bring the others' rows and their ends.
    assert 0.007 < clock.now() < 0.011


# Sliding windows: state stays bounded, nothing points to what is gone, and what cannot be is refused.


TIMED = pa.schema([("k", pa.int64()), ("at", pa.timestamp("us")), ("name", pa.string())])


def endless(rows: int, length: int) -> Case:
    """Return a chain of long streams of so many keys that each tuple meets about one."""
    draw = np.random.default_rng(1)

    def columns(_: str, keys: str) -> dict[str, np.ndarray]:
        return {"at": np.arange(rows), **{key: draw.integers(0, length, rows) for key in keys}}

    return with_windows(chained(columns, count_only=True), dict.fromkeys("abc", length))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_state_is_bounded_over_long_streams(architecture: str) -> None:
    """Windows of 1,000 over a quarter of a million rows hold a few windows' tuples, all the time.

    Indexes are made anew when they hold more evicted rows than others, so they do not grow either.
    """
    case = endless(80_000, 1_000)
    _, made = run(case, Options(architecture=architecture, batch_size=1_000), chunk=1_000)
    figures = made.figures()
    # A window and a third of it, what has come ahead of the others, in a SteM and up to two STAIRs; and
    # about one intermediate tuple for each base tuple.
    most = 3 * 5 * (1_000 * 4 // 3 + 2 * 1_000)
    assert figures.peak_state <= most
    evicted = {
        kind: sum(s.evicted for s in figures.state if s.name.startswith(kind)) for kind in ("SteM", "STAIR")
    }
    assert evicted["SteM"] >= 3 * 78_000
    assert max(s.nbytes for s in figures.state) < 150_000
    assert architecture == "stems" or evicted["STAIR"] >= 210_000


def test_streams_of_different_pace_are_read_by_time() -> None:
    """A stream with ten times as many rows a tick does not make the other wait in state."""
    a = pa.table({"at": range(2_000), "k": [0] * 2_000})
    b = pa.table({"at": [i // 10 for i in range(20_000)], "k": [1] * 20_000})
    case = windows_on({"a": a, "b": b}, 20)
    _, made = run(case, Options(batch_size=50), chunk=50)
    assert made.figures().peak_state < 1_000
    _, in_turn = run(case, Options(batch_size=50), chunk=50, schedule=Schedule(None, True, (0, 1)))
    assert in_turn.figures().peak_state > 1_700


def windows_on(tables: dict[str, pa.Table], length: int) -> Case:
    return with_windows(block(tables, ["a.k = b.k"]), dict.fromkeys("ab", length))


# What cannot be


def windows(*own: Window | None, **changes: Any) -> JoinSpec:
    """Return a block of relations with these windows; the first of them has the changes."""
    relations = [RelationSpec(alias, TIMED, window=w) for alias, w in zip("rs", own, strict=False)]
    return JoinSpec((replace(relations[0], **changes), *relations[1:]))


AT = Window("at", 1)


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: windows(Window("", 1)), "'r'"),
        (lambda: windows(Window("att", 1)), "'att'.*'at'"),
        (lambda: windows(Window("name", 1)), "'name' of type string"),
        *((lambda n=n: windows(Window("at", n)), f"length {n}") for n in (0, -5, 1.5, 1 << 63)),
        (lambda: windows(AT, distinct=True), "'r'"),
        (lambda: windows(AT, Window("k", 1)), "'r' is a timestamp.us., 's' is a whole number"),
        # Relations with the same tuples evict the same ones.
        (lambda: JoinSpec((*windows(AT).relations, RelationSpec("b", TIMED, same_as="r"))), "'b'"),
    ],
)
def test_windows_that_cannot_be_used(make: Any, named: str) -> None:
    with pytest.raises(InputError, match=named):
        make()


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("chunk", [1, 2, 10])
def test_rows_out_of_order_are_refused(architecture: str, chunk: int) -> None:
    """The error names relation, row and both times, whether they are in one batch or in two."""
    tables = {
        "a": pa.table({"at": pa.array([5, 6, None, 4], pa.timestamp("us")), "k": pa.array([1, 1, 1, 1])}),
        "b": pa.table({"at": pa.array([5], pa.timestamp("us")), "k": pa.array([1])}),
    }
    message = "'a' .*'at'.* row 3 .*00:00:00.000004 after .*00:00:00.000006"
    with pytest.raises(InputError, match=message):
        run(windows_on(tables, 20), Options(architecture=architecture), chunk=chunk)


# Ranges of keys: what relations that were read spare of reading others; no row is lost by it.


def clustered() -> Case:
    """Return a block of a table in the order of its days, and few days."""
    sales = {"day": [n // 10 for n in range(400)], "item": [n % 7 for n in range(400)]}
    columns = {"sales": sales, "dates": {"day": [11, 12, None]}, "items": {"item": range(7)}}
    tables = {alias: pa.table(own) for alias, own in columns.items()}
    return block(tables, ["sales.day = dates.day", "sales.item = items.item"])


@pytest.mark.parametrize(
    ("options", "read"),
    [
        ({"architecture": "stairs"}, 2),
        *(({"memory_budget": 2_000, "algorithm": name, "batch_size": 16}, 2) for name in ALGORITHMS),
        ({"online": True}, 40),  # side by side all are
    ],
    ids=str,
)
def test_row_groups_out_of_range_are_not_read(options: dict[str, Any], read: int, tmp_path: Path) -> None:
    """Two days of forty, in row groups of ten."""
    case, ranges = clustered(), KeyRanges()
    sources = scanned(case, case.tables, tmp_path, 10, ranges)
    rows, _ = run(case, Options(**options), sources=sources, of=run_within, ranges=ranges)
    assert rows == case.expected() and rows.total() == 20
    groups = {each.name: (each.tuples_in, each.tuples_out) for each in ranges.figures()}
    assert groups.get("RowGroups(sales)", (40, 40)) == (40, read)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_what_one_role_need_not_read_another_has_to(architecture: str, tmp_path: Path) -> None:
    """Roles of a self-join share a source: ``a`` is read for the days of ``d``, and ``b`` for other ones."""
    days = pa.table({"day": [n // 10 for n in range(400)], "back": [39 - n // 10 for n in range(400)]})
    tables, ranges = {"a": days, "b": days, "d": pa.table({"day": [11, 12]})}, KeyRanges()
    case = with_self_joins(block(tables, ["a.back = b.day", "a.day = d.day"]))
    sources = scanned(case, case.batches(1), tmp_path, 10, ranges)
    rows, _ = run(case, Options(architecture=architecture), sources=sources, ranges=ranges)
    assert rows == case.expected() and rows.total() == 200
