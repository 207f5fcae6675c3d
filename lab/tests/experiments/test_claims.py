"""Every claim holds, or differs for its stated cause; its broken engine fails it.

Other seeds are in the table of results, which is committed.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.experiments.experiment import DIFFERS, Experiment, Outcome
from lab.experiments.registry import EXPERIMENTS, registered

LONG = ("eddies-fig12", "stairs-fig8")
"""Runs that take seconds."""

VIRTUAL = [each for each in EXPERIMENTS.values() if not each.wall]
RUNS = [
    pytest.param(each, marks=[pytest.mark.slow] if each.id in LONG else [], id=each.id) for each in VIRTUAL
]
BROKEN = [
    pytest.param(each, broken, marks=[pytest.mark.slow] if each.id in LONG else [], id=f"{each.id}-{broken}")
    for each in VIRTUAL
    for broken in each.broken
]


def ran(experiment: Experiment, seed: int = 0, ablated: str = "") -> Outcome:
    return experiment.run(experiment.settings(seed, experiment.small, ablated))


@pytest.mark.parametrize("experiment", RUNS)
def test_the_claims_hold(experiment: Experiment) -> None:
    """The paper's claims; one that differs does so as its cause says."""
    outcome = ran(experiment)
    assert outcome.holds, [check.measured for check in outcome.checks if not check.holds]
    for claim, check in zip(experiment.claims, outcome.checks, strict=True):
        assert check.holds != DIFFERS or claim.cause


@pytest.mark.parametrize(("experiment", "broken"), BROKEN)
def test_a_broken_engine_fails_the_claims_that_name_it(experiment: Experiment, broken: str) -> None:
    """A claim that holds, or differs, without what it is about would show nothing."""
    outcome = ran(experiment, ablated=broken)
    named = [check for check in outcome.checks if check.fails == broken]
    assert named, f"no claim of {experiment.id} is failed by {broken}"
    assert not any(check.holds for check in named), [check.measured for check in named if check.holds]


def test_claims_are_registered_before_they_are_run() -> None:
    """docs/experiments.md says what the code says: claim, inequality, margin, cause and broken engine."""
    documented = (Path(__file__).parents[2] / "docs" / "experiments.md").read_text(encoding="utf-8")
    assert "\n".join(map(registered, EXPERIMENTS.values())).rstrip() in documented


@pytest.mark.parametrize("id_", ["stems-fig7", "stairs-fig7-i", "beyond-correlated"])
def test_a_run_is_the_same_every_time(id_: str) -> None:
    """The same seed gives the same figure to the last digit, another seed other data."""
    first, again, other = (ran(EXPERIMENTS[id_], seed).panels for seed in (1, 1, 2))
    assert first == again
    assert first != other
