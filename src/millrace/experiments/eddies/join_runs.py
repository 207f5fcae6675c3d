"""What figures 7 and 8 have in common: both static orders and both eddies on some versions of a query."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from millrace.experiments.eddies.three_tables import ORDERS, Done, Version, run_version
from millrace.experiments.eddies.two_selections import place
from millrace.experiments.experiment import Check, Curve, Outcome, Panel, Settings
from millrace.experiments.lab.names import key

POLICIES = ("naive", "lottery")

NEAR = 0.35
"""Largest way of the lottery to the worse order. It pays for what it learns while R and T are still coming
in, an eighth of S at this pace, and for the least share that a loser keeps."""

BEHIND = 0.1
"""How much further than the lottery the naive eddy has to be, at least."""


def run_versions(versions: Sequence[Version], settings: Settings) -> dict[str, dict[str, Done]]:
    """Run both orders and both eddies; ablated, the lottery's tickets are even shares."""
    found: dict[str, dict[str, Done]] = {}
    for i, version in enumerate(versions):
        found[version.name] = {}
        for name in (*ORDERS, *POLICIES):
            policy = "naive" if settings.ablated and name == "lottery" else None
            found[version.name][name] = run_version(version, name, settings, policy)
        settings.progress((i + 1) / len(versions))
    return found


def judged(versions: Sequence[Version], found: Mapping[str, Mapping[str, Done]], title: str) -> Outcome:
    """Return the figure and its checks."""
    checks: list[Check] = []
    figures: dict[str, float] = {}
    for version in versions:
        runs = found[version.name]
        best, worst = sorted(runs[name].cost for name in ORDERS)
        places = {policy: place(runs[policy].cost, best, worst) for policy in POLICIES}
        told = ", ".join(f"{name}: {done.cost:.2f}" for name, done in runs.items())
        checks += [
            Check(
                f"{version.name}: {version.best} is the better order",
                min(ORDERS, key=lambda name: runs[name].cost) == version.best,
                f"{told} delay units for each tuple of S",
            ),
            Check(
                f"{version.name}: the lottery is near the better order",
                places["lottery"] <= NEAR,
                f"{places['lottery']:.0%} of the way to the worse one",
            ),
            Check(
                f"{version.name}: the naive eddy is between the lottery and the worse order",
                places["lottery"] + BEHIND <= places["naive"] <= 1,
                f"{places['naive']:.0%} of the way to the worse one",
            ),
            Check(
                f"{version.name}: every run has the same rows",
                len({done.rows for done in runs.values()}) == 1,
                f"{sorted({done.rows for done in runs.values()})}",
            ),
        ]
        figures |= {key(version.name, policy, "place"): value for policy, value in places.items()}
    names = [version.name for version in versions]
    panel = Panel(
        title,
        "query",
        "time for each tuple of S (delay units)",
        [
            Curve(name, range(len(names)), [found[version][name].cost for version in names])
            for name in (*ORDERS, *POLICIES)
        ],
        "bars",
        x_names=names,
    )
    return Outcome((panel,), figures, checks)
