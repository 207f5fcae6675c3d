"""The laboratory: costs, sources, selections and indexes on the virtual clock are what they say."""

from __future__ import annotations

import math

import pyarrow as pa
import pytest

from lab.experiments.eddies import selections
from lab.experiments.eddies.engine import DRAWN, LOTTERY
from lab.experiments.lab.block import block
from lab.experiments.lab.costs import Costs, join_of
from lab.experiments.lab.indexes import RemoteIndex
from lab.experiments.lab.run import Finished, batches, finish, key, share_of, watched
from lab.experiments.registry import EXPERIMENTS
from millrace.engine.runs.eddy_run import EddyRun
from millrace.engine.runs.static import StaticPlan
from millrace.engine.spec import JoinSpec
from millrace.limits.clock import VirtualClock
from millrace.options import Options


def table(rows: int, start: int = 0) -> pa.Table:
    return pa.table({"k": range(start, start + rows)})


def two(left: pa.Table, right: pa.Table) -> JoinSpec:
    """Return ``r.k = s.k``, which counts its rows."""
    return block({"r": left, "s": right}, "r.k = s.k")


def pair(costs: tuple[float, float], kept: tuple[float, float], plan: str, **values: float) -> Finished:
    """Run two selections."""
    settings = EXPERIMENTS["eddies-fig4"].settings(1, values)
    return selections.run_pair(selections.Pair(costs, kept), plan, settings)


@pytest.mark.parametrize("architecture", ["joins", "stairs", "static"])
def test_declared_work_takes_its_time(architecture: str) -> None:
    """So much for each tuple that is given to the join, and so much for each match, whoever runs the plan."""
    r, s = table(10), table(6)
    spec = two(r, s)
    join = join_of(spec, "s", "r")
    clock = VirtualClock(costs=Costs({join: 2.0}, {join: 0.5}))
    run = StaticPlan if architecture == "static" else EddyRun
    options = Options(architecture=architecture, online=True)
    sources = {"r": batches(r, 4), "s": batches(s, 4)}
    assert sum(b.column(0)[0].as_py() for b in run(spec, sources, options, clock=clock).run()) == 6
    assert clock.now() == pytest.approx(16 * 2.0 + 6 * 0.5)


def test_a_cost_may_change() -> None:
    """A function is asked whenever there is work; what is not declared is free."""
    now = 1.0
    costs = Costs({("join", 0): lambda: now})
    assert costs(("join", 0), 3, 0) == 3.0
    now = 5.0
    assert costs(("join", 0), 3, 0) == 15.0
    assert costs(("join", 1), 3, 9) == 0.0


def test_policies_see_declared_costs() -> None:
    """The time is booked as the module's own."""
    r, s = table(8), table(8)
    clock = VirtualClock(costs=Costs({("probe", 0): 3.0}))
    spec = two(r, s)
    eddy = EddyRun(spec, {"r": batches(r, 4), "s": batches(s, 4)}, clock=clock, stream="s")
    finish(eddy, clock)
    (probe,) = (m for m in eddy.figures().modules if m.action == "probe")
    assert (probe.tuples_in, probe.seconds) == (8, pytest.approx(24.0))


def test_a_watched_table_tells_how_much_was_read() -> None:
    """Before the first batch after each step, and at the end."""
    told: list[int] = []
    read = [batch.num_rows for batch in watched(table(10), 2, told.append, step=4)]
    assert (read, told) == ([2] * 5, [4, 8, 10])


def test_a_remote_index_answers_in_time() -> None:
    """A lookup takes what the index takes when it begins, and begins when an earlier one has ended."""
    clock = VirtualClock()
    index = RemoteIndex(["k"], table(4), clock, lambda now: 2.0 if now < 3 else 0.5)
    index.submit(table(4, start=2).combine_chunks().to_batches()[0])
    assert [start for start, _ in index.lookups] == [0.0, 2.0, 4.0, 4.5]
    assert (index.pending, index.due(), index.poll()) == (4, 2.0, [])
    clock.advance(2.0)
    assert [answer.rows.num_rows for answer in index.poll()] == [1]  # 2 and 3 are known
    clock.advance(10.0)
    rows = [answer.rows.num_rows for answer in index.poll()]
    assert (sum(rows), index.pending, index.due()) == (1, 0, math.inf)


@pytest.mark.parametrize(("plan", "expected"), [("s1 first", 2 + 0.25 * 7), ("s2 first", 7 + 0.5 * 2)])
def test_static_orders_cost_what_they_must(plan: str, expected: float) -> None:
    """A selection's cost for each tuple, and the other's for what it keeps: nothing is charged twice."""
    done = pair((2.0, 7.0), (0.25, 0.5), plan, tuples=4_000, batch=200, queue=400)
    assert done.seconds / 4_000 == pytest.approx(expected, rel=0.05)
    assert done.share("U", plan[:2]) == 1.0


def test_shares_count_first_modules() -> None:
    """Of one relation's tuples; none at all is no share."""
    done = pair((1.0, 1.0), (0.0, 1.0), "s1 first", tuples=1_000, batch=100)
    assert (done.rows, done.share("U", "s1"), done.share("U", "s2")) == (0, 1.0, 0.0)
    assert share_of(done.figures, "V", "s1") == 0.0


@pytest.mark.parametrize("policy", ["naive", "lottery"])
def test_batches_change_little(policy: str) -> None:
    """Tuple by tuple, as in the paper, or ten at a time: the same share goes to s1 first."""
    shares = [
        pair((3.0, 5.0), (0.3, 0.5), policy, tuples=2_000, batch=batch, queue=40, buffer=90).share("U", "s1")
        for batch in (1, 10)
    ]
    assert shares[0] == pytest.approx(shares[1], abs=0.05)


def test_one_engine_has_equal_turns_and_another_has_not() -> None:
    """A lottery whose draws decide about tuples alone is another one than a lottery of turns as well."""
    places = [pair((5.0, 5.0), (0.9, 0.5), plan, tuples=2_000).seconds for plan in (LOTTERY, DRAWN)]
    assert places[0] < 0.99 * places[1]


def test_keys_are_plain() -> None:
    """Whatever stands in a name, its key can be typed and is a name in most languages."""
    assert key("R⋈S 20 %", "lottery place") == "r_s_20_lottery_place"
