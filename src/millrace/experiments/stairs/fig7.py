"""Figure 7: the TPC-H query, where statistics mislead at first.

(i) What each architecture works in all, (ii) what moving state costs and spares, if it is forbidden before x
percent of the orders, and (iii) what has come of all work by when.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from millrace.experiments.experiment import Curve, Outcome, Panel, Settings
from millrace.experiments.lab.arriving import Arriving
from millrace.experiments.lab.costs import Prices
from millrace.experiments.lab.run import share_of
from millrace.experiments.lab.work import COST, HELD, STILL, Work, always, never
from millrace.experiments.stairs import tpch
from millrace.experiments.stairs.tpch import CUSTOMER_FIRST, LINEITEM_FIRST

BEST, WORST, JOINS, STEMS = "SHJ, best plan", "SHJ, worst plan", "EddyJoins", "SteMs"
STAIRS, EAGER, HASTY = "STAIRs", "STAIRs, eager", "hasty"


def works_of(settings: Settings, looks: int) -> dict[str, Work]:
    """Run every side, looking at the time about so often."""
    query = tpch.query(settings)
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
    return {
        name: query.work(architecture, moving, order=order, held=held, looks=looks)
        for name, (architecture, moving, order) in sides.items()
    }


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
    return Outcome([Panel.bars("Execution cost", COST, seconds, "work")], figures)


def over_time(settings: Settings) -> Outcome:
    """Compare when a half and three quarters of the results were there."""
    works = works_of(settings, looks=200)
    del works[EAGER]
    figures = {}
    for share in (0.5, 0.75):
        at = {name: reached(work, share) for name, work in works.items()}
        figures[f"stairs_vs_best_{share:.0%}"] = at[STAIRS] / at[BEST]
        others = [when for name, when in at.items() if name not in (BEST, STAIRS)]
        figures[f"next_vs_stairs_{share:.0%}"] = min(others) / at[STAIRS]
    curves = [Curve(name, *zip(*work.curve, strict=True)) for name, work in works.items()]
    return Outcome([Panel("Output over time", COST, "result tuples", curves, "steps")], figures)


def reached(work: Work, share: float) -> float:
    """Return the seconds after which a share of the results was there."""
    seconds, rows = (np.array(each, float) for each in zip(*work.curve, strict=True))
    return float(np.interp(share * rows[-1], rows, seconds))


def moving_late(settings: Settings) -> Outcome:
    """Compare what moving state costs and spares, if it is forbidden before x percent of the orders."""
    query = tpch.query(settings)
    orders = query.streams["orders"].table.num_rows
    shares = np.linspace(0, 1, settings["points"])
    eager, default = ("never", "never") if settings.ablated == STILL else ("eager", None)
    if settings.ablated == HASTY:
        default = "eager"
    sides = {JOINS: ("joins", None), EAGER: ("stairs", eager), STAIRS: ("stairs", default)}

    def before(until: float, arriving: Arriving) -> bool:
        return arriving.read["orders"] < until

    works = {
        name: [
            query.work(*side, order=LINEITEM_FIRST, held=partial(before, share * orders)) for share in shares
        ]
        for name, side in sides.items()
    }
    seconds = {name: np.array([work.seconds for work in each]) for name, each in works.items()}
    moved = np.array([Prices().moving(work.figures) for work in works[EAGER]])
    early = shares <= 0.5
    # An order waits for four lines, each of which spares three operations if it has moved. To move it takes
    # two, and one more for each line that it has met: that pays as long as a quarter of the lines is to come.
    later = (shares > 0.58) & (shares < 0.72)
    lead = seconds[JOINS] / seconds[EAGER]
    figures = {
        "migration_share": moved[0] / seconds[EAGER][0],
        "lead_at_switch": lead[0],
        "lead_at_end": lead[-1],
        "least_lead": lead[early | later].min(),
        "lead_lost": lead[0] - lead[-1],
        "steady": max(np.ptp(each[early]) / each[0] for each in seconds.values()),
        "worst_default_vs_eddyjoins": (seconds[STAIRS] / seconds[JOINS]).max(),
    }
    curves = {**seconds, "of it moving, eager": moved}
    label = "nothing may be changed before so many orders, %"
    return Outcome([Panel.over("Cost of state migration", label, COST, 100 * shares, curves)], figures)
