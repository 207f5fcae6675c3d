"""Figure 5: two selections that cost the same; the selectivity of one varies."""

from __future__ import annotations

from millrace.experiments.eddies.two_selections import ORDERS, PARAMETERS, Pair, place, run_pair
from millrace.experiments.experiment import Check, Curve, Experiment, Outcome, Panel, Settings
from millrace.router.back_pressure import Backpressure

COST = 5.0
KEPT = 0.5
ALIKE = 0.05
"""Selectivities closer than this make both orders cost the same within noise: there is nothing to find."""

HALFWAY = (0.35, 0.8)
"""Where the naive eddy's mean is expected between the orders. With both modules saturated, flow conservation
(fresh tuples plus those that the other one returned fill half of the processor) puts it at 0.58 to 0.83,
0.67 on the average of 10 % to 90 %."""

NEAR = 0.25
"""The lottery's mean. What it learned at the start costs it most at selectivities of 10 % to 30 %, where a
mistake is cheap."""


def run(settings: Settings) -> Outcome:
    """Vary the share that s1 keeps from 10 % to 90 %; ablated, the lottery's tickets are even shares."""
    tuples, batch, points = (settings.whole(name) for name in ("tuples", "batch", "points"))
    limits = Backpressure(settings.whole("queue"), settings.whole("buffer"))
    policies = {"naive": "naive", "lottery": "naive" if settings.ablated else "lottery"}
    kept = [0.1 + 0.8 * i / (points - 1) for i in range(points)]
    found: dict[str, list[float]] = {name: [] for name in (*ORDERS, *policies)}
    for i, share in enumerate(kept):
        pair = Pair((COST, COST), (share, KEPT))
        for name in found:
            order, policy = ORDERS.get(name, ("s1", "s2")), policies.get(name, "fixed")
            done = run_pair(pair, policy, settings.seed, tuples, batch, limits, order)
            found[name].append(done.seconds / tuples)
        settings.progress((i + 1) / points)
    places: dict[str, float] = {}
    for name in policies:
        orders = zip(kept, found[name], *(found[order] for order in ORDERS), strict=True)
        told = [place(mine, min(a, b), max(a, b)) for k, mine, a, b in orders if abs(k - KEPT) > ALIKE]
        places[name] = sum(told) / len(told)
    low, high = HALFWAY
    checks = (
        Check(
            "the naive eddy is about halfway between best and worst",
            low <= places["naive"] <= high,
            f"on average {places['naive']:.0%} of the way to the worse order",
        ),
        Check(
            "the lottery is near the best order",
            places["lottery"] <= NEAR,
            f"on average {places['lottery']:.0%} of the way to the worse order",
        ),
    )
    panel = Panel(
        "Both selections cost 5 delay units; s2 keeps 50 %",
        "share of tuples that s1 keeps",
        "time for each tuple (delay units)",
        [Curve(name, kept, values) for name, values in found.items()],
    )
    return Outcome((panel,), {f"{name}_place": value for name, value in places.items()}, checks)


EXPERIMENT = Experiment(
    id="eddies-fig5",
    title="Two selections of different selectivity",
    source="Avnur & Hellerstein 2000, section 4.2, figure 5",
    claim="Back-pressure alone cannot tell a selective predicate from another and ends up about halfway "
    "between the best and the worst order; a lottery is near the best.",
    mechanism="the lottery's tickets are replaced by even shares",
    parameters=PARAMETERS,
    run=run,
)
