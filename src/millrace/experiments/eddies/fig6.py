"""Figure 6: the share of tuples that meet s1 first, in the runs of figures 4 and 5."""

from __future__ import annotations

from millrace.experiments.eddies.two_selections import PARAMETERS, Pair, run_pair
from millrace.experiments.experiment import Check, Curve, Experiment, Outcome, Panel, Settings
from millrace.router.back_pressure import Backpressure

COST = 5.0
KEPT = 0.5
POLICIES = ("naive", "lottery")

EVEN = 0.2
"""How far from a half the share may be where both selections are alike: then every order costs the same, and
the tickets of a lottery drift."""

MOVED = 0.4
"""Least difference of shares between both ends of a sweep; optimal routing has 1, and even shares 0."""


def run(settings: Settings) -> Outcome:
    """Sweep the cost of s1, then its selectivity; ablated, the lottery's tickets are even shares."""
    tuples, batch = settings.whole("tuples"), settings.whole("batch")
    points = settings.whole("points") | 1  # so that the middle, where both are alike, is among them
    limits = Backpressure(settings.whole("queue"), settings.whole("buffer"))
    costs = [1 + 8 * i / (points - 1) for i in range(points)]
    kept = [0.1 + 0.8 * i / (points - 1) for i in range(points)]
    sweeps = [
        [Pair((cost, COST), (KEPT, KEPT)) for cost in costs],
        [Pair((COST, COST), (share, KEPT)) for share in kept],
    ]
    shares: list[dict[str, list[float]]] = []
    for sweep, pairs in enumerate(sweeps):
        shares.append({policy: [] for policy in POLICIES})
        for i, pair in enumerate(pairs):
            for name, found in shares[-1].items():
                policy = "naive" if settings.ablated else name
                done = run_pair(pair, policy, settings.seed, tuples, batch, limits)
                found.append(done.share("U", "s1"))
            settings.progress((sweep + (i + 1) / points) / 2)
    by_cost, by_kept = shares
    fall = {
        f"{policy}_by_{what}": found[policy][0] - found[policy][-1]
        for policy in POLICIES
        for what, found in (("cost", by_cost), ("selectivity", by_kept))
    }
    middle = by_kept["lottery"][points // 2]
    checks = (
        Check(
            "back-pressure sees costs: the dearer s1 is, the fewer tuples meet it first",
            fall["naive_by_cost"] >= MOVED,
            f"naive: from {by_cost['naive'][0]:.0%} to {by_cost['naive'][-1]:.0%}",
        ),
        Check(
            "it does not see selectivity: where s1 keeps more, not fewer tuples meet it first (it even "
            "drifts the wrong way)",
            fall["naive_by_selectivity"] <= 0,
            f"naive: from {by_kept['naive'][0]:.0%} to {by_kept['naive'][-1]:.0%}",
        ),
        Check(
            "the lottery sees selectivity: the more s1 keeps, the fewer tuples meet it first",
            fall["lottery_by_selectivity"] >= MOVED,
            f"lottery: from {by_kept['lottery'][0]:.0%} to {by_kept['lottery'][-1]:.0%}",
        ),
        Check(
            "where both are alike, the lottery sends about half of the tuples either way",
            abs(middle - 0.5) <= EVEN,
            f"{middle:.0%} to s1 first",
        ),
    )
    panels = [
        Panel(title, label, "share of tuples that meet s1 first", [Curve(p, x, found[p]) for p in POLICIES])
        for title, label, x, found in (
            ("As the cost varies (figure 4)", "cost of s1 (delay units)", costs, by_cost),
            ("As the selectivity varies (figure 5)", "share of tuples that s1 keeps", kept, by_kept),
        )
    ]
    return Outcome(panels, fall | {"lottery_where_alike": middle}, checks)


EXPERIMENT = Experiment(
    id="eddies-fig6",
    title="Which selection tuples meet first",
    source="Avnur & Hellerstein 2000, section 4.2, figure 6",
    claim="Back-pressure steers by cost alone and drifts the wrong way as selectivity changes; a lottery "
    "moves with selectivity, and divides tuples about evenly where it makes no difference.",
    mechanism="the lottery's tickets are replaced by even shares",
    parameters=PARAMETERS,
    run=run,
)
