"""Back-pressure: queues in front of modules change when things are done, and never the answer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from millrace.engine import operator
from millrace.engine.arrivals.access_modules import Index
from millrace.engine.arrivals.schedule import Schedule
from millrace.engine.expressions import Call, Column, ColumnRef
from millrace.engine.policies import Candidate, Policy, Shares
from millrace.engine.router.back_pressure import Backpressure, QueuedBuffer
from millrace.engine.router.buffer import Buffer
from millrace.engine.runs.eddy_run import EddyRun
from millrace.engine.spec import JoinSpec, RelationSpec
from millrace.engine.tuples import Signature, TupleBatch
from millrace.errors import InputError, OptionError
from millrace.limits.clock import VirtualClock
from millrace.options import POLICY_NAMES, Options
from millrace.predicates import PredicateSpec
from tests.engine.eddy.answers import schedules
from tests.engine.eddy.blocks import batches, chain, star
from tests.engine.eddy.oracle import Case, block, multiset
from tests.engine.laws import examples
from tests.engine.operators import Probe


class Spinning:
    """A table of one column and predicates over it that take their time on a virtual clock."""

    def __init__(self, rows: int, **costs: float) -> None:
        self.clock = VirtualClock()
        self.met: list[tuple[str, int, float]] = []
        self.table = pa.table({"n": range(rows)})
        self._calls = tuple(self._call(name, cost) for name, cost in costs.items())

    def _call(self, name: str, cost: float) -> Call:
        def decide(column: pa.Array) -> pa.Array:
            self.met.append((name, len(column), self.clock.now()))
            self.clock.advance(cost * len(column))
            return pa.array([True] * len(column))

        return Call(PredicateSpec(name, decide, "arrow"), (Column(ColumnRef("t", "n")),))

    def run(self, policy: str | Policy, limits: Backpressure | None, batch: int = 1) -> EddyRun:
        spec = JoinSpec((RelationSpec("t", self.table.schema),), residuals=self._calls, count_only=True)
        named = policy if isinstance(policy, str) else None
        eddy = EddyRun(
            spec,
            {"t": self.table.combine_chunks().to_batches(max_chunksize=batch)},
            Options(policy=named, batch_size=batch),
            policy=None if named else policy,  # type: ignore[arg-type]
            clock=self.clock,
            backpressure=limits,
        )
        rows = sum(batch.column(0)[0].as_py() for batch in eddy.run())
        assert rows == self.table.num_rows
        return eddy

    def first(self, eddy: EddyRun, name: str) -> float:
        orders = dict(eddy.figures().orders)
        return sum(n for order, n in orders.items() if order.startswith(f"t → {name}")) / sum(orders.values())


def test_a_full_queue_turns_tuples_away() -> None:
    """The dear predicate falls behind, its queue fills, and the cheap one gets the tuples; else half."""
    shares = {}
    for queue in (5, None):
        spinning = Spinning(300, dear=9.0, cheap=1.0)
        shares[queue] = spinning.first(spinning.run("naive", Backpressure(queue, 30)), "cheap")
    assert shares[5] > 0.9
    assert shares[None] == pytest.approx(0.5, abs=0.05)


def test_a_static_order_waits_for_room() -> None:
    """Where the policy names one module alone, tuples wait for it rather than go where there is room."""
    spinning = Spinning(60, dear=9.0, cheap=1.0)
    assert spinning.first(spinning.run("fixed", Backpressure(1, 10)), "cheap") == 0.0


class Uneven(Policy):
    """Gives one predicate three times as many tuples as the other."""

    def choose(self, signature: Signature, candidates: object) -> Shares:
        shares = {0: 0.75, 1: 0.25}
        chosen: list[Candidate] = [c for c in candidates if isinstance(c.operator, operator.Select)]  # type: ignore[attr-defined]
        if len(chosen) == 1:
            return ((chosen[0].operator, 1.0),)
        return tuple((c.operator, shares[c.operator.target]) for c in chosen)


@pytest.mark.parametrize(("policy", "ratio"), [("naive", 1.0), (Uneven(), 3.0)])
def test_turns_are_by_time_and_share(policy: str | Policy, ratio: float) -> None:
    """While both have tuples, modules work in proportion to their shares, whatever a tuple costs them."""
    spinning = Spinning(400, a=1.0, b=4.0)
    spinning.run(policy, Backpressure(20, 1000))
    until = spinning.clock.now() / 4
    worked = {name: sum(n for who, n, when in spinning.met if who == name and when < until) for name in "ab"}
    assert worked["a"] * 1.0 / (worked["b"] * 4.0) == pytest.approx(ratio, rel=0.1)


def test_the_buffer_bounds_what_is_in_flight() -> None:
    """No more new tuples are taken in than there is room for; a batch may be over it."""
    spinning = Spinning(300, a=1.0, b=1.0)
    most = 0
    original = QueuedBuffer.pop

    def pop(self: QueuedBuffer, *, draining: bool = False) -> object:
        nonlocal most
        most = max(most, self._tuples)
        return original(self, draining=draining)

    with mock.patch.object(QueuedBuffer, "pop", pop):
        spinning.run("naive", Backpressure(None, 20), batch=5)
    assert 20 <= most < 25


def test_an_index_join_that_waits_holds_up_its_own_queue_alone() -> None:
    """Two indexes with one lookup at a time: their delays overlap, where without queues they add up."""
    case = star({"a": range(20), "b": range(20)}, {"a": range(20), "b": range(20)})
    took = {}
    for limits in (None, Backpressure(4, 40)):
        clock = VirtualClock()
        access = {name: [Index(name, ("k",), case.tables[name], clock, 1.0, in_flight=1)] for name in "ab"}
        eddy = EddyRun(
            case.spec,
            {"u": batches(case, 1)["u"]},
            Options(architecture="joins", policy="naive", batch_size=1),
            access=access,
            clock=clock,
            backpressure=limits,
        )
        assert sum(batch.column(0)[0].as_py() for batch in eddy.run()) == 20
        took[limits] = clock.now()
    assert took[None] == pytest.approx(40.0)
    assert took[Backpressure(4, 40)] <= 24.0


def test_tickets_count_tuples_that_wait() -> None:
    """A module holds a ticket for each tuple that it was given and has not returned."""
    seen: list[tuple[int, int]] = []

    class Watching(Uneven):
        def choose(self, signature: Signature, candidates: object) -> Shares:
            for c in candidates:  # type: ignore[attr-defined]
                if c.operator.place == ("select", 0):
                    seen.append((c.tickets, c.measured.tuples_in))
            return super().choose(signature, candidates)

    spinning = Spinning(40, a=9.0, b=1.0)
    spinning.run(Watching(), Backpressure(10, 20))
    # Everything passes, so what is left of the tickets is what waits.
    assert max(tickets for tickets, _ in seen) == 10
    assert all(tickets >= 0 for tickets, _ in seen)


@pytest.mark.parametrize(("queue", "buffer", "named"), [(0, 10, "queue is 0"), (5, 0, "buffer is 0")])
def test_limits_below_one_are_refused(queue: int, buffer: int, named: str) -> None:
    """A queue that takes nothing would never be worked off."""
    with pytest.raises(OptionError, match=named):
        Backpressure(queue, buffer)


@pytest.mark.parametrize("architecture", ["joins", "stairs"])
def test_queues_do_not_go_with_base_tuples_alone(architecture: str) -> None:
    """While ``r ⋈ s`` waits for ``t``, a tuple of ``t`` would meet it, and ``s``, which stands for it."""
    case, options = chain(1), Options(architecture=architecture, intermediate=False)
    with pytest.raises(InputError, match="intermediate=False"):
        EddyRun(case.spec, batches(case, 2), options, backpressure=Backpressure(None, 20))


def test_without_limits_nothing_waits() -> None:
    """The plain buffer never makes a batch wait: modules work as soon as tuples are sent."""
    case: Case = chain(1)
    eddy = EddyRun(case.spec, batches(case, 2), Options(batch_size=2), clock=VirtualClock())
    assert not eddy._buffer.line_up(Probe(0), None)  # type: ignore[arg-type]


# How much waits


@st.composite
def chains(draw: st.DrawFn) -> Case:
    """Draw ``r.a = s.a AND s.b = t.b AND t.c = u.c`` with skewed keys."""
    n = draw(st.integers(2, 14))
    columns = {"r": "a", "s": "ab", "t": "bc", "u": "c"}

    def keys() -> pa.Array:
        return pa.array([0 if i % 2 else draw(st.integers(0, 3)) for i in range(n)], pa.int64())

    tables = {alias: pa.table({c: keys() for c in names}) for alias, names in columns.items()}
    return block(tables, ["r.a = s.a", "s.b = t.b", "t.c = u.c"], count_only=True)


@examples(40)
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
