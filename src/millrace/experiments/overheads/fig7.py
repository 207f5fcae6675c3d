"""Figure 7: star joins by index joins; few tuples of the first table are left by its predicate."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import pyarrow as pa

from millrace.arrivals.access_methods import Access
from millrace.arrivals.access_modules import Index
from millrace.clock import WallClock
from millrace.experiments.experiment import Outcome, Parameter, Settings
from millrace.experiments.overheads.star import KEY, WAYS, aliases, star, steps
from millrace.experiments.overheads.sweep import ROUNDS, Query, outcome, sweep
from millrace.experiments.overheads.wisconsin import wisconsin
from millrace.experiments.stated import stated

MODULO = (10, 1000)
"""X of ``unique2 % X = 0``, the predicate on the first table."""


def run(settings: Settings) -> Outcome:
    """Measure 3-10 to 5-1000."""
    names = aliases("hundredk", max(WAYS))
    tuples = settings.whole("tuples")
    whole = {alias: wisconsin(tuples, [settings.seed, i]) for i, alias in enumerate(names)}
    indexed = {alias: table.combine_chunks().to_batches()[0] for alias, table in whole.items()}
    kinds = [(f"{ways}-{modulo}", ways, modulo) for modulo in MODULO for ways in WAYS]
    step = steps(settings.progress, len(kinds))
    swept = {}
    for number, (name, ways, modulo) in enumerate(kinds):
        tables = {alias: whole[alias] for alias in names[:ways]}
        left = whole[names[0]].take(list(range(0, tuples, modulo)))
        block = star({**tables, names[0]: left}, count=False)
        asked = {alias: indexed[alias] for alias in names[1:ways]}
        query = Query(name, block, {names[0]: left}, "joins", access=partial(_indexes, asked))
        swept[name] = sweep(query, settings, step(number))
    return outcome(swept, f"3-{MODULO[0]}")


def _indexes(tables: Mapping[str, pa.RecordBatch]) -> Access:
    """Return an index on the key of each table."""
    clock = WallClock()
    return {
        alias: [Index(f"{alias}({KEY})", (KEY,), partial(_find, t), clock)] for alias, t in tables.items()
    }


def _find(table: pa.RecordBatch, bindings: pa.RecordBatch) -> Any:
    """Return rows of a table by their keys, which are their numbers: an index that was there before."""
    return table.take(bindings.column(KEY))


EXPERIMENT = stated(
    "overheads-fig7",
    (
        Parameter("tuples", 100_000, 10_000, 1_000_000, "tuples", "in each of hundredk1 to hundredk5"),
        ROUNDS,
    ),
    run,
    wall=True,
)
