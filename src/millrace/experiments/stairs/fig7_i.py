"""Figure 7 (i): what each architecture works for the TPC-H query, where statistics mislead at first."""

from __future__ import annotations

from millrace.experiments.experiment import Curve, Outcome, Panel, Settings
from millrace.experiments.lab.run import share_of
from millrace.experiments.stairs import tpch
from millrace.experiments.stairs.query import HELD, STILL, always, never
from millrace.experiments.stairs.tpch import CUSTOMER_FIRST, LINEITEM_FIRST
from millrace.experiments.stated import stated

BEST, WORST, JOINS, STEMS = "SHJ, best plan", "SHJ, worst plan", "EddyJoins", "SteMs"
STAIRS, EAGER = "STAIRs", "STAIRs, eager"


def run(settings: Settings) -> Outcome:
    """Run the experiment."""
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
        works[name] = query.work(architecture, moving, order=order, held=held)
        settings.progress(len(works) / len(sides))
    seconds = {name: work.seconds for name, work in works.items()}
    switch = share_of(works[JOINS].figures, "orders", "lineitem")
    panel = Panel(
        "Execution cost",
        "",
        "work, seconds of the virtual clock",
        [Curve("work", range(len(seconds)), list(seconds.values()))],
        kind="bars",
        x_names=list(seconds),
    )
    figures = {
        "stairs_vs_best": seconds[STAIRS] / seconds[BEST],
        "eager_vs_best": seconds[EAGER] / seconds[BEST],
        "eddyjoins_vs_stairs": seconds[JOINS] / seconds[STAIRS],
        "stems_vs_stairs": seconds[STEMS] / seconds[STAIRS],
        "worst_vs_best": seconds[WORST] / seconds[BEST],
        "behind": min(seconds[JOINS], seconds[STEMS]) / seconds[STAIRS],
        "next_worst": seconds[WORST] / max(value for name, value in seconds.items() if name != WORST),
        "switch": switch,
    }
    return Outcome([panel], figures)


EXPERIMENT = stated("stairs-fig7-i", tpch.PARAMETERS, run)
