"""Index and scan together: what is asked for and when, by what was measured; answers never depend on it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pytest

from millrace.engine.arrivals.access_modules import Answer, Index, Scan
from millrace.engine.arrivals.hybrid import Hybrid
from millrace.engine.arrivals.measured_index import Paced
from millrace.engine.arrivals.progress import Progress
from millrace.engine.runs.eddy_run import EddyRun
from millrace.errors import ExecutionError
from millrace.limits.clock import VirtualClock
from millrace.options import Options
from tests.engine.eddy.access_cases import IndexPlan, Plan, ScanPlan, run
from tests.engine.eddy.blocks import block, chain
from tests.engine.eddy.oracle import with_self_joins

INT = pa.int64()


class Noted(Index):
    """An index that notes what it was asked for, and when."""

    def __init__(self, *given: object, **more: object) -> None:
        super().__init__(*given, **more)  # type: ignore[arg-type]
        self.log: list[tuple[float, int]] = []
        self.highest = 0

    def submit(self, bindings: pa.RecordBatch) -> None:
        self.log += [(self._clock.now(), key) for key in bindings.column(0).to_pylist()]
        super().submit(bindings)
        self.highest = max(self.highest, self.pending)

    @property
    def when(self) -> list[float]:
        return [when for when, _ in self.log]


@dataclass
class Both:
    """R.key = T.key, where T has an index and scans; keys are unique, R comes at once."""

    n: int = 100
    every: float = 0.1
    delay: float = 0.5
    in_flight: int | None = 1
    stall: tuple[int, float] | None = None
    breaks: bool = False
    rows: int | None = -1
    shift: int = 0
    policy: str = "greedy"
    clock: VirtualClock = field(default_factory=VirtualClock)

    def run(self) -> list[tuple[float, int]]:
        """Return each result's moment and key."""
        r = pa.table({"key": pa.array(range(self.n), INT)})
        t = pa.table({"key": pa.array(np.random.default_rng(0).permutation(self.n) + self.shift, INT)})
        case = block({"r": r, "t": t}, ["r.key = t.key"])
        spec = case.spec
        if self.rows != -1:
            relations = tuple(type(x)(x.alias, x.schema, rows=self.rows) for x in spec.relations)
            spec = type(spec)(relations, spec.equalities, (), spec.output)
        self.order = t["key"].to_pylist()
        self.index = Noted("t", ["key"], t, self.clock, self.delay, self.in_flight)
        rows = t.to_batches(max_chunksize=1)
        if self.breaks:
            assert self.stall is not None
            rows = rows[: self.stall[0]]
        stall = None if self.breaks else self.stall
        scan = Scan("t", rows, self.clock, self.every, stall, breaks=self.breaks)
        self.eddy = EddyRun(
            spec,
            {"r": r.to_batches(max_chunksize=10)},
            Options(batch_size=1, policy=self.policy),
            clock=self.clock,
            access={"t": [self.index, scan]},
        )
        found = []
        for batch in self.eddy.run():
            found += [(self.clock.now(), key) for key in batch.column(0).to_pylist()]
        assert sorted(key for _, key in found) == sorted(set(range(self.n)) & set(self.order))
        return found


def test_early_tuples_ask_and_late_ones_wait() -> None:
    """Section 4.3: the index is busy while most of the scan is to come, and left alone at its end."""
    both = Both(n=200)  # the scan takes 20 s, a lookup half a second
    both.run()
    when = both.index.when
    assert min(when) < 0.01
    # Half of what is left of the scan takes less than a lookup in its last second, a queue of two included.
    assert 17 < max(when) < 19.5
    # It was never idle before: one lookup after the other.
    assert max(np.diff([w for w in when if w > 1.0])) <= 0.5 + 1e-9


def test_the_index_has_no_queue_for_long() -> None:
    """What is submitted is what it works on, and as much again: the rest may still come by the scan."""
    for in_flight in (1, 4):
        both = Both(in_flight=in_flight)
        both.run()
        assert both.index.highest == 2 * in_flight


def test_what_the_scan_has_returned_is_not_asked_for() -> None:
    """Keys that are here are skipped; a binding in the queue may still be overtaken, few are."""
    both = Both(n=200)
    both.run()
    came = {key: 0.1 * (place + 1) for place, key in enumerate(both.order)}
    assert not [key for when, key in both.index.log if came[key] < when - 1e-9]
    late = [key for when, key in both.index.log if came[key] < when + 0.5]
    assert len(late) <= 0.1 * len(both.index.log)


def test_results_come_no_later_than_by_index_or_scan_alone() -> None:
    """At every share of the results, with a lookup's time to spare."""
    hybrid = [when for when, _ in Both().run()]
    came = sorted(0.1 * (place + 1) for place in range(100))
    asked = [0.5 * (place + 1) for place in range(100)]
    for place, when in enumerate(hybrid):
        assert when <= min(came[place], asked[place]) + 1e-9


def test_a_scan_that_is_faster_than_any_lookup_leaves_the_index_alone() -> None:
    """A tuple or two are tried while nothing is known; nothing else is asked for."""
    both = Both(every=0.001, delay=5.0)
    both.run()
    assert len(both.index.log) <= 2
    assert both.clock.now() < 0.2


def test_tuples_that_wait_ask_once_the_scan_stalls() -> None:
    """They were not worth a lookup when they came; the stall has lasted as long as a lookup takes."""
    both = Both(every=0.001, delay=1.0, in_flight=None, stall=(50, 1000.0))
    found = both.run()
    assert all(when < 10 for when, _ in found)
    here = set(both.order[:50])
    asked = [key for when, key in both.index.log if when > 0.04]
    assert not here & set(asked), "the scan has returned these"
    assert len(both.index.log) >= 50


def test_an_unknown_size_is_taken_to_be_large() -> None:
    """Without an estimate most of the scan is always to come, so the index goes on helping."""
    known, unknown = Both(), Both(rows=None)
    known.run()
    unknown.run()
    assert len(unknown.index.log) >= len(known.index.log) - 2


@pytest.mark.parametrize("way", ["breaks off", "never goes on"])
def test_an_index_finishes_what_a_scan_leaves(way: str) -> None:
    """When every tuple of R has its answer, T is complete, whatever the scan still has."""
    both = Both(n=40, stall=(20, math.inf), breaks=way == "breaks off")
    both.run()
    # All of R has to be asked for now, but for what was asked before; each once.
    assert sorted(key for _, key in both.index.log) == list(range(40))
    assert both.clock.now() <= 0.5 * 40 + 1e-6


def test_one_index_of_two_takes_over() -> None:
    """Both could finish what the scan has left; nothing is asked of the second that the first answers."""
    n = 30
    tables = {"r": pa.table({"key": range(n)}), "t": pa.table({"key": range(n)})}
    case = block(tables, ["r.key = t.key"])
    indexes = (IndexPlan(("key",), 0.5, 1), IndexPlan(("key",), 0.5, 1))
    made = {"t": Plan(source=False, indexes=indexes, scans=(ScanPlan(0.01, rows=1),))}
    ran = run(case, made, Options(batch_size=1), chunk=1)
    assert ran.rows == case.expected()
    # What both were asked for before the scan broke off: two that they worked on, two in their queues.
    assert sum(len(index.bindings) for index in ran.indexes) <= n + 4


@pytest.mark.parametrize("policy", ["greedy", "random"])
def test_the_index_of_a_shared_relation_is_asked_when_its_scan_stalls(policy: str) -> None:
    """In a self-join the tuples of one role wait for the other; the alarm is the relation's."""
    n = 12
    t = pa.table({"key": range(n), "next": [(k + 5) % n for k in range(n)]})
    case = with_self_joins(block({"a": t, "b": t}, ["a.next = b.key"]))
    scan = ScanPlan(0.001, stall=(6, 500.0))
    made = {"a": Plan(source=False, indexes=(IndexPlan(("key",), 1.0),), scans=(scan,))}
    ran = run(case, made, Options(batch_size=1, policy=policy), chunk=1)
    assert ran.rows == case.expected()
    assert sum(batch.num_rows for when, batch in ran.results if when < 100) >= n - 1


def test_a_covered_relation_needs_its_scan_no_more() -> None:
    """The index has answered everything before the scan ends: nobody waits for the rest."""
    both = Both(n=10, every=60.0, delay=0.1)
    both.run()
    assert both.clock.now() == pytest.approx(1.0)


def test_a_scan_that_nothing_can_finish_is_an_error_still() -> None:
    """The index of b is bound by c, which breaks off as well."""
    case = chain(1)
    broken = Plan(source=False, scans=(ScanPlan(rows=1),))
    made = {"b": Plan(source=False, indexes=(IndexPlan(("j",)),), scans=(ScanPlan(rows=1),)), "c": broken}
    with pytest.raises(ExecutionError, match="every scan of it ended before"):
        run(case, made)


@pytest.mark.broken_rule
def test_without_the_cost_decision_the_claims_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests above look at it: with nothing submitted, or everything, they would see it."""
    monkeypatch.setattr(Hybrid, "_submit_paying", lambda *_: None)
    never = Both()
    found = never.run()
    assert not never.index.log
    assert sorted(when for when, _ in found) == pytest.approx([0.1 * (place + 1) for place in range(100)])
    monkeypatch.undo()
    monkeypatch.setattr(Paced, "room", lambda *_: 1 << 20)
    flood = Both()
    flood.run()
    assert len(flood.index.log) == 100


# What is measured


class Script:
    """An index AM that answers when it is told to."""

    name = "script"
    columns = ("k",)

    def __init__(self, at_once: int | None) -> None:
        self.at_once = at_once
        self.pending = 0
        self.is_full = False
        self.ready = 0
        self.closed = False

    def submit(self, bindings: pa.RecordBatch) -> None:
        self.pending += bindings.num_rows

    def poll(self) -> list[Answer]:
        rows, self.ready = _keys(range(self.ready)), 0
        self.pending -= rows.num_rows
        return [Answer(rows, rows)] if rows.num_rows else []

    def due(self) -> float | None:
        return None

    def close(self) -> None:
        self.closed = True


def _keys(values: Iterable[int]) -> pa.RecordBatch:
    return pa.record_batch({"k": pa.array(values, INT)})


def paced(at_once: int | None) -> tuple[Paced, Script, VirtualClock]:
    clock = VirtualClock()
    script = Script(at_once)
    return Paced(script, clock), script, clock


def answered(index: Paced, script: Script, clock: VirtualClock, steps: Sequence[tuple[float, int]]) -> None:
    """Let so many seconds pass, and then so many bindings be answered; for each step."""
    for seconds, count in steps:
        clock.advance(seconds)
        script.ready = count
        index.poll()


def test_an_index_is_measured() -> None:
    """Latency from submission to answer, throughput while it is busy, and what is pending before."""
    index, script, clock = paced(2)
    assert index.expected == pytest.approx(0.001)
    index.submit(_keys(range(4)))
    answered(index, script, clock, [(1.0, 2), (1.0, 2)])
    assert index.latency == pytest.approx(0.9 * 1.0 + 0.1 * 2.0)
    assert index.expected == pytest.approx(1.1, rel=0.1)  # a lookup alone
    index.submit(_keys(range(7)))
    assert index.expected == pytest.approx(8 * 0.5)  # two a second
    assert index.due() is None
    index.close()
    assert script.closed


def test_an_answer_that_does_not_come_is_expected_later() -> None:
    """The oldest that is pending takes at least as long as it has taken."""
    index, script, clock = paced(4)
    index.submit(_keys([1]))
    answered(index, script, clock, [(0.5, 1)])
    index.submit(_keys([2]))
    clock.advance(30.0)
    assert index.expected == pytest.approx(30.0)


def test_an_index_gets_what_keeps_it_busy() -> None:
    """Twice what it works on; fewer if the last would take too long; none when full."""
    index, script, clock = paced(3)
    assert index.room(math.inf) == 6
    index.submit(_keys(range(6)))
    assert index.room(math.inf) == 0
    answered(index, script, clock, [(3.0, 3), (3.0, 3)])
    assert index.room(math.inf) == 6
    assert index.room(2.5) == 2  # one a second
    assert index.room(0.1) == 1
    script.is_full = True
    assert index.room(math.inf) == 0


def test_an_index_that_takes_any_number_is_tried_first() -> None:
    """Before its first answer nobody knows how long it takes."""
    index, script, clock = paced(None)
    assert index.room(math.inf) == 64
    index.submit(_keys(range(64)))
    assert index.room(math.inf) == 0
    answered(index, script, clock, [(1.0, 64)])
    assert index.room(math.inf) > 1_000_000


def test_a_scan_is_measured() -> None:
    """Half of the rest, at the recent rate; the time before the first batch is no rate."""
    clock = VirtualClock()
    scan = Progress(clock, 100)
    assert scan.wait == math.inf
    assert scan.slower(1e9) == -math.inf
    clock.advance(10.0)
    for _ in range(5):
        scan.arrive(10)
        clock.advance(1.0)
    assert scan.rows == 50
    assert scan.flow == pytest.approx(50 / 10 / 2)
    assert scan.wait == pytest.approx(2.5)
    assert scan.slower(2.0) == -math.inf
    # It stalls from two gaps after the last batch on, and is then expected to stall as long again.
    assert scan.slower(4.0) == pytest.approx(14.0 + 2.0 + (4.0 - 2.5))
    clock.advance(11.0)
    assert scan.wait == pytest.approx(2.5 + 10.0)


def test_a_scan_of_unknown_size_has_ten_times_as_much() -> None:
    """And one that has returned more than was expected ends any moment, if that was no guess."""
    clock = VirtualClock()
    unknown, small, guessed = Progress(clock, None), Progress(clock, 5), Progress(clock, 5, guessed=True)
    for _ in range(4):
        clock.advance(1.0)
        unknown.arrive(10)
        small.arrive(10)
        guessed.arrive(10)
    assert unknown.flow == guessed.flow == pytest.approx(9 * 4 / 2)
    assert small.flow == 0.0


def test_the_rate_follows_the_scan() -> None:
    """After a hundred slow batches some dozens of fast ones are enough."""
    clock = VirtualClock()
    scan = Progress(clock, 10_000)
    for _ in range(100):
        clock.advance(1.0)
        scan.arrive(1)
    slow = scan.flow
    for _ in range(60):
        clock.advance(0.01)
        scan.arrive(1)
    assert slow == pytest.approx(9900 / 2)
    assert scan.flow < 0.1 * slow
