"""An input that is late: what eddies of 2000 pay for, SteMs do not know and STAIRs put right.

Avnur & Hellerstein 2000, section 4.4 and figures 12 and 13, leave it as a problem: while R is silent, R ⋈ S
gives nothing back, so a lottery sends S there. When R comes, all of these S tuples join with it before T has
thinned them out, whatever the eddy has learned meanwhile.
"""

from __future__ import annotations

import numpy as np

from millrace.experiments.eddies.delayed import VERSION
from millrace.experiments.eddies.joins import results, spec_of, tables
from millrace.experiments.experiment import Outcome, Settings
from millrace.experiments.lab.run import share_of
from millrace.experiments.stairs.arriving import Arriving, Stream
from millrace.experiments.stairs.query import Query, always, panels

T_FIRST, R_FIRST = ("R", ("S", "T")), (("R", "S"), "T")
LOTTERY = "windowed_lottery"
STILL, PUNCTUAL, LURED, ONE_STEM = "never-moves", "punctual", "lured", "held"
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


def silent(now: Arriving) -> bool:
    """Whether nothing of R has come: until then R ⋈ S looks free."""
    return not now.read["R"]


def run(settings: Settings) -> Outcome:
    """Run the experiment."""
    late, early = (arriving(settings, delayed=delayed) for delayed in (True, False))
    migration, eager = ("never", "never") if settings.ablated == STILL else (None, "eager")
    if settings.ablated == LURED:
        migration = "never"
    works = {
        "SHJ, S ⋈ T first": late.work("static", order=T_FIRST),
        "SHJ, R ⋈ S first": late.work("static", order=R_FIRST),
        "eddy 2000, no delay": early.work("joins", order=T_FIRST, policy=LOTTERY),
        "eddy 2000": (early if settings.ablated == PUNCTUAL else late).work(
            "joins", order=T_FIRST, policy=LOTTERY
        ),
        "EddyJoins, misled": late.work("joins", order=R_FIRST, held=silent),
        "SteMs": late.work("stems", order=T_FIRST),
        "SteMs, misled": late.work(
            "stems", order=R_FIRST, held=always if settings.ablated == ONE_STEM else silent
        ),
        "STAIRs": late.work(
            "stairs", migration, order=T_FIRST, policy=LOTTERY if settings.ablated == LURED else None
        ),
        "STAIRs, misled and weighing": late.work("stairs", migration, order=R_FIRST, held=silent),
        "STAIRs, misled and eager": late.work("stairs", eager, order=R_FIRST, held=silent),
    }
    seconds = {name: work.seconds for name, work in works.items()}
    lured = share_of(works["eddy 2000"].figures, "S", "R")
    calm = share_of(works["eddy 2000, no delay"].figures, "S", "R")
    best = seconds["SHJ, S ⋈ T first"]
    figures = {
        "lured": lured,
        "lured_without_delay": calm,
        "eddy_vs_best": seconds["eddy 2000"] / best,
        "misled_eddyjoins_vs_best": seconds["EddyJoins, misled"] / best,
        "misled_stems_vs_stems": seconds["SteMs, misled"] / seconds["SteMs"],
        "misled_stairs_vs_best": seconds["STAIRs, misled and eager"] / best,
        "stairs_vs_best": seconds["STAIRs"] / best,
    }
    loss = seconds["EddyJoins, misled"] - best
    figures |= {
        "lured_more": lured - calm,
        "stems_moved": abs(figures["misled_stems_vs_stems"] - 1),
        "recovered": (seconds["EddyJoins, misled"] - seconds["STAIRs, misled and eager"]) / loss,
        "recovered_weighing": (seconds["EddyJoins, misled"] - seconds["STAIRs, misled and weighing"]) / loss,
        "loss": loss / best,
    }
    return Outcome(panels(works), figures)
