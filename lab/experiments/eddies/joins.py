"""Figures 7 to 9, 12 and 13: R ⋈ S ⋈ T by joins of different kinds, and with a table that comes late.

R ⋈ S is a hash ripple join; S ⋈ T is one too, or an index join (Avnur & Hellerstein 2000, section 4.3).
Tuples are read as fast as the eddy takes them, a batch of each table in turn, and one processor serves both
joins and nothing else. A hash ripple join takes a delay unit for each tuple routed to it, to insert it and to
probe; the paper's hash joins "all have the same cost".

In figures 12 and 13 (section 4.4) R ⋈ S keeps 100 % of S and S ⋈ T 20 %, so S ⋈ T should come first, and R is
delayed by 10 seconds. (It is figure 8's 20 % version with the tables named the other way round.) Where S is
late instead, both joins are affected alike.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lab.experiments.eddies.engine import DRAWN, LOTTERY, NAIVE, WINDOWED, eddy, place
from lab.experiments.experiment import Curve, Outcome, Panel, Settings
from lab.experiments.lab.chain import ORDERS, THINNING, Version, chain, results, tables
from lab.experiments.lab.costs import Costs, join_of
from lab.experiments.lab.run import all_batches, finish, share_of, watched
from millrace.engine.arrivals.access_methods import Access
from millrace.engine.arrivals.access_modules import Index, Scan
from millrace.engine.arrivals.schedule import Source
from millrace.limits.clock import VirtualClock

PLANS = (*ORDERS, NAIVE, LOTTERY, DRAWN)
SAMPLES = 60
PUNCTUAL = "punctual"

INDEX_FIRST = Version("index beats hash", 1.8, 0.1, "S⋈T first", by_index=True)
HASH_FIRST = Version("hash beats index", 0.2, 0.1, "R⋈S first", by_index=True)
SELECTIVE = Version("hash, 20 %", 0.2, 1.0, "R⋈S first")
MULTIPLYING = Version("hash, 180 %", 1.8, 1.0, "S⋈T first")


def run_version(version: Version, plan: str, settings: Settings) -> tuple[float, float]:
    """Run one version of the query by a static order of ``ORDERS`` or a policy.

    Returns:
        Delay units for each tuple of S, and the share of S that met the better join first.
    """
    data = tables(version, settings["scale"], settings.seed)
    spec = chain(data)
    lookup = settings["index"] if version.by_index else 1.0
    clock = VirtualClock(costs=Costs({join_of(spec, "R", "S"): 1.0, join_of(spec, "S", "T"): lookup}))
    sources = all_batches(data, settings["batch"])
    access: Access = {}
    if version.by_index:
        del sources["T"]
        access = {"T": [Index("T by b", ("b",), data["T"], clock)]}
    run = eddy(spec, sources, settings, clock, ORDERS.get(plan, plan), access)
    done = finish(run, clock, results(data))
    return done.seconds / data["S"].num_rows, done.share("S", ORDERS[version.best][0])


def performance(versions: Sequence[Version], title: str, settings: Settings) -> Outcome:
    """Run both static orders and the eddies on some versions of the query; the figures are the worst ones."""
    costs = {plan: [run_version(each, plan, settings)[0] for each in versions] for plan in PLANS}
    orders = list(zip(*(costs[order] for order in ORDERS), strict=True))
    places = {plan: list(map(place, costs[plan], orders)) for plan in PLANS}
    behind = [naive - lottery for naive, lottery in zip(places[NAIVE], places[LOTTERY], strict=True)]
    figures = {
        "lottery_place": max(places[LOTTERY]),
        "equal_turns_place": max(places[DRAWN]),
        "naive_behind": min(behind),
        "naive_place": max(places[NAIVE]),
    }
    label = "time for each tuple of S (delay units)"
    return Outcome([Panel.grouped(title, "query", label, [each.name for each in versions], costs)], figures)


def fig7(settings: Settings) -> Outcome:
    """Run a hash join that multiplies tuples and a selective index join."""
    return performance((INDEX_FIRST,), "R⋈S by hashing (1.8 matches), S⋈T by index (0.1)", settings)


def fig8(settings: Settings) -> Outcome:
    """Run two hash joins, of which one is more or less selective than the other."""
    title = "R⋈S and S⋈T by hashing; S⋈T keeps 100 % of S"
    return performance((SELECTIVE, MULTIPLYING), title, settings)


def fig9(settings: Settings) -> Outcome:
    """Follow the tuples of S in all four runs."""
    versions = (INDEX_FIRST, HASH_FIRST, SELECTIVE, MULTIPLYING)
    shares = {plan: [run_version(each, plan, settings)[1] for each in versions] for plan in (NAIVE, LOTTERY)}
    dearest = shares[LOTTERY][1]
    figures = {
        "least_share": min(shares[LOTTERY]),
        "dearest_share": dearest,
        "dearest_lead": dearest - max(share for i, share in enumerate(shares[LOTTERY]) if i != 1),
    }
    names = [each.name for each in versions]
    title, label = "Tuples of S that went to the better join first", "share in the optimal order"
    return Outcome([Panel.grouped(title, "query", label, names, shares)], figures)


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
