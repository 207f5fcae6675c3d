"""Every figure of the eddies paper holds for several seeds, and fails without what it is about."""

from __future__ import annotations

import pytest

from millrace.experiments import eddies
from millrace.experiments.eddies import three_tables, two_selections
from millrace.experiments.experiment import Experiment, Outcome
from millrace.router.back_pressure import Backpressure

SEEDS = range(5)

# Smaller than the papers' sizes, with as many tuples in queues for their size.
_SELECTIONS = {"tuples": 2_000, "points": 2, "batch": 30, "queue": 60, "buffer": 180}
_JOINS = {"scale": 0.03, "batch": 40, "queue": 80, "buffer": 240}
_DELAYED = {"batch": 200, "queue": 400, "buffer": 1_200}
SMALL: dict[str, dict[str, float]] = {
    "eddies-fig4": _SELECTIONS,
    "eddies-fig5": _SELECTIONS,
    "eddies-fig6": _SELECTIONS,
    "eddies-fig7": _JOINS,
    "eddies-fig8": _JOINS,
    "eddies-fig9": _JOINS,
    "eddies-fig10": {"tuples": 300, "known": 0.1, "left": 0.1, "slow": 20.0, "batch": 1, "queue": 1},
    "eddies-fig11": {"tuples": 600, "queue": 4, "buffer": 16},
    "eddies-fig12": _DELAYED,
    "eddies-fig13": _DELAYED,
}


# Tuple by tuple, or at nearly full size: one seed with the other tests, all of them with the slow ones.
LONG = ("eddies-fig10", "eddies-fig11", "eddies-fig12")
RUNS = [
    pytest.param(
        each, seed, marks=[pytest.mark.slow] if each.id in LONG and seed else [], id=f"{each.id}-{seed}"
    )
    for each in eddies.EXPERIMENTS
    for seed in SEEDS
]


def ran(experiment: Experiment, seed: int, *, ablated: bool = False) -> Outcome:
    return experiment.run(experiment.settings(seed, SMALL[experiment.id], ablated))


def told(outcome: Outcome) -> str:
    return "; ".join(f"{check.claim}: {check.measured}" for check in outcome.checks if not check.holds)


def test_there_is_one_experiment_for_each_figure() -> None:
    """Figures 4 to 13, in their order."""
    assert [each.id for each in eddies.EXPERIMENTS] == list(SMALL)


@pytest.mark.parametrize(("experiment", "seed"), RUNS)
def test_the_figure_holds(experiment: Experiment, seed: int) -> None:
    """The paper's claims, whatever is drawn."""
    outcome = ran(experiment, seed)
    assert outcome.holds, told(outcome)


@pytest.mark.parametrize("experiment", eddies.EXPERIMENTS, ids=lambda each: each.id)
def test_without_its_mechanism_the_figure_fails(experiment: Experiment) -> None:
    """The checks look at what the figure is about."""
    assert not ran(experiment, 0, ablated=True).holds


@pytest.mark.parametrize("policy", ["naive", "lottery"])
def test_batches_change_little_for_selections(policy: str) -> None:
    """Tuple by tuple, as in the paper, or twenty at a time: the same share goes to s1 first."""
    pair, limits = two_selections.Pair((3.0, 5.0), (0.3, 0.5)), Backpressure(80, 240)
    shares = [
        two_selections.run_pair(pair, policy, 0, 2_000, batch, limits).share("U", "s1") for batch in (1, 20)
    ]
    assert shares[0] == pytest.approx(shares[1], abs=0.05)


@pytest.mark.parametrize("name", ["naive", "lottery", "R⋈S first"])
def test_batches_change_little_for_joins(name: str) -> None:
    """The same for joins, in cost."""
    costs = []
    for batch in (2, 20):
        values = {"scale": 0.02, "batch": batch, "queue": 80, "buffer": 240}
        settings = eddies.fig8.EXPERIMENT.settings(0, values)
        costs.append(three_tables.run_version(eddies.fig8.SELECTIVE, name, settings).cost)
    assert costs[0] == pytest.approx(costs[1], rel=0.05)
