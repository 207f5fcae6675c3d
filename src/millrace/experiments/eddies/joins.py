"""Figures 7 to 9: R ⋈ S ⋈ T by joins of different kinds (Avnur & Hellerstein 2000, section 4.3).

R ⋈ S is a hash ripple join; S ⋈ T is one too, or an index join. Tuples are read as fast as the eddy takes
them, a batch of each table in turn, and one processor serves both joins and nothing else. A hash ripple join
takes a delay unit for each tuple routed to it, to insert it and to probe; the paper's hash joins "all have
the same cost".
"""

from __future__ import annotations

from collections.abc import Sequence

from millrace.arrivals.access_methods import Access
from millrace.arrivals.access_modules import Index
from millrace.clock import VirtualClock
from millrace.experiments.eddies.engine import DRAWN, LOTTERY, NAIVE, eddy, place
from millrace.experiments.experiment import Outcome, Panel, Settings
from millrace.experiments.lab.chain import ORDERS, Version, chain, results, tables
from millrace.experiments.lab.costs import Costs, join_of
from millrace.experiments.lab.run import finish
from millrace.experiments.lab.sources import all_batches

PLANS = (*ORDERS, NAIVE, LOTTERY, DRAWN)

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
