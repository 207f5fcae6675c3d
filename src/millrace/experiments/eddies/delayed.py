"""Figures 12 and 13: the query of figure 8 with a table that begins to arrive late (section 4.4).

R ⋈ S keeps 100 % of S and S ⋈ T 20 %, so S ⋈ T should come first, and R is delayed by 10 seconds. (It is
figure 8's 20 % version with the tables named the other way round.) Where S is late instead, both joins are
affected alike.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from millrace.arrivals.access_methods import Access
from millrace.arrivals.access_modules import Scan
from millrace.arrivals.schedule import Source
from millrace.clock import VirtualClock
from millrace.experiments.eddies.engine import WINDOWED, eddy, finished, place
from millrace.experiments.eddies.joins import ORDERS, Version, results, spec_of, tables
from millrace.experiments.experiment import Curve, Outcome, Panel, Settings
from millrace.experiments.lab.costs import Costs, join_of
from millrace.experiments.lab.run import share_of
from millrace.experiments.lab.sources import batches, watched

VERSION = Version("R⋈S 100 %, S⋈T 20 %", 1.0, 0.2, "S⋈T first")
SAMPLES = 60
PUNCTUAL = "punctual"


@dataclass(frozen=True)
class Moved:
    """A run, and how its tuples moved.

    Attributes:
        seconds: To completion.
        arrived: Tuples of S read when R began to arrive, as a share of S.
        read: Share of S read,
        r_first: and of the tuples so far the share that went to the join with R first.
    """

    seconds: float
    arrived: float
    read: tuple[float, ...]
    r_first: tuple[float, ...]

    def share_between(self, low: float, high: float) -> float:
        """Return the share that went to R first of what was read between two shares of S."""
        below, above = (float(np.interp(end, self.read, self.r_first)) for end in (low, high))
        return min(1.0, max(0.0, (above * high - below * low) / (high - low)))


def run_delayed(plan: str, settings: Settings, late: str = "R") -> Moved:
    """Run the query by a static order of ``ORDERS`` or a policy, with one table late."""
    batch, unit = settings.whole("batch"), settings["unit"]
    data = tables(VERSION, settings["scale"], settings.seed)
    tuples = data["S"].num_rows
    spec = spec_of(data)
    costs = Costs()
    clock = VirtualClock(costs=costs)
    for other in "RT":
        costs.declare(join_of(spec, other, "S"), unit)
    delay = 0.0 if settings.ablated == PUNCTUAL else settings["scale"] * settings["delay"]
    samples = [(0.0, 0.0, 0.0)]

    def note(read: int) -> None:
        samples.append((clock.now(), read / tuples, share_of(run.figures(), "S", "R")))

    scans: dict[str, Source] = {name: batches(table, batch) for name, table in data.items() if name != late}
    if late != "S":
        scans["S"] = watched(data["S"], batch, note, max(1, tuples // SAMPLES))
    access: Access = {late: [Scan(late, batches(data[late], batch), clock, stall=(0, delay))]}
    run = eddy(spec, scans, settings, clock, ORDERS.get(plan, plan), access)
    done = finished(run, clock, results(data))
    samples.append((clock.now(), 1.0, done.share("S", "R")))
    times, read, shares = zip(*samples, strict=True)
    arrived = max((r for t, r in zip(times, read, strict=True) if t <= delay), default=0.0)
    return Moved(done.seconds, arrived, read, shares)


def fig12(settings: Settings) -> Outcome:
    """Run both orders and the eddy with R late, and with S late."""
    found = {}
    for i, late in enumerate("RS"):
        found[late] = {name: run_delayed(name, settings, late).seconds for name in (*ORDERS, WINDOWED)}
        settings.progress((i + 1) / 2)
    best, eddy_, worst = (found["R"][name] for name in ("S⋈T first", WINDOWED, "R⋈S first"))
    late_s = found["S"]
    panels = [Panel.bars(f"{late} is delayed", "time (s)", seconds) for late, seconds in found.items()]
    figures = {
        "eddy_over_best": eddy_ / best,
        "eddy_place": place(eddy_, (best, worst)),
        "late_s_over_best": late_s[WINDOWED] / min(late_s.values()),
    }
    return Outcome(panels, figures)


def fig13(settings: Settings) -> Outcome:
    """Follow the tuples of S."""
    moved = run_delayed(WINDOWED, settings)
    settings.progress(1.0)
    # The moment of the delay's end; without a delay, where it would be.
    until = moved.arrived or 0.4
    panel = Panel(
        "Tuples of S that meet R first",
        "share of S read",
        "share that went to R⋈S first, so far",
        [Curve("eddy", moved.read, moved.r_first)],
        marks=[(moved.arrived, "R begins")],
    )
    figures = {
        "read_during_delay": moved.arrived,
        "share_during_delay": moved.share_between(until / 2, until),
        "share_behind": moved.share_between(until, 1.0),
    }
    return Outcome((panel,), figures)
