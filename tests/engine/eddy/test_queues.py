"""Back-pressure: queues in front of modules change when things are done, and never the answer."""

from __future__ import annotations

from functools import partial
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

import tests.engine.eddy.access_cases as access_cases
import tests.engine.eddy.test_index_join as index_cases
from millrace.engine import operator
from millrace.engine.arrivals.access_modules import Index
from millrace.engine.expressions import Call, Column, ColumnRef
from millrace.engine.policies import Candidate, Policy, Shares
from millrace.engine.router.back_pressure import Backpressure, QueuedBuffer
from millrace.engine.runs import run_of as runs
from millrace.engine.runs.eddy_run import EddyRun
from millrace.engine.spec import JoinSpec, RelationSpec
from millrace.engine.tuples import Signature
from millrace.errors import OptionError
from millrace.limits.clock import VirtualClock
from millrace.options import POLICY_NAMES, Options
from millrace.predicates import PredicateSpec
from tests.engine.eddy.blocks import batches, chain, star
from tests.engine.eddy.oracle import Case, cases, multiset
from tests.engine.eddy.test_laws import schedules
from tests.engine.operators import Probe

LIMITS = st.builds(Backpressure, st.sampled_from([None, 1, 2, 7]), st.sampled_from([1, 3, 20]))


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.data())
def test_queues_give_the_oracles_rows(data: st.DataObject) -> None:
    """Any block, policy, architecture, schedule and batch size, and queues of any length."""
    case = data.draw(cases())
    options = Options(
        architecture=data.draw(st.sampled_from(["stems", "joins", "stairs"])),
        policy=data.draw(st.sampled_from(POLICY_NAMES)),
        batch_size=data.draw(st.sampled_from([1, 2, 7, 100])),
        reoptimize_every=data.draw(st.sampled_from([1, 3, 1000])),
        online=data.draw(st.booleans()),
        seed=data.draw(st.integers(0, 3)),
    )
    schedule = data.draw(st.none() | schedules(case))
    limits = data.draw(LIMITS)
    sources = batches(case, data.draw(st.sampled_from([1, 2, 5, 1000])))
    eddy = EddyRun(case.spec, sources, options, schedule=schedule, clock=VirtualClock(), backpressure=limits)
    rows = multiset(pa.Table.from_batches(list(eddy.run()), case.spec.output_schema))
    assert rows == case.expected(), case.sql()


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.data())
def test_queues_before_access_modules_give_the_oracles_rows(data: st.DataObject) -> None:
    """Scans that stall and indexes that take time, while tuples wait for other modules."""
    case = access_cases.with_self_joins(data.draw(cases(max_relations=4)))
    made = data.draw(access_cases.plans(case))
    with mock.patch.object(access_cases, "EddyRun", partial(EddyRun, backpressure=data.draw(LIMITS))):
        ran = access_cases.run(case, made, data.draw(access_cases.options(POLICY_NAMES)), chunk=2)
    assert ran.rows == case.expected(), case.sql()


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.data())
def test_queues_before_index_joins_give_the_oracles_rows(data: st.DataObject) -> None:
    """Index joins that wait in their queues."""
    case, made = data.draw(index_cases.asking())
    options = data.draw(index_cases.options(data.draw(st.sampled_from(["joins", "stairs"]))))
    with mock.patch.object(runs, "EddyRun", partial(EddyRun, backpressure=data.draw(LIMITS))):
        ran = index_cases.ran(case, made, options)
    assert ran.rows == case.expected(), case.sql()


def test_an_end_waits_for_tuples_in_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    """A relation that has ended lets joins forget what only it would look for: after its last tuple has."""
    pop = QueuedBuffer.pop
    case = chain(3, rows=30)

    def missing() -> int:
        eddy = EddyRun(
            case.spec,
            batches(case, 3),
            Options(architecture="joins", policy="naive", batch_size=3, online=True),
            clock=VirtualClock(),
            backpressure=Backpressure(6, 60),
        )
        rows = multiset(pa.Table.from_batches(list(eddy.run()), case.spec.output_schema))
        return (case.expected() - rows).total()

    assert missing() == 0
    monkeypatch.setattr(QueuedBuffer, "pop", lambda self, *, draining=False: pop(self))
    assert missing() > 0


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


def test_without_limits_nothing_waits() -> None:
    """The plain buffer never makes a batch wait: modules work as soon as tuples are sent."""
    case: Case = chain(1)
    eddy = EddyRun(case.spec, batches(case, 2), Options(batch_size=2), clock=VirtualClock())
    assert not eddy._buffer.line_up(Probe(0), None)  # type: ignore[arg-type]
