"""SteMs shared by concurrent queries: R joined with S and T, where each query wants a part of R and of T.

"A SteM can also be used to share work and storage across concurrent queries" (section 2.2). Standing queries
come one after the other to the same data; their tuples say which of them may want it (Madden et al. 2002).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow as pa

from millrace.errors import ExecutionError
from millrace.experiments.experiment import Curve, Outcome, Panel, Settings
from millrace.experiments.lab.block import block
from millrace.expressions import Column, ColumnRef, Compare, Literal
from millrace.options import Options
from millrace.standing.eddies import Eddies
from millrace.standing.lineage import Lineages, carrying
from millrace.standing.query import StandingQuery
from millrace.standing.registry import Change, Registry
from millrace.standing.task import Hub
from millrace.streams.task import Stream

ALONE, BLIND = "alone", "blind"
_NAMES = ("R", "S", "T")
_WANTED = 0.125
"""Share of R, and of T, that a query wants."""

_BATCHES = 20


def _tables(tuples: int, seed: int) -> dict[str, pa.RecordBatch]:
    """Return three relations with about one match a key, each with a number to choose by, from 0 to 1."""
    random = np.random.default_rng(seed)
    times = pa.array(np.zeros(tuples, np.int64)).cast(pa.timestamp("us", "UTC"))
    made = {}
    for name, keys in (("R", ("a",)), ("S", ("a", "b")), ("T", ("b",))):
        columns = {key: random.integers(0, tuples, tuples) for key in keys}
        made[name] = pa.record_batch({**columns, "x": random.random(tuples), "t": times})
    return made


def _hub(tables: dict[str, pa.RecordBatch]) -> Hub:
    built = block({name: pa.table(table) for name, table in tables.items()}, "R.a = S.a", "S.b = T.b")
    join = replace(built, count_only=False)
    streams = tuple(Stream(name, number, "t", 0) for number, name in enumerate(_NAMES))
    options = Options(architecture="stems", policy="fixed", order=_NAMES, batch_size=1000)
    return Hub("shared", join, streams, {}, options, 1, "1 cell")


def _queries(number: int, seed: int) -> list[tuple[float, float]]:
    """Return where the part of R begins that each query wants, and that of T."""
    drawn = np.random.default_rng([seed, 1]).random((number, 2)) * (1 - _WANTED)
    return [(float(r), float(t)) for r, t in drawn]


def _standing(number: int, begins: tuple[float, float]) -> StandingQuery:
    real = pa.float64()
    filters = []
    for alias, low in zip(("R", "T"), begins, strict=True):
        x = Column(ColumnRef(alias, "x"))
        filters += [Compare(">=", x, Literal(low, real), real)]
        filters += [Compare("<", x, Literal(low + _WANTED, real), real)]
    columns = (ColumnRef("R", "x"), ColumnRef("T", "x"))
    schema = pa.schema([("r", real), ("t", real)])
    return StandingQuery(number, f"q{number}", tuple(filters), (), columns, schema, _NAMES)


def _work(
    tables: dict[str, pa.RecordBatch], queries: Sequence[StandingQuery], *, blind: bool
) -> Counter[str]:
    """Let some queries share an eddy; return tuples stored, probes, results, and rows by query."""
    hub = _hub(tables)
    changes = [Change(number, query) for number, query in enumerate(queries, 1)]
    registry = Registry().after(changes, 0, None)
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
    most, tuples = settings.whole("queries"), settings.whole("tuples")
    tables = _tables(tuples, settings.seed)
    begins = _queries(most, settings.seed)
    queries = [_standing(number, each) for number, each in enumerate(begins, 1)]
    ran = []
    for query in queries:
        ran.append(_work(tables, [query], blind=False))
        settings.progress(len(ran) / (2 * most))
    numbers = [2**step for step in range(most.bit_length()) if 2**step <= most]
    together: list[Counter[str]] = []
    apart: list[Counter[str]] = []
    for number in numbers:
        apart.append(sum(ran[:number], Counter()))
        shares = _work(tables, queries[:number], blind=settings.ablated == BLIND)
        together.append(apart[-1] if settings.ablated == ALONE else shares)
        settings.progress(0.5 + number / (2 * most))
    number = numbers[-1]
    wanted = _answer(tables, begins[:number])
    for each, rows in enumerate(wanted.sum(axis=0), 1):
        for found in (ran[each - 1], together[-1]):
            if not settings.ablated and found[f"query {each}"] != rows:
                raise ExecutionError(f"query {each} has {found[f'query {each}']} rows, expected {rows}")
    shared, alone = together[-1], apart[-1]
    figures = {
        "stored_over_tables": shared["stored"] / (tuples * len(_NAMES)),
        "stored_alone_over_shared": alone["stored"] / shared["stored"],
        "probes_alone_over_shared": alone["probes"] / shared["probes"],
        "results_over_wanted": shared["results"] / int(wanted.any(axis=1).sum()),
    }
    panels = [
        Panel(
            what,
            "queries",
            "tuples",
            [
                Curve("one eddy", numbers, [each[key] for each in together]),
                Curve("an eddy each", numbers, [each[key] for each in apart]),
            ],
        )
        for what, key in (("Tuples that are stored", "stored"), ("Tuples that probe", "probes"))
    ]
    return Outcome(panels, figures)


def _answer(tables: dict[str, pa.RecordBatch], begins: Sequence[tuple[float, float]]) -> np.ndarray:
    """Return, by pandas, which queries want each result of the join: a row a result, a column a query."""
    frames = {name: table.select([*table.schema.names[:-1]]).to_pandas() for name, table in tables.items()}
    s = frames["S"].drop(columns="x")
    joined = pd.merge(pd.merge(frames["R"], s, on="a"), frames["T"], on="b", suffixes=("_r", "_t"))
    x_r, x_t = joined["x_r"], joined["x_t"]
    inside = [(x_r >= r) & (x_r < r + _WANTED) & (x_t >= t) & (x_t < t + _WANTED) for r, t in begins]
    found: np.ndarray = np.column_stack(inside)
    return found
