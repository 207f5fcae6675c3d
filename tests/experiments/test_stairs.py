"""Figures 7 and 9 of the STAIRs paper, and an input that is late, on the virtual clock."""

from __future__ import annotations

import pytest

from millrace.experiments.beyond import initial_delay
from millrace.experiments.experiment import Experiment
from millrace.experiments.stairs import fig7_i, fig7_ii, fig7_iii, fig9

SMALL: dict[str, tuple[Experiment, dict[str, float]]] = {
    "stairs-fig7-i": (fig7_i.EXPERIMENT, {"scale": 0.01, "batch": 500}),
    "stairs-fig7-ii": (fig7_ii.EXPERIMENT, {"scale": 0.01, "batch": 1000, "points": 6}),
    "stairs-fig7-iii": (fig7_iii.EXPERIMENT, {"scale": 0.01, "batch": 500}),
    "stairs-fig9": (fig9.EXPERIMENT, {"rows": 10_000, "batch": 500}),
    "beyond-initial-delay": (initial_delay.EXPERIMENT, {"scale": 0.1, "batch": 50}),
}
"""Sizes that keep the suite short; the shape does not depend on them."""


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("name", SMALL)
def test_the_claim_holds(name: str, seed: int) -> None:
    """Whatever the data's seed, the paper's shape is there."""
    experiment, sizes = SMALL[name]
    outcome = experiment.run(experiment.settings(seed, sizes))
    assert outcome.holds, [(check.claim, check.measured) for check in outcome.checks if not check.holds]


@pytest.mark.parametrize("name", SMALL)
def test_without_the_mechanism_it_does_not(name: str) -> None:
    """A check that holds without what it is about would show nothing."""
    experiment, sizes = SMALL[name]
    assert experiment.id == name
    assert not experiment.run(experiment.settings(0, sizes, ablated=True)).holds


def test_the_same_seed_gives_the_same_figures() -> None:
    """Time is counted work, so a run repeats to the last digit."""
    experiment, sizes = SMALL["stairs-fig7-i"]
    one, two = (experiment.run(experiment.settings(3, sizes)).figures for _ in range(2))
    assert one == two
