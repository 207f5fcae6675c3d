"""Figures 12 and 13: the query of figure 8 with a table that begins to arrive late (section 4.4).

R ⋈ S keeps 100 % of S and S ⋈ T 20 %, so S ⋈ T should come first, and R is delayed by 10 seconds. (It is
figure 8's 20 % version with the tables named the other way round.) Where S is late instead, both joins are
affected alike.
"""

from __future__ import annotations

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


def run_delayed(plan: str, settings: Settings, late: str = "R") -> tuple[float, float, np.ndarray]:
    """Run the query by a static order of ``ORDERS`` or a policy, with one table late.

    Returns:
        Seconds to completion; the share of S that was read when R began to arrive; and samples of the share
        of S read, and of its tuples so far the share that went to the join with R first, shape ``(2, n)``.
    """
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
    arrived = max(read for when, read, _ in samples if when <= delay)
    return done.seconds, arrived, np.array([sample[1:] for sample in samples]).T


def fig12(settings: Settings) -> Outcome:
    """Run both orders and the eddy with R late, and with S late."""
    plans = (*ORDERS, WINDOWED)
    late_r, late_s = ({plan: run_delayed(plan, settings, late)[0] for plan in plans} for late in "RS")
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
    _, arrived, (read, r_first) = run_delayed(WINDOWED, settings)

    def share_between(low: float, high: float) -> float:
        """Return the share that went to R first of what was read between two shares of S."""
        below, above = (float(np.interp(end, read, r_first)) for end in (low, high))
        return min(1.0, max(0.0, (above * high - below * low) / (high - low)))

    # The moment of the delay's end; without a delay, where it would be.
    until = arrived or 0.4
    panel = Panel(
        "Tuples of S that meet R first",
        "share of S read",
        "share that went to R⋈S first, so far",
        [Curve("eddy", read, r_first)],
        marks=[(arrived, "R begins")],
    )
    figures = {
        "share_during_delay": share_between(until / 2, until),
        "share_behind": share_between(until, 1.0),
    }
    return Outcome([panel], figures)
