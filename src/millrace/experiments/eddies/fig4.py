"""Figure 4: two selections that keep half of the tuples; the cost of one varies."""

from __future__ import annotations

from millrace.experiments.eddies.two_selections import ORDERS, PARAMETERS, Pair, run_pair
from millrace.experiments.experiment import Check, Curve, Experiment, Outcome, Panel, Settings
from millrace.router.back_pressure import Backpressure

COST = 5.0
KEPT = 0.5
POLICIES = ("naive", "lottery")

CLOSE = 1.06
"""Back-pressure alone leaves 3.6 % at the worst point: there (costs 3 and 5) both modules work all the time,
and one tuple in seven takes the dear one first. Half as much again for the seed and the first full queues."""


def run(settings: Settings) -> Outcome:
    """Vary the cost of s1 from 1 to 9 while s2 costs 5; ablated, queues never fill."""
    tuples, batch, points = (settings.whole(name) for name in ("tuples", "batch", "points"))
    queue = None if settings.ablated else settings.whole("queue")
    limits = Backpressure(queue, settings.whole("buffer"))
    costs = [1 + 8 * i / (points - 1) for i in range(points)]
    found: dict[str, list[float]] = {name: [] for name in (*ORDERS, *POLICIES)}
    for i, cost in enumerate(costs):
        pair = Pair((cost, COST), (KEPT, KEPT))
        for name in found:
            order, policy = ORDERS.get(name, ("s1", "s2")), "fixed" if name in ORDERS else name
            done = run_pair(pair, policy, settings.seed, tuples, batch, limits, order)
            found[name].append(done.seconds / tuples)
        settings.progress((i + 1) / points)
    best = [min(pair) for pair in zip(*(found[name] for name in ORDERS), strict=True)]
    over = {p: max(mine / least for mine, least in zip(found[p], best, strict=True)) for p in POLICIES}
    checks = [
        Check(
            f"the {policy} eddy is within {CLOSE - 1:.0%} of the better order at every point",
            over[policy] <= CLOSE,
            f"at most {over[policy] - 1:.1%} above it",
        )
        for policy in POLICIES
    ]
    worse = max(max(a / b, b / a) for a, b in zip(*(found[name] for name in ORDERS), strict=True))
    panel = Panel(
        "Two 50 % selections; s2 costs 5 delay units",
        "cost of s1 (delay units)",
        "time for each tuple (delay units)",
        [Curve(name, costs, values) for name, values in found.items()],
    )
    figures = {f"{policy}_over_best": over[policy] for policy in POLICIES} | {"worst_over_best": worse}
    return Outcome((panel,), figures, checks)


EXPERIMENT = Experiment(
    id="eddies-fig4",
    title="Two selections of different cost",
    source="Avnur & Hellerstein 2000, section 4.1, figure 4",
    claim="A naive eddy, by back-pressure alone, nearly matches the better of both orders whatever the "
    "selections cost, and so does a lottery.",
    mechanism="queues never fill, so that nothing turns tuples away from the dearer selection",
    parameters=PARAMETERS,
    run=run,
)
