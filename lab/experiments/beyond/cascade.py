"""Cascades: what thresholds learned on a sample promise of all rows, and what they spare.

A data set has rows that the costly predicate keeps or not, and scores that tell both apart more or less.
The cascade is fitted to a uniform sample and filters all rows, both stages as modules of an eddy. Graded
scores are of beta distributions; coarse ones are the same rounded to tenths, so that many rows tie.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean

import numpy as np
import pyarrow as pa

import millrace
from lab.experiments.experiment import Outcome, Panel, Settings
from lab.experiments.lab.block import block
from lab.experiments.lab.run import batches
from millrace.engine.expressions import Call, Column, ColumnRef
from millrace.engine.runs.run_of import run_of
from millrace.limits.clock import VirtualClock
from millrace.options import Options
from millrace.predicates.cascade import Array, Thresholds
from millrace.predicates.values import PlainValues
from millrace.spark.cascade import FittedCascade

NO_MARGIN, BLIND, BACKWARDS = "no-margin", "blind", "backwards"
SCORING, ASKING = 1e-7, 1e-4
"""Seconds a row, of the score and of the costly predicate."""

GRADED, COARSE = "graded", "coarse"
_ALIKE = 2.0
"""The other parameter of the beta distributions."""
_MISSING = 0.01
"""Share of the rows without a score."""
_COLUMNS = ("score", "kept")


@dataclass
class Clocked:
    """Both stages: they look up what they say, take their time, and count the rows they were asked for."""

    clock: VirtualClock
    asked: int = 0

    def score(self, score: pa.Array, _kept: pa.Array) -> pa.Array:
        """Return the score."""
        self.clock.advance(len(score) * SCORING)
        return score

    def costly(self, _score: pa.Array, kept: pa.Array) -> pa.Array:
        """Return what it keeps."""
        self.clock.advance(len(kept) * ASKING)
        self.asked += len(kept)
        return kept


def drawn(settings: Settings, seed: int, kind: str) -> pa.Table:
    """Return a data set: scores, null where there is none, and what the costly predicate keeps."""
    random = np.random.default_rng(seed)
    rows, sharp = settings["rows"], settings["sharpness"]
    kept = random.random(rows) < settings["kept"]
    scores = np.where(kept, random.beta(sharp, _ALIKE, rows), random.beta(_ALIKE, sharp, rows))
    if settings.ablated == BLIND:
        random.shuffle(scores)
    if kind == COARSE:
        scores = scores.round(1)
    missing = random.random(rows) < _MISSING
    return pa.table([pa.array(scores, mask=missing), pa.array(kept)], _COLUMNS)


def in_the_sample(scores: Array, kept: Array, recall: float, precision: float) -> Thresholds:
    """Return the thresholds that lose and err as much as allowed in the sample itself."""
    ascending, descending = np.sort(scores[kept]), np.sort(scores[~kept])[::-1]
    low = float(ascending[int(len(ascending) * (1 - recall))])
    wrong = int((1 / precision - 1) * recall * len(ascending))
    high = float(np.nextafter(descending[wrong], np.inf)) if wrong < len(descending) else low
    high = max(low, high)
    return Thresholds(
        low, high, len(kept), int(kept.sum()), float(((scores >= low) & (scores < high)).mean())
    )


def filtered(settings: Settings, seed: int, kind: str) -> dict[str, float]:
    """Fit a cascade to a sample of a data set, and filter all of it by an eddy.

    Returns:
        ``recall``: share of the rows that the costly predicate keeps which were kept; ``precision``: share of
        the kept rows that it keeps; ``asked``: its calls over all rows, those of the sample among them;
        ``needed``: its calls without the sample's, over the rows that thresholds leave to it.
    """
    table = drawn(settings, seed, kind)
    scores, kept = table["score"].to_numpy(), table["kept"].to_numpy()
    clock = VirtualClock()
    stages = Clocked(clock)
    made = millrace.cascade(
        stages.score,
        millrace.predicate(stages.costly, kind="arrow", name="costly"),
        recall=settings["recall"],
        precision=settings["precision"],
        confidence=settings["confidence"],
        kind="arrow",
    )
    places = np.random.default_rng((seed, 1)).choice(len(kept), settings["sample"], replace=False)
    fitted = made.fit([table[name].take(places).combine_chunks() for name in _COLUMNS], PlainValues())
    sampled = stages.asked
    if settings.ablated == NO_MARGIN:
        known = places[~np.isnan(scores[places])]
        fitted = FittedCascade(made, in_the_sample(scores[known], kept[known], made.recall, made.precision))
    arguments = tuple(Column(ColumnRef("t", name)) for name in _COLUMNS)
    calls = [Call(applied.spec, arguments) for applied in fitted(*_COLUMNS)]
    backwards = settings.ablated == BACKWARDS
    spec = block({"t": table}, predicates=calls[::-1] if backwards else calls, all_columns=True)
    options = Options(architecture="static" if backwards else "stems", batch_size=settings["batch"])
    run = run_of(spec, {"t": batches(table, options.batch_size)}, options, clock=clock)
    passed = [result["t_kept"].to_numpy(zero_copy_only=False) for result in run.run()]
    right, rows = sum(int(each.sum()) for each in passed), sum(map(len, passed))
    low, high = fitted.thresholds.low, fitted.thresholds.high
    unsure = ~(scores < low) & ~(scores >= high)
    return {
        "recall": right / kept.sum(),
        "precision": right / rows,
        "asked": stages.asked / len(kept),
        "needed": (stages.asked - sampled) / unsure.sum(),
    }


def run(settings: Settings) -> Outcome:
    """Filter data sets of both kinds; those of seed 0 have the seeds 0, 1, 2, …"""
    many = settings["sets"]
    seeds = range(settings.seed * many, (settings.seed + 1) * many)
    found = {kind: [filtered(settings, seed, kind) for seed in seeds] for kind in (GRADED, COARSE)}
    held = [
        fmean([all(one[name] >= settings[name] for name in ("recall", "precision")) for one in each])
        for each in found.values()
    ]
    figures = {
        "held": min(held),
        "asked": fmean(one["asked"] for one in found[GRADED]),
        "needed": max(fmean(one["needed"] for one in each) for each in found.values()),
    }

    def panel(name: str, label: str) -> Panel:
        """Return the values of all data sets in ascending order."""
        values = {kind: sorted(one[name] for one in each) for kind, each in found.items()}
        x_label = "data sets, in ascending order"
        return Panel.over(name, x_label, label, range(1, many + 1), values, kind="points")

    panels = [panel(name, f"{name} on all rows") for name in ("recall", "precision")]
    return Outcome([*panels, panel("asked", "costly calls over rows")], figures)
