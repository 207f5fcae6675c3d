"""S is far larger than R and T, and only scanned: with a SteM on S, and without one.

Section 3.5 relaxes BuildFirst: "it might be better to build SteMs on the R and T tuples and probe the S
tuples directly into these two". Meanwhile a tuple of S may have to come back to a SteM that is not complete;
its LastMatchTimeStamp sees to it that it meets nothing twice.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from unittest import mock

import numpy as np
import pyarrow as pa

from millrace.arrivals.schedule import Schedule
from millrace.clock import VirtualClock
from millrace.experiments.eddies.joins import results, spec_of
from millrace.experiments.experiment import Outcome, Panel, Settings
from millrace.experiments.lab.costs import Costs
from millrace.experiments.lab.run import Finished, finish
from millrace.options import Options
from millrace.runs.eddy_run import EddyRun
from millrace.state.stem import SteM

BUILT, FORGETFUL = "built", "forgetful"
_MICRO = 1e-6
_BATCH = 100


def _tables(large: int, small: int, seed: int) -> dict[str, pa.Table]:
    random = np.random.default_rng(seed)
    keys = random.integers(0, small, (2, large))
    return {
        "R": pa.table({"a": random.permutation(small)}),
        "S": pa.table({"a": keys[0], "b": keys[1]}),
        "T": pa.table({"b": random.permutation(small)}),
    }


def _run(tables: dict[str, pa.Table], schedule: Schedule, seed: int) -> Finished:
    """Run the join; an insertion, a probe and a match take the same time."""
    costs = Costs()
    for number in range(len(tables)):
        costs.declare(("build", number), _MICRO)
        costs.declare(("probe", number), _MICRO, match=_MICRO)
    clock = VirtualClock(costs=costs)
    options = Options(architecture="stems", batch_size=_BATCH, transfer=False, seed=seed)
    sources = {alias: iter(table.to_batches(max_chunksize=_BATCH)) for alias, table in tables.items()}
    return finish(EddyRun(spec_of(tables), sources, options, clock=clock, schedule=schedule), clock)


def run(settings: Settings) -> Outcome:
    """Run the join with a SteM on S, and without: with S among the others, and after them."""
    large, small = settings.whole("large"), settings.whole("small")
    tables = _tables(large, small, settings.seed)
    # As many tuples of S come while the others do as of these together.
    weights = (1.0, 2.0, 1.0)
    unbuilt = None if settings.ablated == BUILT else 1
    start = SteM.start
    forgets = mock.patch.object(SteM, "start", lambda stem, batch: start(stem, replace(batch, seen=0)))
    ran = {}
    for name, schedule in (
        ("a SteM each", Schedule(None, True, (0, 1, 2), weights)),
        ("S has none", Schedule(unbuilt, True, (0, 1, 2), weights)),
        ("S has none, and comes last", Schedule(unbuilt, False, (0, 2, 1))),
    ):
        with forgets if settings.ablated == FORGETFUL else nullcontext():
            ran[name] = _run(tables, schedule, settings.seed)
        settings.progress(len(ran) / 3)
    stored = {name: sum(each.tuples for each in one.figures.state) for name, one in ran.items()}
    whole, among, last = ran.values()
    figures = {
        "stored_over_small": stored["S has none"] / (2 * small),
        "stored_ratio": stored["a SteM each"] / stored["S has none"],
        "time_ratio": among.seconds / whole.seconds,
        "time_ratio_last": last.seconds / whole.seconds,
        "results_over_answer": among.rows / results(tables),
    }
    panels = [
        Panel.bars("Tuples in SteMs at the end", "tuples", stored),
        Panel.bars("Work", "seconds of the virtual clock", {name: one.seconds for name, one in ran.items()}),
    ]
    return Outcome(panels, figures)
