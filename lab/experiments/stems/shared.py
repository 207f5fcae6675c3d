"""SteMs shared by concurrent queries: R joined with S and T, where each query wants a part of R and of T.

"A SteM can also be used to share work and storage across concurrent queries" (section 2.2). Standing queries
come one after the other to the same data; their tuples say which of them may want it (Madden et al. 2002).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow as pa

from lab.experiments.experiment import Outcome, Panel, Settings
from lab.experiments.lab.chain import chain
from millrace.engine.expressions import Column, ColumnRef, Compare, Literal
from millrace.errors import ExecutionError
from millrace.options import Options
from millrace.streams.hub.eddies import Eddies
from millrace.streams.hub.lineage import Lineages, carrying
from millrace.streams.hub.query import StandingQuery
from millrace.streams.hub.registry import Change, Registry
from millrace.streams.hub.task import Hub
from millrace.streams.task import Stream

ALONE, BLIND = "alone", "blind"
_NAMES = ("R", "S", "T")
_WANTED = 0.125
"""Share of R, and of T, that a query wants."""

_BATCHES = 20
_REAL = pa.float64()


def _tables(tuples: int, seed: int) -> dict[str, pa.RecordBatch]:
    """Return three relations with about one match a key, each with a number to choose by, from 0 to 1."""
    random = np.random.default_rng(seed)
    times = pa.array(np.zeros(tuples, np.int64)).cast(pa.timestamp("us", "UTC"))
    made = {}
    for name, keys in (("R", ("a",)), ("S", ("a", "b")), ("T", ("b",))):
        columns = {key: random.integers(0, tuples, tuples) for key in keys}
        made[name] = pa.record_batch({**columns, "x": random.random(tuples), "t": times})
    return made


def _standing(number: int, begins: tuple[float, float]) -> StandingQuery:
    """Return the query that wants parts of R and of T, by where they begin."""
    filters = []
    for alias, low in zip(("R", "T"), begins, strict=True):
        x = Column(ColumnRef(alias, "x"))
        filters += [Compare(">=", x, Literal(low, _REAL), _REAL)]
        filters += [Compare("<", x, Literal(low + _WANTED, _REAL), _REAL)]
    columns = (ColumnRef("R", "x"), ColumnRef("T", "x"))
    schema = pa.schema([("r", _REAL), ("t", _REAL)])
    return StandingQuery(number, f"q{number}", tuple(filters), (), columns, schema, _NAMES)


def _work(
    tables: Mapping[str, pa.RecordBatch], queries: Sequence[StandingQuery], *, blind: bool = False
) -> Counter[str]:
    """Let some queries share an eddy; return tuples stored, probes, results, and rows by query."""
    join = replace(chain({name: pa.table(table) for name, table in tables.items()}), count_only=False)
    streams = tuple(Stream(name, number, "t", 0) for number, name in enumerate(_NAMES))
    options = Options(architecture="stems", policy="fixed", order=_NAMES, batch_size=1000)
    hub = Hub("shared", join, streams, {}, options, 1, "1 cell")
    registry = Registry().after([Change(number, query) for number, query in enumerate(queries, 1)], 0, None)
    lineages, eddies = Lineages(hub.streams, registry), Eddies(hub, registry)
    done: Counter[str] = Counter()
    size = -(-tables["R"].num_rows // _BATCHES)
    for first in range(0, tables["R"].num_rows, size):
        arrived = {}
        for stream in hub.streams:
            rows = tables[stream.alias].slice(first, size)
            lineage = lineages.of(stream, rows, 1)
            if blind:
                lineage[lineage.any(axis=1)] = lineage.max()
            arrived[stream.alias] = carrying(rows, lineage)
        for results in eddies.extend(arrived):
            for query, rows in zip(results["query"].to_pylist(), results["rows"].to_pylist(), strict=True):
                done[f"query {query}"] += rows
    figures = eddies.figures(0)
    done["stored"] = sum(each.tuples for each in figures.state)
    done["probes"] = sum(each.tuples_in for each in figures.modules if each.action == "probe")
    done["results"] = figures.output_tuples
    return done


def run(settings: Settings) -> Outcome:
    """Run up to so many queries, together and each by itself."""
    most, tuples, broken = settings["queries"], settings["tuples"], settings.ablated
    tables = _tables(tuples, settings.seed)
    drawn = np.random.default_rng([settings.seed, 1]).random((most, 2)) * (1 - _WANTED)
    begins = [(float(r), float(t)) for r, t in drawn]
    queries = [_standing(number, each) for number, each in enumerate(begins, 1)]
    ran = [_work(tables, [query]) for query in queries]
    numbers = [2**step for step in range(most.bit_length()) if 2**step <= most]
    apart = [sum(ran[:number], Counter[str]()) for number in numbers]
    together = [_work(tables, queries[:number], blind=broken == BLIND) for number in numbers]
    if broken == ALONE:
        together = apart
    wanted = _answer(tables, begins[: numbers[-1]])
    for each, rows in enumerate(wanted.sum(axis=0), 1):
        for found in (ran[each - 1], together[-1]):
            if not broken and found[f"query {each}"] != rows:
                raise ExecutionError(f"query {each} has {found[f'query {each}']} rows, expected {rows}")
    shared, alone = together[-1], apart[-1]
    figures = {
        "stored_over_tables": shared["stored"] / (tuples * len(_NAMES)),
        "stored_alone_over_shared": alone["stored"] / shared["stored"],
        "probes_alone_over_shared": alone["probes"] / shared["probes"],
        "results_over_wanted": shared["results"] / int(wanted.any(axis=1).sum()),
    }

    def panel(title: str, key: str) -> Panel:
        curves = {"one eddy": together, "an eddy each": apart}
        counts = {name: [each[key] for each in done] for name, done in curves.items()}
        return Panel.over(title, "queries", "tuples", numbers, counts)

    return Outcome([panel("Tuples that are stored", "stored"), panel("Tuples that probe", "probes")], figures)


def _answer(tables: Mapping[str, pa.RecordBatch], begins: Sequence[tuple[float, float]]) -> np.ndarray:
    """Return, by pandas, which queries want each result of the join: a row a result, a column a query."""
    frames = {name: table.select([*table.schema.names[:-1]]).to_pandas() for name, table in tables.items()}
    s = frames["S"].drop(columns="x")
    joined = pd.merge(pd.merge(frames["R"], s, on="a"), frames["T"], on="b", suffixes=("_r", "_t"))
    x_r, x_t = joined["x_r"], joined["x_t"]
    inside = [(x_r >= r) & (x_r < r + _WANTED) & (x_t >= t) & (x_t < t + _WANTED) for r, t in begins]
    found: np.ndarray = np.column_stack(inside)
    return found
