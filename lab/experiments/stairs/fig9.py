"""Figure 9: data with two horizontal partitions, for which no single plan is right."""

from __future__ import annotations

import pyarrow as pa

from lab.benchmarks import state_data
from lab.experiments.experiment import Outcome, Settings
from lab.experiments.lab.arriving import Stream
from lab.experiments.lab.block import block
from lab.experiments.lab.work import HELD, Query, always, never, panels

T_FIRST, R_FIRST = ("r", ("s", "t")), (("r", "s"), "t")
EVERY_BATCH = "hasty"


def drifting(seed: int, rows: int, batch: int) -> Query:
    """Return R ⋈ S ⋈ T: in the first half each S joins 5 R and no T, in the second half no R and 5 T."""
    tables = state_data.drift(rows, seed)
    joined = pa.Table.join
    both = joined(tables["r"], tables["s"], "a", join_type="inner")
    results = int(joined(both, tables["t"], "b", join_type="inner").num_rows)
    streams = {alias: Stream(table, table.num_rows) for alias, table in tables.items()}
    return Query(block(tables, "r.a = s.a", "s.b = t.b"), streams, batch, results)


def run(settings: Settings) -> Outcome:
    """Run the experiment."""
    query = drifting(settings.seed, settings["rows"], settings["batch"])
    held = always if settings.ablated == HELD else never
    eager = "eager" if settings.ablated == EVERY_BATCH else None
    works = {
        "SHJ, S ⋈ T first": query.work("static", order=T_FIRST),
        "SHJ, R ⋈ S first": query.work("static", order=R_FIRST),
        "SteMs": query.work("stems", order=R_FIRST, held=held),
        "EddyJoins": query.work("joins", order=R_FIRST, held=held),
        "STAIRs": query.work("stairs", eager, order=R_FIRST, held=held),
    }
    one, other, stems, joins, stairs = (work.seconds for work in works.values())
    made = [work.figures.intermediate_tuples for work in works.values()]
    best = min(one, other)
    figures = {
        "eddyjoins_vs_best": joins / best,
        "stairs_vs_best": stairs / best,
        "stairs_vs_eddyjoins": (stairs / best) / (joins / best),
        "stems_vs_best": stems / best,
        "intermediate_vs_best": made[-1] / max(1, min(made[:2])),
    }
    return Outcome(panels(works), figures)
