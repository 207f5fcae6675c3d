"""What a run keeps of its decisions: true, bounded, and of every kind of run."""

from __future__ import annotations

import pytest

from millrace.engine.figures import CellFigures
from millrace.engine.operator import Probe
from millrace.engine.router import trace as module
from millrace.engine.router.trace import Trace
from millrace.engine.statistics import Statistics
from millrace.engine.tuples import singleton
from millrace.options import POLICY_NAMES
from tests.reports.pages.reports import drifting


@pytest.mark.parametrize(
    "options",
    [
        *({"policy": name} for name in POLICY_NAMES if name != "fixed"),
        {"policy": "fixed", "order": ("o", "c")},
        {"architecture": "stairs", "online": True},
        {"architecture": "joins"},
        {"online": True},
        {"batch_size": 40},
    ],
    ids=str,
)
def test_the_last_reading_is_the_total(options):
    """Sums only grow, the last are those of the modules, and orders are of all tuples that were sent on."""
    figures = drifting(**options)
    assert CellFigures.from_json(figures.to_json()) == figures
    totals = {(m.name, m.action): (m.tuples_in, m.tuples_out) for m in figures.modules}
    for reading in figures.readings:
        assert reading.points[-1][1:3] == totals[reading.module, reading.action]
        for before, now in zip(reading.points, reading.points[1:], strict=False):
            assert all(a <= b for a, b in zip(before, now, strict=True))
    assert {reading.module for reading in figures.readings} == {
        name for name, action in totals if action in ("probe", "join") and totals[name, action][0]
    }
    largest = max(figures.traces, key=lambda each: each.tuples)
    assert (largest.source, largest.tuples) == ("l", 60_000)
    for each in figures.traces:
        places = [change.after for change in each.changes]
        assert places[0] == 0
        assert places == sorted(places)
        assert places[-1] <= each.tuples
    assert sum(len(each.changes) for each in figures.traces) <= module._MOST_CHANGES
    points = sum(len(reading.points) for reading in figures.readings)
    assert points <= module._MOST_POINTS + len(figures.readings)


def test_a_drift_is_seen_and_told_why():
    """The order turns half-way, because one dimension's share of matches fell and the other's rose."""
    (trace,) = drifting().traces
    change = next(c for c in trace.changes if c.after >= 30_000 and c.order == "o → c")
    shifts = {shift.module: shift for shift in change.why}
    assert set(shifts) == {"o", "c"}
    assert shifts["o"].selectivity[1] < shifts["o"].selectivity[0]


class _Probe(Probe):
    def step(self, work, limit):
        raise AssertionError


@pytest.mark.parametrize("decisions", [10, 1_000, 20_000])
def test_what_goes_to_and_fro_is_thinned(decisions):
    """However often minds change: what is kept is bounded, is of the whole run, and still alternates."""
    accounts = Statistics()
    trace = Trace(["a", "b", "c"], accounts)
    probes = [_Probe(1, "SteM(b)", "b"), _Probe(2, "SteM(c)", "c")]
    start = singleton(0)
    for number in range(decisions):
        chosen = probes[number % 2]
        trace.decided(start, [(chosen, 1.0)])
        for key in (chosen, (start, chosen)):
            accounts.update(key, 10, 5, 1e-6)
    (orders,) = trace.orders()
    assert orders.tuples == 10 * decisions
    assert len(orders.changes) <= module._MOST_CHANGES
    assert {change.order for change in orders.changes} == {"b", "c"}
    assert orders.changes[-1].after >= 0.4 * orders.tuples
    assert sum(len(each.points) for each in trace.readings()) <= module._MOST_POINTS + 2
