"""Figure 13: one table begins to arrive late: tuple movement."""

from __future__ import annotations

from millrace.experiments.eddies.delayed import EDDY, PARAMETERS_DELAYED, run_delayed
from millrace.experiments.experiment import Check, Curve, Experiment, Outcome, Panel, Settings

WRONG = 0.65
"""Least share of S that goes to the silent table first in the second half of the delay. Both joins seem to
drop tuples: that with T 80 %, that with R all of them, so that it wins slowly; and in the first half that
with T takes the tuples of T as well, which are tickets."""

CORRECTED = 0.3
"""Largest share behind the delay: R⋈S then keeps every tuple."""


def run(settings: Settings) -> Outcome:
    """Follow the tuples of S; ablated, R is not delayed."""
    moved = run_delayed(EDDY, settings, delayed=not settings.ablated)
    settings.progress(1.0)
    # The moment of the delay's end; without a delay, where it would be.
    until = moved.arrived or 0.4
    during, behind = moved.share_between(until / 2, until), moved.share_between(until, 1.0)
    checks = (
        Check(
            "while R is silent, the eddy favours the join with R",
            during >= WRONG,
            f"{during:.0%} of what was read in the second half of that time",
        ),
        Check(
            "when R begins to arrive, it throttles that join",
            behind <= CORRECTED,
            f"{behind:.0%} of what comes later",
        ),
    )
    panel = Panel(
        "Tuples of S that meet R first",
        "share of S read",
        "share that went to R⋈S first, so far",
        [Curve("eddy", moved.read, moved.r_first)],
        marks=[(moved.arrived, "R begins")],
    )
    figures = {"read_during_delay": moved.arrived, "share_during_delay": during, "share_behind": behind}
    return Outcome((panel,), figures, checks)


EXPERIMENT = Experiment(
    id="eddies-fig13",
    title="A table that comes late: tuple movement",
    source="Avnur & Hellerstein 2000, section 4.4, figure 13",
    claim="Early on the eddy incorrectly favours the join with R, although no R tuples are coming in and it "
    "should be the second; when they come, it quickly throttles it.",
    mechanism="R is not delayed",
    parameters=PARAMETERS_DELAYED,
    run=run,
)
