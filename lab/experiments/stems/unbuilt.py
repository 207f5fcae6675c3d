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

from lab.experiments.experiment import Outcome, Panel, Settings
from lab.experiments.lab.chain import chain, results
from lab.experiments.lab.costs import MICRO, Costs
from lab.experiments.lab.run import all_batches, finish
from millrace.engine.arrivals.schedule import Schedule
from millrace.engine.runs.eddy_run import EddyRun
from millrace.engine.state.stem import SteM
from millrace.limits.clock import VirtualClock
from millrace.options import Options

BUILT, FORGETFUL = "built", "forgetful"
_BATCH = 100


def run(settings: Settings) -> Outcome:
    """Run the join with a SteM on S, and without: with S among the others, and after them."""
    random, small = np.random.default_rng(settings.seed), settings["small"]
    a, b = random.integers(0, small, (2, settings["large"]))
    r = pa.table({"a": random.permutation(small)})
    tables = {"R": r, "S": pa.table({"a": a, "b": b}), "T": pa.table({"b": random.permutation(small)})}
    # An insertion, a probe and a match take the same time.
    probes = dict.fromkeys([("probe", number) for number in range(3)], MICRO)
    costs = Costs({**probes, **{("build", number): MICRO for number in range(3)}}, probes)
    options = Options(architecture="stems", batch_size=_BATCH, transfer=False, seed=settings.seed)
    # As many tuples of S come while the others do as of these together.
    weights = (1.0, 2.0, 1.0)
    unbuilt = None if settings.ablated == BUILT else 1
    schedules = {
        "a SteM each": Schedule(None, True, (0, 1, 2), weights),
        "S has none": Schedule(unbuilt, True, (0, 1, 2), weights),
        "S has none, and comes last": Schedule(unbuilt, False, (0, 2, 1)),
    }
    start = SteM.start
    forgets = mock.patch.object(SteM, "start", lambda stem, batch: start(stem, replace(batch, seen=0)))
    ran = {}
    for name, schedule in schedules.items():
        clock = VirtualClock(costs=costs)
        eddy = EddyRun(chain(tables), all_batches(tables, _BATCH), options, clock=clock, schedule=schedule)
        with forgets if settings.ablated == FORGETFUL else nullcontext():
            ran[name] = finish(eddy, clock)
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
