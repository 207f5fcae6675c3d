"""Every claim holds for several seeds, or differs for its stated cause; its broken engine fails it."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from millrace.experiments.experiment import DIFFERS, Experiment, Outcome
from millrace.experiments.registration import registered
from millrace.experiments.registry import EXPERIMENTS

_SELECTIONS = {"tuples": 1_000, "points": 3}
_JOINS = {"scale": 0.03}
_DELAYED = {"batch": 80, "queue": 80}
SMALL: dict[str, dict[str, float]] = {
    "eddies-fig4": _SELECTIONS,
    "eddies-fig5": _SELECTIONS,
    "eddies-fig6": _SELECTIONS,
    "eddies-fig7": _JOINS,
    "eddies-fig8": _JOINS,
    "eddies-fig9": _JOINS,
    "eddies-fig10": {"tuples": 600, "known": 0.1, "left": 0.1, "slow": 20.0, "batch": 1, "queue": 1},
    "eddies-fig11": {"tuples": 600, "batch": 1, "queue": 4, "buffer": 16},
    "eddies-toggled-selectivity": {"tuples": 6_000},
    "eddies-fig12": _DELAYED,
    "eddies-fig13": _DELAYED,
    "stems-fig7": {"tuples": 80, "values": 20},
    "stems-fig8": {"tuples": 120},
    "stems-competition": {"tuples": 40},
    "stems-spanning-tree": {"tuples": 120, "values": 40, "before": 38, "stall": 8},
    "stems-interactive": {"tuples": 120},
    "stems-join-algorithms": {"tuples": 1500, "values": 1500, "budget": 50},
    "stairs-fig7-i": {"scale": 0.02},
    "stairs-fig7-ii": {"scale": 0.02, "points": 6},
    "stairs-fig7-iii": {"scale": 0.03},
    "stairs-fig8": {"setups": 20, "scale": 0.02, "policies": 0},
    "stairs-fig9": {"rows": 20_000},
    "stairs-scrambling": {"scale": 0.1, "batch": 100},
    "beyond-convergence": {"tuples": 10_000},
    "beyond-initial-delay": {"scale": 0.5},
    "beyond-correlated": {"tuples": 20_000},
    "beyond-drift": {"phase": 8000},
    "beyond-content": {},
    "beyond-peers": {"size": 0.004, "joins": 3, "batch": 20},
    "beyond-cascade": {"sets": 10, "rows": 8000, "sample": 1000, "sharpness": 6},
}
"""Sizes that keep the suite short; the shape does not depend on them."""

LONG = ("eddies-fig12", "stairs-fig8")
ONCE = (*LONG, "eddies-fig7", "eddies-fig8", "eddies-fig9", "eddies-toggled-selectivity", "beyond-peers")
"""Runs that take long, with one seed: those of seconds are marked."""

VIRTUAL = [each for each in EXPERIMENTS.values() if not each.wall]
RUNS = [
    pytest.param(each, seed, marks=[pytest.mark.slow] if each.id in LONG else [], id=f"{each.id}-{seed}")
    for each in VIRTUAL
    for seed in range(1 if each.id in ONCE else 2)
]
BROKEN = [
    pytest.param(each, broken, marks=[pytest.mark.slow] if each.id in LONG else [], id=f"{each.id}-{broken}")
    for each in VIRTUAL
    for broken in each.broken
]


def ran(experiment: Experiment, seed: int, ablated: str = "") -> Outcome:
    return experiment.run(experiment.settings(seed, SMALL[experiment.id], ablated))


@pytest.mark.parametrize(("experiment", "seed"), RUNS)
def test_the_claims_hold(experiment: Experiment, seed: int) -> None:
    """The paper's claims, whatever is drawn; one that differs does so as its cause says."""
    outcome = ran(experiment, seed)
    assert outcome.holds, [check.measured for check in outcome.checks if not check.holds]
    for claim, check in zip(experiment.claims, outcome.checks, strict=True):
        assert check.holds != DIFFERS or claim.cause


@pytest.mark.parametrize(("experiment", "broken"), BROKEN)
def test_a_broken_engine_fails_the_claims_that_name_it(experiment: Experiment, broken: str) -> None:
    """A claim that holds, or differs, without what it is about would show nothing."""
    outcome = ran(experiment, 0, broken)
    named = [check for check in outcome.checks if check.fails == broken]
    assert named, f"no claim of {experiment.id} is failed by {broken}"
    assert not any(check.holds for check in named), [check.measured for check in named if check.holds]


@cache
def _documented() -> str:
    return (Path(__file__).parents[2] / "docs" / "experiments.md").read_text(encoding="utf-8")


def test_claims_are_registered_before_they_are_run() -> None:
    """docs/experiments.md says what the code says: claim, inequality, margin, cause and broken engine."""
    assert registered(EXPERIMENTS.values()) in _documented()


@pytest.mark.parametrize("id_", ["stems-fig7", "stairs-fig7-i", "beyond-correlated"])
def test_a_run_is_the_same_every_time(id_: str) -> None:
    """The same seed gives the same figure to the last digit, another seed other data."""
    first, again, other = (ran(EXPERIMENTS[id_], seed).panels for seed in (1, 1, 2))
    assert first == again
    assert first != other
