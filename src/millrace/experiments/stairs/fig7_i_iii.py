"""Figures 7 (i) and (iii): the TPC-H query, where statistics mislead at first.

What each architecture works in all, and what has come of it by when.
"""

from __future__ import annotations

import numpy as np

from millrace.experiments.experiment import Curve, Outcome, Panel, Settings
from millrace.experiments.lab.run import share_of
from millrace.experiments.stairs import tpch
from millrace.experiments.stairs.query import HELD, STILL, always, never
from millrace.experiments.stairs.side import Work
from millrace.experiments.stairs.tpch import CUSTOMER_FIRST, LINEITEM_FIRST

BEST, WORST, JOINS, STEMS = "SHJ, best plan", "SHJ, worst plan", "EddyJoins", "SteMs"
STAIRS, EAGER = "STAIRs", "STAIRs, eager"
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
