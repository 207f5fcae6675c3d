"""Figure 7 (ii): what moving state costs and spares, if it is forbidden before x percent of the orders."""

from __future__ import annotations

import numpy as np

from millrace.experiments.experiment import Curve, Outcome, Panel, Settings
from millrace.experiments.stairs import tpch
from millrace.experiments.stairs.costs import Costs
from millrace.experiments.stairs.query import STILL
from millrace.experiments.stairs.side import Work
from millrace.experiments.stairs.tpch import LINEITEM_FIRST

HASTY = "hasty"
JOINS, EAGER, STAIRS = "EddyJoins", "STAIRs, eager", "STAIRs"


def moving(work: Work, costs: Costs) -> float:
    """Return the seconds that a run has spent on moving state."""
    held = [state for state in work.figures.state if state.name.startswith("STAIR(")]
    promoted, demoted = sum(s.promoted for s in held), sum(s.demoted for s in held)
    # A promoted tuple probes, and is inserted where it goes; each match is made and inserted.
    total = (costs.promote + costs.insert) * promoted + costs.demote * demoted
    return total + (costs.match + costs.insert) * work.figures.recomputed_tuples


def run(settings: Settings) -> Outcome:
    """Run the experiment."""
    query = tpch.query(settings.seed, settings["scale"], settings.whole("batch"))
    shares = np.linspace(0, 1, settings.whole("points"))
    eager, default = ("never", "never") if settings.ablated == STILL else ("eager", None)
    if settings.ablated == HASTY:
        default = "eager"
    sides = {JOINS: ("joins", None), EAGER: ("stairs", eager), STAIRS: ("stairs", default)}
    works: dict[str, list[Work]] = {name: [] for name in sides}
    for number, share in enumerate(shares):
        for name, (architecture, migration) in sides.items():
            held = tpch.before(float(share), query)
            works[name].append(query.work(architecture, migration, order=LINEITEM_FIRST, held=held))
        settings.progress((number + 1) / len(shares))
    seconds = {name: np.array([work.seconds for work in each]) for name, each in works.items()}
    moved = np.array([moving(work, Costs()) for work in works[EAGER]])
    percent = (100 * shares).tolist()
    panel = Panel(
        "Cost of state migration",
        "nothing may be changed before so many orders, %",
        "work, seconds of the virtual clock",
        [
            *(Curve(name, percent, each.tolist()) for name, each in seconds.items()),
            Curve("of it moving, eager", percent, moved.tolist()),
        ],
    )
    early = shares <= 0.5
    # An order waits for four lines, each of which spares three operations if it has moved. To move it takes
    # two, and one more for each line that it has met: that pays as long as a quarter of the lines is to come.
    later = (shares > 0.58) & (shares < 0.72)
    at_switch = float(moved[0] / seconds[EAGER][0])
    steady = max(np.ptp(each[early]) / each[0] for each in seconds.values())
    lead = seconds[JOINS] / seconds[EAGER]
    worst = float((seconds[STAIRS] / seconds[JOINS]).max())
    figures = {
        "migration_share": at_switch,
        "lead_at_switch": float(lead[0]),
        "lead_at_end": float(lead[-1]),
        "least_lead": float(lead[early | later].min()),
        "lead_lost": float(lead[0] - lead[-1]),
        "steady": float(steady),
        "worst_default_vs_eddyjoins": worst,
    }
    return Outcome([panel], figures)
