"""An input that is late: what eddies of 2000 pay for, SteMs do not know and STAIRs put right.

Avnur & Hellerstein 2000, section 4.4 and figures 12 and 13, leave it as a problem: while R is silent, R ⋈ S
gives nothing back, so a lottery sends S there. When R comes, all of these S tuples join with it before T has
thinned them out, whatever the eddy has learned meanwhile.
"""

from __future__ import annotations

from lab.experiments.experiment import Outcome, Settings
from lab.experiments.lab.arriving import Arriving, Stream
from lab.experiments.lab.chain import THINNING, chain, results, tables
from lab.experiments.lab.run import share_of
from lab.experiments.lab.work import HELD, STILL, Query, always, panels

T_FIRST, R_FIRST = ("R", ("S", "T")), (("R", "S"), "T")
LOTTERY = "windowed_lottery"
PUNCTUAL, LURED = "punctual", "lured"
_EARLY = 0.43
"""Share of S that comes while R is silent: 43 % on the x axis of figure 13."""


def arriving(settings: Settings, *, delayed: bool) -> Query:
    """Return figure 12's query, where S and T come from the beginning on and R may be late."""
    data = tables(THINNING, settings["scale"], settings.seed)
    rate = data["S"].num_rows * _EARLY / settings["delay"]
    delays = {"R": settings["delay"] if delayed else 0.0}
    streams = {alias: Stream(table, rate, delays.get(alias, 0.0)) for alias, table in data.items()}
    return Query(chain(data), streams, settings["batch"], results(data))


def silent(now: Arriving) -> bool:
    """Whether nothing of R has come: until then R ⋈ S looks free."""
    return not now.read["R"]


def run(settings: Settings) -> Outcome:
    """Run the experiment."""
    late, early = (arriving(settings, delayed=delayed) for delayed in (True, False))
    broken = settings.ablated
    migration, eager = ("never", "never") if broken == STILL else (None, "eager")
    lured = broken == LURED
    first = early if broken == PUNCTUAL else late
    misled = always if broken == HELD else silent
    works = {
        "SHJ, S ⋈ T first": late.work("static", order=T_FIRST),
        "SHJ, R ⋈ S first": late.work("static", order=R_FIRST),
        "eddy 2000, no delay": early.work("joins", order=T_FIRST, policy=LOTTERY),
        "eddy 2000": first.work("joins", order=T_FIRST, policy=LOTTERY),
        "EddyJoins, misled": late.work("joins", order=R_FIRST, held=silent),
        "SteMs": late.work("stems", order=T_FIRST),
        "SteMs, misled": late.work("stems", order=R_FIRST, held=misled),
        "STAIRs": late.work(
            "stairs", "never" if lured else migration, order=T_FIRST, policy=LOTTERY if lured else None
        ),
        "STAIRs, misled and weighing": late.work("stairs", migration, order=R_FIRST, held=silent),
        "STAIRs, misled and eager": late.work("stairs", eager, order=R_FIRST, held=silent),
    }
    seconds = {name: work.seconds for name, work in works.items()}
    sent = {name: share_of(works[name].figures, "S", "R") for name in ("eddy 2000", "eddy 2000, no delay")}
    best, joins, moved = (
        seconds[name] for name in ("SHJ, S ⋈ T first", "EddyJoins, misled", "STAIRs, misled and eager")
    )
    loss = joins - best
    figures = {
        "eddy_vs_best": seconds["eddy 2000"] / best,
        "stairs_vs_best": seconds["STAIRs"] / best,
        "lured_more": sent["eddy 2000"] - sent["eddy 2000, no delay"],
        "stems_moved": abs(seconds["SteMs, misled"] / seconds["SteMs"] - 1),
        "recovered": (joins - moved) / loss,
        "recovered_weighing": (joins - seconds["STAIRs, misled and weighing"]) / loss,
        "loss": loss / best,
    }
    return Outcome(panels(works), figures)
