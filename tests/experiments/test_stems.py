"""The experiments on SteMs: their checks hold for every seed, and fail without the mechanism."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from millrace.clock import VirtualClock
from millrace.experiments.experiment import Curve, Experiment
from millrace.experiments.stems import EXPERIMENTS
from millrace.experiments.stems.watched import WatchedIndex, block_of, scan, table_r, table_t, until, watch
from millrace.options import Options

SMALL: dict[str, dict[str, float]] = {
    "stems-fig7": {"tuples": 80, "values": 20},
    "stems-fig8": {"tuples": 120},
    "stems-competition": {"tuples": 40},
    "stems-spanning-tree": {"tuples": 120, "values": 40, "before": 38, "stall": 8},
    "stems-interactive": {"tuples": 120},
    "stems-join-algorithms": {"tuples": 1500, "values": 1500, "budget": 50},
}
"""Sizes at which the shapes are the same and a run takes little."""

FAILING = {
    "stems-fig7": ["half of the results by 60 %", "near-linear"],
    "stems-fig8": ["never behind the better", "as many results as the index join", "at most 10 %"],
    "stems-competition": ["ends with the slow one", "after the stall", "at most 10 %"],
    "stems-spanning-tree": ["has been given out", "changes to R - T"],
    "stems-interactive": ["60 % of the time", "the last of them"],
    "stems-join-algorithms": ["first results", "10 % of the results", "writes less", "reads more", "by key"],
}
"""Parts of the claims that do not hold without the mechanism."""


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda each: each.id)
def test_the_claim_holds_for_every_seed(experiment: Experiment, seed: int) -> None:
    """On smaller tables than the paper's, with the same shapes."""
    outcome = experiment.run(experiment.settings(seed, SMALL[experiment.id]))
    assert outcome.holds, [(check.claim, check.measured) for check in outcome.checks if not check.holds]


@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda each: each.id)
def test_the_claim_fails_without_the_mechanism(experiment: Experiment) -> None:
    """Exactly the checks that look at it fail; answers stay right."""
    outcome = experiment.run(experiment.settings(0, SMALL[experiment.id], ablated=True))
    failed = [check.claim for check in outcome.checks if not check.holds]
    assert len(failed) == len(FAILING[experiment.id]), failed
    for part in FAILING[experiment.id]:
        assert any(part in claim for claim in failed), (part, failed)
    assert not any("same answer" in claim for claim in failed)


@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda each: each.id)
def test_progress_never_goes_beyond_the_whole(experiment: Experiment) -> None:
    """What is told lies between nothing and all."""
    told: list[float] = []
    experiment.run(experiment.settings(0, SMALL[experiment.id], progress=told.append))
    assert told
    assert 0 <= min(told) <= max(told) <= 1 + 1e-9


@pytest.mark.parametrize("id_", ["stems-fig7"])
def test_a_run_is_the_same_every_time(id_: str) -> None:
    """The same seed gives the same figure to the last digit, another seed other data."""
    (experiment,) = (each for each in EXPERIMENTS if each.id == id_)
    first, again, other = (experiment.run(experiment.settings(seed, SMALL[id_])).panels for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_results_are_timed_as_they_come() -> None:
    """A result's time is that of the later of its two tuples, or of the lookup that brought it."""
    draw = np.random.default_rng(0)
    tables = {"R": table_r(draw, 8, 4), "T": table_t(draw, 8)}
    spec = block_of(tables, "R.key = T.key")
    came = {key: 0.5 * (place + 1) for place, key in enumerate(tables["T"]["key"].to_pylist())}
    r_came = {key: 0.1 * (place + 1) for place, key in enumerate(tables["R"]["key"].to_pylist())}

    def scans(clock: VirtualClock) -> dict[str, Any]:
        return {"R": [scan("R", tables["R"], clock, 10.0)], "T": [scan("T", tables["T"], clock, 2.0)]}

    hashed = watch(spec, scans, Options(batch_size=1))
    for when, key in zip(hashed.times, hashed.table["R_key"].to_pylist(), strict=True):
        assert math.isclose(when, max(came[key], r_came[key]))
    assert hashed.answer == {
        (key, a, key): 1 for key, a in zip(*(tables["R"][n].to_pylist() for n in ("key", "a")), strict=True)
    }

    made: list[WatchedIndex] = []

    def asked(clock: VirtualClock) -> dict[str, Any]:
        made.append(WatchedIndex("T", ["key"], tables["T"], clock, 1.0, 1))
        return {"R": [scan("R", tables["R"], clock, 10.0)], "T": made}

    joined = watch(spec, asked, Options(batch_size=1))
    assert np.allclose(joined.times, 0.1 + np.arange(1, 9))
    assert [key for _, key in made[0].answered] == tables["R"]["key"].to_pylist()
    assert joined.answer == hashed.answer
    assert joined.share_at(0.5) == joined.times[3]
    assert joined.count(np.array([0.0, 1.2, 99.0])).tolist() == [0, 1, 8]


def test_a_run_without_results_has_a_table() -> None:
    """No column is gathered then, and the curve stays at nothing."""
    tables = {"R": pa.table({"key": [1, 2]}), "T": pa.table({"key": [3]})}
    found = watch(
        block_of(tables, "R.key = T.key"),
        lambda clock: {alias: [scan(alias, table, clock, 1.0)] for alias, table in tables.items()},
        Options(batch_size=1),
    )
    assert found.table.num_rows == 0
    assert found.curve("none") == Curve("none", (0, found.end), (0, 0))


def test_a_curve_is_cut_at_a_moment() -> None:
    """What is at the moment is in."""
    assert until(Curve("c", (0, 1, 2, 3), (5, 6, 7, 8)), 2) == Curve("c", (0, 1, 2), (5, 6, 7))
