"""Figure 9: data with two horizontal partitions, for which no single plan is right."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from millrace.benchmarks import state_data
from millrace.experiments.experiment import Outcome, Settings
from millrace.experiments.lab.block import block
from millrace.experiments.stairs.arriving import Stream
from millrace.experiments.stairs.query import HELD, Query, always, never, panels
from millrace.options import Order

ORDERS: tuple[Order, Order] = (("r", ("s", "t")), (("r", "s"), "t"))
EVERY_BATCH = "hasty"
JOINS, STEMS, STAIRS = "EddyJoins", "SteMs", "STAIRs"


def drifting(seed: int, rows: int, batch: int) -> Query:
    """Return R ⋈ S ⋈ T: in the first half each S joins 5 R and no T, in the second half no R and 5 T."""
    tables = state_data.drift(rows, seed)
    spec = block(tables, "r.a = s.a", "s.b = t.b")
    streams = {a: Stream(t, np.ones(t.num_rows, np.bool_), t.num_rows) for a, t in tables.items()}
    return Query(spec, streams, batch, results(tables))


def results(tables: state_data.Tables) -> int:
    """Count what the join returns."""
    joined = pa.Table.join
    both = joined(tables["r"], tables["s"], "a", join_type="inner")
    return int(joined(both, tables["t"], "b", join_type="inner").num_rows)


def run(settings: Settings) -> Outcome:
    """Run the experiment."""
    query = drifting(settings.seed, settings.whole("rows"), settings.whole("batch"))
    held = always if settings.ablated == HELD else never
    works = {
        f"SHJ, {name} first": query.work("static", order=order)
        for name, order in zip(("S ⋈ T", "R ⋈ S"), ORDERS, strict=True)
    }
    best = min(work.seconds for work in works.values())
    moving = {STAIRS: "eager"} if settings.ablated == EVERY_BATCH else {}
    for name, architecture in ((STEMS, "stems"), (JOINS, "joins"), (STAIRS, "stairs")):
        works[name] = query.work(architecture, moving.get(name), order=ORDERS[1], held=held)
        settings.progress(len(works) / 5)
    seconds = {name: work.seconds for name, work in works.items()}
    made = {name: work.figures.intermediate_tuples for name, work in works.items()}
    joins, stairs = seconds[JOINS] / best, seconds[STAIRS] / best
    figures = {
        "eddyjoins_vs_best": joins,
        "stairs_vs_best": stairs,
        "stairs_vs_eddyjoins": stairs / joins,
        "stems_vs_best": seconds[STEMS] / best,
        "intermediate_vs_best": made[STAIRS] / max(1, min(list(made.values())[:2])),
    }
    return Outcome(panels(works), figures)
