"""Figures 12 and 13: the query of figure 8 with a table that begins to arrive late (section 4.4).

R ⋈ S keeps 100 % of S and S ⋈ T 20 %, so S ⋈ T should come first, and R is delayed by 10 seconds. (It is
figure 8's 20 % version with the tables named the other way round.) Where S is late instead, both joins are
affected alike.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from millrace.arrivals.access_modules import Scan
from millrace.arrivals.schedule import Source
from millrace.clock import VirtualClock
from millrace.experiments.eddies.engine import WINDOWED, eddy, place
from millrace.experiments.experiment import Curve, Outcome, Panel, Settings
from millrace.experiments.lab.chain import ORDERS, THINNING, chain, results, tables
from millrace.experiments.lab.costs import Costs, join_of
from millrace.experiments.lab.run import finish, share_of
from millrace.experiments.lab.sources import all_batches, watched

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
    data = tables(THINNING, settings["scale"], settings.seed)
    tuples, batch = data["S"].num_rows, settings["batch"]
    spec = chain(data)
    clock = VirtualClock(costs=Costs({join_of(spec, other, "S"): settings["unit"] for other in "RT"}))
    delay = 0.0 if settings.ablated == PUNCTUAL else settings["scale"] * settings["delay"]
    samples = [(0.0, 0.0, 0.0)]

    def note(read: int) -> None:
        samples.append((clock.now(), read / tuples, share_of(run.figures(), "S", "R")))

    sources: dict[str, Source] = {**all_batches(data, batch)}
    access = {late: [Scan(late, sources.pop(late), clock, stall=(0, delay))]}
    if late != "S":
        sources["S"] = watched(data["S"], batch, note, max(1, tuples // SAMPLES))
    run = eddy(spec, sources, settings, clock, ORDERS.get(plan, plan), access)
    done = finish(run, clock, results(data))
    samples.append((clock.now(), 1.0, done.share("S", "R")))
    times, read, shares = zip(*samples, strict=True)
    arrived = max((r for t, r in zip(times, read, strict=True) if t <= delay), default=0.0)
    return Moved(done.seconds, arrived, read, shares)


def fig12(settings: Settings) -> Outcome:
    """Run both orders and the eddy with R late, and with S late."""
    plans = (*ORDERS, WINDOWED)
    late_r, late_s = ({plan: run_delayed(plan, settings, late).seconds for plan in plans} for late in "RS")
    best, eddy_, worst = (late_r[name] for name in ("S⋈T first", WINDOWED, "R⋈S first"))
    figures = {
        "eddy_over_best": eddy_ / best,
        "eddy_place": place(eddy_, (best, worst)),
        "late_s_over_best": late_s[WINDOWED] / min(late_s.values()),
    }
    panels = {"R is delayed": late_r, "S is delayed": late_s}
    return Outcome([Panel.bars(title, "time (s)", each) for title, each in panels.items()], figures)


def fig13(settings: Settings) -> Outcome:
    """Follow the tuples of S."""
    moved = run_delayed(WINDOWED, settings)
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
    return Outcome([panel], figures)
