"""Figures 6 and 7: star joins of three, four and five Wisconsin tables on unique2, each with the first one.

In figure 6 by symmetric hash joins, routed by an eddy and in a static plan; in figure 7 by index joins, where
the first table's predicate leaves few tuples of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pyarrow as pa

from millrace.arrivals.access_methods import Access
from millrace.arrivals.access_modules import Index
from millrace.clock import WallClock
from millrace.experiments.experiment import Outcome, Settings
from millrace.experiments.lab.block import block
from millrace.experiments.overheads.sweep import Query, outcome, sweep
from millrace.experiments.overheads.wisconsin import wisconsin
from millrace.spec import JoinSpec

KEY = "unique2"
WAYS = (3, 4, 5)
MODULO = (10, 1000)
"""X of ``unique2 % X = 0``, the predicate on the first table."""


def aliases(prefix: str, ways: int) -> list[str]:
    """Return ``tenk1`` and so on."""
    return [f"{prefix}{number + 1}" for number in range(ways)]


def star(tables: Mapping[str, pa.Table], *, count: bool) -> JoinSpec:
    """Return the block: ``count(*)``, which reads the keys alone, or ``*``, all columns of all tables.

    Args:
        tables: By alias, the first one the middle of the star.
        count: Whether rows are only counted.
    """
    first, *others = tables
    return block(tables, *(f"{first}.{KEY} = {other}.{KEY}" for other in others), all_columns=not count)


def steps(progress: Callable[[float], None], total: int) -> Callable[[int], Callable[[float], None]]:
    """Return what makes, for the number of a step, a watch of its share."""
    return lambda number: lambda share: progress((number + share) / total)


def fig6(settings: Settings) -> Outcome:
    """Measure Select-Count-3 to Select-All-5."""
    names = aliases("tenk", max(WAYS))
    whole = {alias: wisconsin(settings.whole("tuples"), [settings.seed, i]) for i, alias in enumerate(names)}
    kinds = [(f"{what} {ways}", ways, what == "count") for what in ("count", "all") for ways in WAYS]
    step = steps(settings.progress, len(kinds))
    swept = {}
    for number, (name, ways, count) in enumerate(kinds):
        tables = {alias: whole[alias].select([KEY]) if count else whole[alias] for alias in names[:ways]}
        swept[name] = sweep(Query(name, star(tables, count=count), tables, "joins"), settings, step(number))
    return outcome(swept, "count 3")


def fig7(settings: Settings) -> Outcome:
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
        spec = star({**tables, names[0]: left}, count=False)
        asked = {alias: indexed[alias] for alias in names[1:ways]}
        query = Query(name, spec, {names[0]: left}, "joins", access=partial(_indexes, asked))
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
