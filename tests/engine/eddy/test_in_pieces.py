"""However many matches a hot key has, no more than a batch for each step of a join waits at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from millrace.engine.architectures.stairs import StairState
from millrace.engine.architectures.stems import joined
from millrace.engine.arrivals.schedule import Schedule
from millrace.engine.router.back_pressure import Backpressure, QueuedBuffer
from millrace.engine.router.buffer import Buffer
from millrace.engine.runs.eddy_run import EddyRun
from millrace.engine.state import stairs
from millrace.engine.state.binary_join import BinaryJoin
from millrace.engine.state.stem import SteM
from millrace.engine.trees import spanning_trees
from millrace.engine.tuples import TupleBatch
from millrace.limits.clock import VirtualClock
from millrace.options import POLICY_NAMES, Options
from tests.engine.eddy.blocks import batches, block
from tests.engine.eddy.oracle import Case, multiset
from tests.engine.eddy.test_laws import schedules

ROWS = st.integers(2, 14)


def skewed(draw: st.DrawFn, rows: int) -> list[int]:
    """Draw keys one of which half of the rows have."""
    return [0 if i % 2 else draw(st.integers(0, 3)) for i in range(rows)]


@st.composite
def rings(draw: st.DrawFn) -> Case:
    """Draw ``r.a = s.a AND s.b = t.b AND t.c = r.c`` with skewed keys; there are three spanning trees."""
    n = draw(ROWS)
    columns = {"r": "ac", "s": "ab", "t": "bc"}
    tables = {
        alias: pa.table({c: pa.array(skewed(draw, n), pa.int64()) for c in names})
        for alias, names in columns.items()
    }
    return block(tables, ["r.a = s.a", "s.b = t.b", "t.c = r.c"], count_only=True)


@st.composite
def chains(draw: st.DrawFn) -> Case:
    """Draw ``r.a = s.a AND s.b = t.b AND t.c = u.c`` with skewed keys."""
    n = draw(ROWS)
    columns = {"r": "a", "s": "ab", "t": "bc", "u": "c"}
    tables = {
        alias: pa.table({c: pa.array(skewed(draw, n), pa.int64()) for c in names})
        for alias, names in columns.items()
    }
    return block(tables, ["r.a = s.a", "s.b = t.b", "t.c = u.c"], count_only=True)


class Waiting:
    """Counts tuples that have been made and have not gone on yet.

    Attributes:
        now: How many they are,
        most: and how many they were at a time.
    """

    def __init__(self) -> None:
        self.now = self.most = 0

    def made(self, batch: TupleBatch) -> TupleBatch:
        self.now += batch.size
        self.most = max(self.most, self.now)
        return batch

    def gone(self, batch: TupleBatch) -> None:
        self.now -= batch.size


@contextmanager
def watched(where: type, makes: str, takes: str, batch_at: int) -> Iterator[Waiting]:
    """Count what one method makes and another one takes."""
    waiting = Waiting()
    make, take = getattr(where, makes, None), getattr(where, takes, None)
    assert make is not None
    assert take is not None

    def making(self: Any, *given: Any, **named: Any) -> Any:
        return waiting.made(make(self, *given, **named))

    def taking(self: Any, *given: Any, **named: Any) -> Any:
        waiting.gone(given[batch_at])
        return take(self, *given, **named)

    with mock.patch.object(where, makes, making), mock.patch.object(where, takes, taking):
        yield waiting


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.data())
def test_another_tree_is_filled_piece_by_piece(data: st.DataObject) -> None:
    """Base tuples are taken in pieces too; each of them, and each step of a join, has one piece waiting."""
    case = data.draw(rings())
    piece = data.draw(st.integers(1, 5))
    options = Options(architecture="stairs", policy="random", batch_size=4, online=True)
    eddy = EddyRun(case.spec, batches(case, 4), options, clock=VirtualClock())
    state = eddy._state
    assert isinstance(state, StairState)
    trees = tuple(spanning_trees(state._graph))
    right, seen = state.at_stasis, []

    def rest() -> bool:
        right()
        with (
            mock.patch.object(stairs, "_PIECE", piece),
            watched(BinaryJoin, "matches", "route", 0) as waiting,
        ):
            # Base tuples of a piece are routed without having been made.
            state.switch(data.draw(st.sampled_from(trees)))
        seen.append(waiting.most)
        return True

    state.at_stasis = rest  # type: ignore[method-assign]
    rows = multiset(pa.Table.from_batches(list(eddy.run()), case.spec.output_schema))
    assert rows == case.expected()
    assert max(seen, default=0) <= 2 * piece


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.data())
def test_partial_results_are_made_as_they_are_taken(data: st.DataObject) -> None:
    """The rows are DuckDB's; no step is a batch ahead of what is taken."""
    case = data.draw(chains())
    limit = data.draw(st.integers(1, 5))
    eddy = EddyRun(case.spec, batches(case, 4), Options(online=True), clock=VirtualClock())
    list(eddy.run())
    graph, stems = eddy._graph, eddy._state.stems
    count, taken = 0, Waiting()
    with watched(SteM, "probe", "start", 0) as waiting:
        for batch in joined(stems, graph, graph.everything, limit):
            assert batch.size <= limit
            taken.made(batch)
            waiting.gone(batch)
            count += batch.size
    assert {(count,): 1} == dict(case.expected())
    # Pieces of base tuples have gone without having been made, at most so many.
    assert waiting.most <= 3 * limit


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.data())
def test_queues_hold_what_they_may_and_a_batch_for_each_step(data: st.DataObject) -> None:
    """DuckDB's rows, with any architecture and policy, and the room there is is not overrun by a hot key."""
    case = data.draw(chains())
    size = data.draw(st.sampled_from([1, 2, 5]))
    limits = Backpressure(data.draw(st.sampled_from([1, 3])), data.draw(st.sampled_from([1, 10])))
    options = Options(
        architecture=data.draw(st.sampled_from(["stems", "joins", "stairs"])),
        policy=data.draw(st.sampled_from(POLICY_NAMES)),
        batch_size=size,
        reoptimize_every=data.draw(st.sampled_from([1, 3, 1000])),
        online=True,
        seed=data.draw(st.integers(0, 3)),
    )
    schedule = data.draw(st.none() | schedules(case))
    if schedule is not None and schedule.unbuilt is not None:
        # Tuples of a relation that is not kept wait in SteMs for all others, however many of them there are.
        schedule = replace(schedule, interleaved=False)
    eddy = EddyRun(
        case.spec, batches(case, 3), options, schedule=schedule, clock=VirtualClock(), backpressure=limits
    )
    rows, most = most_waiting(eddy, case)
    assert rows == case.expected()
    relations = len(case.spec.relations)
    modules = 2 * relations
    room = limits.buffer + modules * (limits.queue or 0)
    # A batch more in each queue, one for each step of the join, one that has arrived for each relation.
    assert most <= room + size * modules + size * relations + 3 * relations


def most_waiting(eddy: EddyRun, case: Case) -> tuple[Any, int]:
    """Return the rows of a run, and the most tuples that waited at a time."""
    buffer, most = eddy._buffer, 0
    right = buffer.pop

    def pop(**named: bool) -> Any:
        nonlocal most
        most = max(most, in_flight(buffer))
        return right(**named)

    buffer.pop = pop  # type: ignore[method-assign]
    rows = multiset(pa.Table.from_batches(list(eddy.run()), case.spec.output_schema))
    return rows, most


def in_flight(buffer: Buffer) -> int:
    """Return the number of tuples that wait anywhere in a buffer."""
    assert isinstance(buffer, QueuedBuffer)
    made = [work for work in getattr(buffer, "_under_way", []) if isinstance(work, TupleBatch)]
    return buffer._tuples + sum(batch.size for batch in made)


@pytest.mark.parametrize("architecture", ["stems", "joins", "stairs"])
def test_a_hot_key_does_not_fill_the_buffer(architecture: str) -> None:
    """Every tuple has the same key: the last batch has as many matches as the product of the others."""
    n, size = 30, 4
    table = pa.table({"k": [1] * n})
    case = block({"r": table, "s": table, "t": table}, ["r.k = s.k", "s.k = t.k"], count_only=True)
    eddy = EddyRun(
        case.spec,
        batches(case, size),
        Options(architecture=architecture, policy="fixed", batch_size=size, online=True),
        schedule=Schedule(None, False, (0, 1, 2)),
        clock=VirtualClock(),
        backpressure=Backpressure(8, 8),
    )
    rows, most = most_waiting(eddy, case)
    assert rows == {(n**3,): 1}
    assert most <= 8 + 8 * size
