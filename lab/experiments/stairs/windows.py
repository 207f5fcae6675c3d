"""Sliding windows of different lengths, and what STAIRs store of intermediate tuples.

Deshpande & Hellerstein 2004, section 3.3: when a window slides, all intermediate tuples that contain what it
drops have to be removed, which "can be quite significant"; many systems therefore store none. STAIRs may
"store only long-living intermediate tuples". R has a window a hundredth as long as those of S and T, so that
tuples of R and S live for a short time, and tuples of S and T for long.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from lab.experiments.experiment import Outcome, Panel, Settings
from lab.experiments.lab.arriving import Stream
from lab.experiments.lab.chain import chain
from lab.experiments.lab.costs import stairs_of
from lab.experiments.lab.work import Query, panels
from millrace.engine.spec import Window
from millrace.errors import ExecutionError

STORED: dict[str, dict[str, Any]] = {
    "all": {},
    "long-living": {"long_living": True},
    "none": {"intermediate": False},
}
"""Options by what is stored of intermediate tuples."""

LENGTHS = {"R": 20, "S": 2_000, "T": 2_000}


def query(settings: Settings) -> Query:
    """Return R ⋈ S ⋈ T as streams of one tuple a tick each."""
    ticks = settings["ticks"]
    draw = np.random.default_rng(settings.seed)
    keys = {alias: draw.integers(0, 300, (2, ticks)) for alias in LENGTHS}
    tables = {alias: pa.table({"at": np.arange(ticks), "a": a, "b": b}) for alias, (a, b) in keys.items()}
    spec = chain(tables)
    windowed = tuple(replace(each, window=Window("at", LENGTHS[each.alias])) for each in spec.relations)
    streams = {alias: Stream(table) for alias, table in tables.items()}
    return Query(replace(spec, relations=windowed), streams, settings["batch"])


def run(settings: Settings) -> Outcome:
    """Run the join with everything stored, with what lives for long, and with base tuples alone."""
    found = query(settings)
    played = {**STORED, "long-living": STORED[settings.ablated or "long-living"]}
    order = ("R", ("S", "T"))
    works = {name: found.work("stairs", "never", order=order, **each) for name, each in played.items()}
    if len({each.rows for each in works.values()}) > 1:
        raise ExecutionError(f"{[each.rows for each in works.values()]} results")
    gone = {name: sum(s.evicted for s in stairs_of(each.figures)) for name, each in works.items()}
    every, lasting, none = (each.seconds for each in works.values())
    figures = {
        "deleted": gone["long-living"] / gone["all"],
        "over_all": lasting / every,
        "over_none": lasting / none,
    }
    return Outcome([*panels(works), Panel.bars("Deletions from STAIRs", "tuples", gone)], figures)
