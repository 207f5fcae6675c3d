"""Sliding windows of different lengths, and what STAIRs store of intermediate tuples.

Deshpande & Hellerstein 2004, section 3.3: when a window slides, all intermediate tuples that contain what it
drops have to be removed, which "can be quite significant"; many systems therefore store none. STAIRs may
"store only long-living intermediate tuples". R has a window a hundredth as long as those of S and T, so that
tuples of R and S live for a short time, and tuples of S and T for long.
"""

from __future__ import annotations

from dataclasses import replace
from unittest import mock

import numpy as np
import pyarrow as pa

from millrace.errors import ExecutionError
from millrace.experiments.experiment import Outcome, Panel, Settings
from millrace.experiments.lab.arriving import Stream
from millrace.experiments.lab.chain import chain
from millrace.experiments.lab.costs import stairs_of
from millrace.experiments.lab.work import Query, Work, panels
from millrace.spec import Window
from millrace.state import materialization
from millrace.state.materialization import BaseTuplesOnly, LongLiving
from millrace.state.stair import STAIR
from millrace.trees import JoinTree
from millrace.tuples import TupleBatch

ALL, OWN, LONGEST, NONE = "all", "by own window", "by longest window", "none"
SHORT, LONG = 20, 2_000


def query(settings: Settings) -> Query:
    """Return R ⋈ S ⋈ T as streams of one tuple a tick each."""
    ticks = settings["ticks"]
    draw = np.random.default_rng(settings.seed)
    keys = {alias: draw.integers(0, 300, (2, ticks)) for alias in "RST"}
    tables = {
        alias: pa.table({"at": np.arange(ticks), "a": keys[alias][0], "b": keys[alias][1]}) for alias in "RST"
    }
    lengths = {"R": SHORT, "S": LONG, "T": LONG}
    spec = chain(tables)
    windowed = tuple(replace(each, window=Window("at", lengths[each.alias])) for each in spec.relations)
    streams = {alias: Stream(table) for alias, table in tables.items()}
    return Query(replace(spec, relations=windowed), streams, settings["batch"])


def work(found: Query, stored: str) -> Work:
    """Run STAIRs that store all intermediate tuples, none, or those that live for long by some measure."""

    class Storing(LongLiving):
        def parts(self, stair: STAIR, batch: TupleBatch, tree: JoinTree) -> list[TupleBatch] | None:
            if stored == ALL:
                return None
            if stored == NONE:
                return BaseTuplesOnly().parts(stair, batch, tree)
            return super().parts(stair, batch, tree)

    # To ask for half of the longest window is to ask for so many times the shortest.
    share = materialization.SHARE * (LONG / SHORT if stored == LONGEST else 1)
    with (
        mock.patch("millrace.architectures.stairs.LongLiving", Storing),
        mock.patch.object(materialization, "SHARE", share),
    ):
        return found.work("stairs", "never", order=("R", ("S", "T")))


def run(settings: Settings) -> Outcome:
    """Run the join with everything stored, with what lives for long, and with base tuples alone."""
    found, broken = query(settings), settings.ablated
    works = {
        name: work(found, broken or name if name in (OWN, LONGEST) else name)
        for name in (ALL, OWN, LONGEST, NONE)
    }
    if len({each.rows for each in works.values()}) > 1:
        raise ExecutionError(f"{[each.rows for each in works.values()]} results")
    seconds = {name: each.seconds for name, each in works.items()}
    gone = {name: sum(s.evicted for s in stairs_of(each.figures)) for name, each in works.items()}
    figures = {
        "deleted_over_read": gone[ALL] / (3 * settings["ticks"]),
        "own_deleted": gone[OWN] / gone[ALL],
        "longest_deleted": gone[LONGEST] / gone[ALL],
        "longest_over_all": seconds[LONGEST] / seconds[ALL],
        "longest_over_none": seconds[LONGEST] / seconds[NONE],
    }
    return Outcome([*panels(works), Panel.bars("Deletions from STAIRs", "tuples", gone)], figures)
