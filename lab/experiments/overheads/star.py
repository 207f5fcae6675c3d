"""Figures 6 and 7: star joins of three, four and five Wisconsin tables on unique2, each with the first one.

In figure 6 by symmetric hash joins, routed by an eddy and in a static plan; in figure 7 by index joins, where
the first table's predicate leaves few tuples of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import pyarrow as pa

from lab.experiments.experiment import Outcome, Settings
from lab.experiments.lab.block import block
from lab.experiments.overheads.sweep import Query, outcome, sweep
from lab.experiments.overheads.wisconsin import wisconsin
from millrace.engine.arrivals.access_methods import Access
from millrace.engine.arrivals.access_modules import Index
from millrace.engine.spec import JoinSpec
from millrace.limits.clock import WallClock

KEY = "unique2"
WAYS = (3, 4, 5)
MODULO = (10, 1000)
"""X of ``unique2 % X = 0``, the predicate on the first table."""


def drawn(prefix: str, settings: Settings) -> dict[str, pa.Table]:
    """Return ``tenk1`` and so on."""
    seeds = {f"{prefix}{number + 1}": [settings.seed, number] for number in range(max(WAYS))}
    return {alias: wisconsin(settings["tuples"], seed) for alias, seed in seeds.items()}


def star(tables: Mapping[str, pa.Table], *, count: bool) -> JoinSpec:
    """Return the block over tables, the first one the middle of the star.

    It returns ``count(*)``, which reads the keys alone, or ``*``, all columns of all tables.
    """
    first, *others = tables
    return block(tables, *(f"{first}.{KEY} = {other}.{KEY}" for other in others), all_columns=not count)


def fig6(settings: Settings) -> Outcome:
    """Measure Select-Count-3 to Select-All-5."""
    whole = drawn("tenk", settings)
    swept = {}
    for what, columns in (("count", [KEY]), ("all", None)):
        for ways in WAYS:
            tables = {
                alias: whole[alias].select(columns or whole[alias].column_names) for alias in [*whole][:ways]
            }
            query = Query(f"{what} {ways}", star(tables, count=what == "count"), tables, "joins")
            swept[query.name] = sweep(query, settings)
    return outcome(swept, "count 3")


def fig7(settings: Settings) -> Outcome:
    """Measure 3-10 to 5-1000."""
    whole = drawn("hundredk", settings)
    first, *others = whole
    indexed = {alias: whole[alias].combine_chunks().to_batches()[0] for alias in others}
    swept = {}
    for modulo in MODULO:
        left = whole[first].take(list(range(0, settings["tuples"], modulo)))
        for ways in WAYS:
            asked = {alias: indexed[alias] for alias in others[: ways - 1]}
            spec = star({first: left, **{alias: whole[alias] for alias in asked}}, count=False)
            access = partial(_indexes, asked)
            query = Query(f"{ways}-{modulo}", spec, {first: left}, "joins", access=access)
            swept[query.name] = sweep(query, settings)
    return outcome(swept, f"3-{MODULO[0]}")


def _indexes(tables: Mapping[str, pa.RecordBatch]) -> Access:
    """Return an index on the key of each table."""
    clock = WallClock()
    return {
        alias: [Index(f"{alias}({KEY})", (KEY,), partial(_find, t), clock)] for alias, t in tables.items()
    }


def _find(table: pa.RecordBatch, bindings: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows of a table by their keys, which are their numbers: an index that was there before."""
    return table.take(bindings.column(KEY))
