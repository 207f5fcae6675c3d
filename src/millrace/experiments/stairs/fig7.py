"""Figure 7: the TPC-H query, where statistics mislead at first.

(i) What each architecture works in all, (ii) what moving state costs and spares, if it is forbidden before x
percent of the orders, and (iii) what has come of all work by when.
"""

from __future__ import annotations

import numpy as np

from millrace.experiments.experiment import Curve, Outcome, Panel, Settings
from millrace.experiments.lab.run import share_of
from millrace.experiments.stairs import tpch
from millrace.experiments.stairs.costs import Costs
from millrace.experiments.stairs.query import HELD, STILL, always, never
from millrace.experiments.stairs.side import Work
from millrace.experiments.stairs.tpch import CUSTOMER_FIRST, LINEITEM_FIRST

BEST, WORST, JOINS, STEMS = "SHJ, best plan", "SHJ, worst plan", "EddyJoins", "SteMs"
STAIRS, EAGER, HASTY = "STAIRs", "STAIRs, eager", "hasty"
_WORK = "work, seconds of the virtual clock"


def works_of(settings: Settings, looks: int) -> dict[str, Work]:
    """Run every side, looking at the time about so often."""
    query = tpch.query(settings.seed, settings["scale"], settings.whole("batch"))
    migration, eager = ("never", "never") if settings.ablated == STILL else (None, "eager")
    held = always if settings.ablated == HELD else never
    sides = {
        BEST: ("static", None, CUSTOMER_FIRST),
        STAIRS: ("stairs", migration, LINEITEM_FIRST),
        EAGER: ("stairs", eager, LINEITEM_FIRST),
        JOINS: ("joins", None, LINEITEM_FIRST),
        STEMS: ("stems", None, LINEITEM_FIRST),
        WORST: ("static", None, LINEITEM_FIRST),
    }
    works = {}
    for name, (architecture, moving, order) in sides.items():
        works[name] = query.work(architecture, moving, order=order, held=held, looks=looks)
        settings.progress(len(works) / len(sides))
    return works


def in_all(settings: Settings) -> Outcome:
    """Compare what is worked in all."""
    works = works_of(settings, looks=32)
    seconds = {name: work.seconds for name, work in works.items()}
    figures = {
        "stairs_vs_best": seconds[STAIRS] / seconds[BEST],
        "eager_vs_best": seconds[EAGER] / seconds[BEST],
        "eddyjoins_vs_stairs": seconds[JOINS] / seconds[STAIRS],
        "stems_vs_stairs": seconds[STEMS] / seconds[STAIRS],
        "worst_vs_best": seconds[WORST] / seconds[BEST],
        "behind": min(seconds[JOINS], seconds[STEMS]) / seconds[STAIRS],
        "next_worst": seconds[WORST] / max(value for name, value in seconds.items() if name != WORST),
        "switch": share_of(works[JOINS].figures, "orders", "lineitem"),
    }
    return Outcome([Panel.bars("Execution cost", _WORK, seconds, "work")], figures)


def over_time(settings: Settings) -> Outcome:
    """Compare when a half and three quarters of the results were there."""
    works = works_of(settings, looks=200)
    del works[EAGER]
    curves = [Curve(name, *zip(*work.curve, strict=True)) for name, work in works.items()]
    others = [name for name in works if name not in (BEST, STAIRS)]
    figures = {}
    for share in (0.5, 0.75):
        at = {name: reached(work, share) for name, work in works.items()}
        figures[f"stairs_vs_best_{share:.0%}"] = at[STAIRS] / at[BEST]
        figures[f"next_vs_stairs_{share:.0%}"] = min(at[name] for name in others) / at[STAIRS]
    return Outcome([Panel("Output over time", _WORK, "result tuples", curves, "steps")], figures)


def reached(work: Work, share: float) -> float:
    """Return the seconds after which a share of the results was there."""
    seconds, rows = (np.array(each, float) for each in zip(*work.curve, strict=True))
    return float(np.interp(share * rows[-1], rows, seconds))


def moving(work: Work, costs: Costs) -> float:
    """Return the seconds that a run has spent on moving state."""
    held = [state for state in work.figures.state if state.name.startswith("STAIR(")]
    promoted, demoted = sum(s.promoted for s in held), sum(s.demoted for s in held)
    # A promoted tuple probes, and is inserted where it goes; each match is made and inserted.
    total = (costs.promote + costs.insert) * promoted + costs.demote * demoted
    return total + (costs.match + costs.insert) * work.figures.recomputed_tuples


def moving_late(settings: Settings) -> Outcome:
    """Compare what moving state costs and spares, if it is forbidden before x percent of the orders."""
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
        _WORK,
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
