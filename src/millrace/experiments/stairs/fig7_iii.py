"""Figure 7 (iii): result tuples over time for the TPC-H query."""

from __future__ import annotations

import numpy as np

from millrace.experiments.experiment import Curve, Outcome, Panel, Settings
from millrace.experiments.stairs import tpch
from millrace.experiments.stairs.fig7_i import BEST, JOINS, STAIRS, STEMS, WORST
from millrace.experiments.stairs.side import Work
from millrace.experiments.stairs.tpch import CUSTOMER_FIRST, LINEITEM_FIRST
from millrace.experiments.stated import stated

_LOOKS = 200


def run(settings: Settings) -> Outcome:
    """Run the experiment."""
    query = tpch.query(settings.seed, settings["scale"], settings.whole("batch"))
    sides = {
        BEST: ("static", None, CUSTOMER_FIRST),
        STAIRS: ("stairs", "never" if settings.ablated else None, LINEITEM_FIRST),
        JOINS: ("joins", None, LINEITEM_FIRST),
        STEMS: ("stems", None, LINEITEM_FIRST),
        WORST: ("static", None, LINEITEM_FIRST),
    }
    works = {}
    for name, (architecture, migration, order) in sides.items():
        works[name] = query.work(architecture, migration, order=order, looks=_LOOKS)
        settings.progress(len(works) / len(sides))
    panel = Panel(
        "Output over time",
        "work, seconds of the virtual clock",
        "result tuples",
        [Curve(name, *zip(*work.curve, strict=True)) for name, work in works.items()],
        kind="steps",
    )
    times = {share: {name: reached(work, share) for name, work in works.items()} for share in (0.5, 0.75)}
    others = [name for name in works if name not in (BEST, STAIRS)]
    figures = {}
    for share, at in times.items():
        figures[f"stairs_vs_best_{share:.0%}"] = at[STAIRS] / at[BEST]
        figures[f"next_vs_stairs_{share:.0%}"] = min(at[name] for name in others) / at[STAIRS]
    return Outcome([panel], figures)


def reached(work: Work, share: float) -> float:
    """Return the seconds after which a share of the results was there."""
    seconds, rows = (np.array(each, float) for each in zip(*work.curve, strict=True))
    return float(np.interp(share * rows[-1], rows, seconds))


EXPERIMENT = stated("stairs-fig7-iii", tpch.PARAMETERS, run)
