"""An input that is late: what eddies of 2000 pay for, SteMs do not know and STAIRs put right.

Avnur & Hellerstein 2000, section 4.4 and figures 12 and 13, leave it as a problem: while R is silent, R ⋈ S
gives nothing back, so a lottery sends S there. When R comes, all of these S tuples join with it before T has
thinned them out, whatever the eddy has learned meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from millrace.experiments.eddies.delayed import VERSION
from millrace.experiments.eddies.three_tables import spec_of, tables
from millrace.experiments.experiment import Check, Experiment, Outcome, Panel, Parameter, Settings
from millrace.experiments.lab.run import share_of
from millrace.experiments.stairs.arriving import Arriving, Stream
from millrace.experiments.stairs.query import Query

T_FIRST, R_FIRST = ("R", ("S", "T")), (("R", "S"), "T")
LOTTERY = "windowed_lottery"
_EARLY = 0.43
"""Share of S that comes while R is silent: 43 % on the x axis of figure 13."""


def arriving(settings: Settings, *, delayed: bool) -> Query:
    """Return figure 12's query, where S and T come from the beginning on and R may be late."""
    data = tables(VERSION, settings["scale"], settings.seed)
    delay = settings["delay"]
    rate = data["S"].num_rows * _EARLY / delay
    streams = {
        alias: Stream(
            table, np.ones(table.num_rows, np.bool_), rate, delay if delayed and alias == "R" else 0.0
        )
        for alias, table in data.items()
    }
    return Query(spec_of(data), streams, settings.whole("batch"), results(data))


def results(data: Mapping[str, pa.Table]) -> int:
    """Count the results of R ⋈ S ⋈ T."""
    a, b = (np.asarray(data["S"].column(name)) for name in "ab")
    meets_r = np.bincount(np.asarray(data["R"].column("a")), minlength=int(a.max()) + 1)
    meets_t = np.bincount(np.asarray(data["T"].column("b")), minlength=int(b.max()) + 1)
    return int((meets_r[a] * meets_t[b]).sum())


def silent(now: Arriving) -> bool:
    """Whether nothing of R has come: until then R ⋈ S looks free."""
    return not now.read["R"]


def run(settings: Settings) -> Outcome:
    """Run the experiment."""
    late, early = (arriving(settings, delayed=delayed) for delayed in (True, False))
    migration, eager = ("never", "never") if settings.ablated else (None, "eager")
    works = {
        "SHJ, S ⋈ T first": late.work("static", order=T_FIRST),
        "SHJ, R ⋈ S first": late.work("static", order=R_FIRST),
        "eddy 2000, no delay": early.work("joins", order=T_FIRST, policy=LOTTERY),
        "eddy 2000": late.work("joins", order=T_FIRST, policy=LOTTERY),
        "EddyJoins, misled": late.work("joins", order=R_FIRST, held=silent),
        "SteMs": late.work("stems", order=T_FIRST),
        "SteMs, misled": late.work("stems", order=R_FIRST, held=silent),
        "STAIRs": late.work("stairs", migration, order=T_FIRST),
        "STAIRs, misled": late.work("stairs", eager, order=R_FIRST, held=silent),
    }
    seconds = {name: work.seconds for name, work in works.items()}
    lured = share_of(works["eddy 2000"].figures, "S", "R")
    calm = share_of(works["eddy 2000, no delay"].figures, "S", "R")
    best = seconds["SHJ, S ⋈ T first"]
    made = {name: work.figures.intermediate_tuples for name, work in works.items()}
    panels = [
        Panel.bars(title, label, each)
        for title, label, each in (
            ("Execution cost", "work, seconds of the virtual clock", seconds),
            ("Intermediate tuples", "tuples", made),
        )
    ]
    figures = {
        "lured": lured,
        "lured_without_delay": calm,
        "eddy_vs_best": seconds["eddy 2000"] / best,
        "misled_eddyjoins_vs_best": seconds["EddyJoins, misled"] / best,
        "misled_stems_vs_stems": seconds["SteMs, misled"] / seconds["SteMs"],
        "misled_stairs_vs_best": seconds["STAIRs, misled"] / best,
        "stairs_vs_best": seconds["STAIRs"] / best,
    }
    return Outcome(panels, figures, _checks(figures))


def _checks(found: dict[str, float]) -> list[Check]:
    return [
        # The rest of S comes when R does, and goes the right way as a rule.
        Check(
            "the lottery sends S to the silent R",
            found["lured"] >= found["lured_without_delay"] + 0.15,
            f"{found['lured']:.0%} of S, {found['lured_without_delay']:.0%} where R is not late",
        ),
        # Of all work the two orders differ in less than half, and S from later on goes the right way.
        Check(
            "which an eddy of joins pays for later",
            min(found["eddy_vs_best"], found["misled_eddyjoins_vs_best"]) >= 1.1,
            f"{found['eddy_vs_best']:.2f} times the work of the better plan; "
            f"{found['misled_eddyjoins_vs_best']:.2f} times where all of S went there until R came",
        ),
        Check(
            "what SteMs work does not depend on where S went meanwhile",
            abs(found["misled_stems_vs_stems"] - 1) <= 0.05,
            f"{found['misled_stems_vs_stems']:.3f} of the work",
        ),
        # A tuple moved costs little less than what it spares here, where it meets one tuple of R.
        Check(
            "STAIRs that went the same wrong way get some of it back",
            found["misled_stairs_vs_best"] <= found["misled_eddyjoins_vs_best"] - 0.01,
            f"{found['misled_stairs_vs_best']:.2f} times the work of the better plan",
        ),
        Check(
            "and left to themselves, which is by samples, they do not go it",
            found["stairs_vs_best"] <= 1.05,
            f"{found['stairs_vs_best']:.2f} times the work of the better plan",
        ),
    ]


EXPERIMENT = Experiment(
    id="beyond-initial-delay",
    title="An input that is late",
    source="Avnur & Hellerstein 2000, section 4.4, figures 12 and 13; Deshpande 2004, section 3.2",
    claim="While R is silent, the eddy of 2000 sends S to the join with R, which seems to cost nothing, and "
    "pays when R comes. With SteMs it does not matter where S went meanwhile; STAIRs that were misled move "
    "state, and their own policy is not misled.",
    mechanism="state migration; without it STAIRs are EddyJoins",
    parameters=(
        Parameter("scale", 1.0, 0.02, 10.0, "", "of all tables: R and T 10,000 tuples, S 80,000"),
        Parameter("delay", 10.0, 0.1, 1000.0, "s", "before the first tuple of R"),
        Parameter("batch", 500, 10, 10_000, "tuples", "that come at a time, and for which a decision holds"),
    ),
    run=run,
)
