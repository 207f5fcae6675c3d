"""Figures 7 to 9: ``SELECT * FROM R, S, T WHERE R.a = S.a AND S.b = T.b`` (Avnur & Hellerstein 2000, 4.3).

Values are uniform. R has 10,000 tuples, S 80,000, T 10,000, of 100 bytes each; columns that are not joined on
are left out. R ⋈ S is a hash ripple join; S ⋈ T is one too, or an index join. Tuples are read as fast as the
eddy takes them, a batch of each table in turn, and one processor serves both joins and nothing else. A hash
ripple join takes a delay unit for each tuple routed to it, to insert it and to probe; the paper's hash joins
"all have the same cost". Which of both joins comes first matters for tuples of S alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from millrace.arrivals.access_methods import Access
from millrace.arrivals.access_modules import Index
from millrace.clock import VirtualClock
from millrace.experiments.eddies.engine import DRAWN, LOTTERY, NAIVE, eddy, finished, place
from millrace.experiments.experiment import Curve, Outcome, Panel, Settings
from millrace.experiments.lab.block import block
from millrace.experiments.lab.costs import Costs, join_of
from millrace.experiments.lab.sources import batches
from millrace.spec import JoinSpec

RANGE = (500, 5500)
"""Values of R.a (table 1); those of S.a are 0 to 5000, so that a tuple of S meets 1.8 of R on the average."""

ORDERS = {"R⋈S first": ("R", "T"), "S⋈T first": ("T", "R")}
"""Static orders: an eddy that keeps to one join first. Tuples of S go to R, or to T."""

PLANS = (*ORDERS, NAIVE, LOTTERY, DRAWN)


@dataclass(frozen=True)
class Version:
    """One version of the query.

    Attributes:
        name: For the legend.
        r_matches: Tuples of R that one of S meets: 1.8 as in table 1, or fewer where R.a and S.a are drawn
            from as many more values.
        t_matches: Tuples of T that one of S meets; at most 1.
        best: The better order.
        by_index: Whether S ⋈ T is an index join instead of a hash ripple join.
    """

    name: str
    r_matches: float
    t_matches: float
    best: str
    by_index: bool = False


INDEX_FIRST = Version("index beats hash", 1.8, 0.1, "S⋈T first", by_index=True)
HASH_FIRST = Version("hash beats index", 0.2, 0.1, "R⋈S first", by_index=True)
SELECTIVE = Version("hash, 20 %", 0.2, 1.0, "R⋈S first")
MULTIPLYING = Version("hash, 180 %", 1.8, 1.0, "S⋈T first")


@dataclass(frozen=True)
class Done:
    """Delay units for each tuple of S, and the share of S that met the better join first."""

    cost: float
    well: float


def tables(version: Version, scale: float, seed: int) -> dict[str, pa.Table]:
    """Draw the tables."""
    draw = np.random.default_rng(seed)
    r_size, s_size, t_size = (max(1, round(scale * rows)) for rows in (10_000, 80_000, 10_000))
    if version.r_matches == 1.8:
        low, high = (round(scale * bound) for bound in RANGE)
        r, s = draw.integers(low, high, r_size), draw.integers(0, high - low, s_size)
    else:
        values = round(r_size / version.r_matches)
        r, s = draw.integers(0, values, r_size), draw.integers(0, values, s_size)
    values = round(t_size / version.t_matches)
    return {
        "R": pa.table({"a": r}),
        "S": pa.table({"a": s, "b": draw.integers(0, values, s_size)}),
        "T": pa.table({"b": draw.permutation(t_size)}),
    }


def results(data: Mapping[str, pa.Table]) -> int:
    """Count the results of R ⋈ S ⋈ T."""
    a, b = (np.asarray(data["S"].column(name)) for name in "ab")
    meets_r = np.bincount(np.asarray(data["R"].column("a")), minlength=int(a.max()) + 1)
    meets_t = np.bincount(np.asarray(data["T"].column("b")), minlength=int(b.max()) + 1)
    return int((meets_r[a] * meets_t[b]).sum())


def spec_of(data: Mapping[str, pa.Table]) -> JoinSpec:
    """Return the block."""
    return block(data, "R.a = S.a", "S.b = T.b")


def run_version(version: Version, plan: str, settings: Settings) -> Done:
    """Run one version of the query by a static order of ``ORDERS`` or a policy."""
    data = tables(version, settings["scale"], settings.seed)
    spec = spec_of(data)
    costs = Costs()
    clock = VirtualClock(costs=costs)
    costs.declare(join_of(spec, "R", "S"), 1.0)
    costs.declare(join_of(spec, "S", "T"), settings["index"] if version.by_index else 1.0)
    sources = {name: batches(table, settings.whole("batch")) for name, table in data.items()}
    access: Access = {}
    if version.by_index:
        del sources["T"]
        access = {"T": [Index("T by b", ("b",), data["T"], clock)]}
    run = eddy(spec, sources, settings, clock, ORDERS.get(plan, plan), access)
    done = finished(run, clock, results(data))
    first, _ = ORDERS[version.best]
    return Done(done.seconds / data["S"].num_rows, done.share("S", first))


def performance(versions: Sequence[Version], title: str, settings: Settings) -> Outcome:
    """Run both static orders and the eddies on some versions of the query; the figures are the worst ones."""
    found: dict[str, dict[str, Done]] = {}
    for i, version in enumerate(versions):
        found[version.name] = {plan: run_version(version, plan, settings) for plan in PLANS}
        settings.progress((i + 1) / len(versions))
    places = {
        plan: [place(runs[plan].cost, [runs[order].cost for order in ORDERS]) for runs in found.values()]
        for plan in PLANS
    }
    behind = [naive - lottery for naive, lottery in zip(places[NAIVE], places[LOTTERY], strict=True)]
    panel = Panel(
        title,
        "query",
        "time for each tuple of S (delay units)",
        [Curve(plan, range(len(found)), [runs[plan].cost for runs in found.values()]) for plan in PLANS],
        "bars",
        x_names=list(found),
    )
    figures = {
        "lottery_place": max(places[LOTTERY]),
        "equal_turns_place": max(places[DRAWN]),
        "naive_behind": min(behind),
        "naive_place": max(places[NAIVE]),
    }
    return Outcome((panel,), figures)


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
    shares: dict[str, list[float]] = {NAIVE: [], LOTTERY: []}
    for i, version in enumerate(versions):
        for name, found in shares.items():
            found.append(run_version(version, name, settings).well)
        settings.progress((i + 1) / len(versions))
    dearest = shares[LOTTERY][1]
    panel = Panel(
        "Tuples of S that went to the better join first",
        "query",
        "share in the optimal order",
        [Curve(policy, range(len(versions)), found) for policy, found in shares.items()],
        "bars",
        x_names=[version.name for version in versions],
    )
    figures = {
        "least_share": min(shares[LOTTERY]),
        "dearest_share": dearest,
        "dearest_lead": dearest - max(share for i, share in enumerate(shares[LOTTERY]) if i != 1),
    }
    return Outcome((panel,), figures)
