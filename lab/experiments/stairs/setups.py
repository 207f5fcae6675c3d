"""Random set-ups like those of Deshpande & Hellerstein 2004, section 5.3.

Twenty tables, five each of 1, 10, 50 and 100 thousand tuples. A set-up draws a shape, tables for it, a
selection on each, a selectivity for each join, an initial plan, a rate for each table and delays. What the
paper leaves open is chosen like this:

* A *join selectivity* f from 0 to 10 is what a tuple of the larger table finds in the smaller one, before
  selections: both have keys from a domain of ``smaller / f`` values. (Were it what a tuple of the smaller one
  finds, joins would make tuples fewer as a rule, and plans would hardly differ.)
* Results grow beyond all bounds then, where a small table lies between large ones. A set-up with more than
  2,000,000 results at full scale, a third of those drawn, is drawn again; so is one where nothing of some
  table passes.
* A selection keeps a share of the tuples that is uniform from 0 to 1. It belongs to the scan.
* Rates are log-uniform over a factor of ten; half of the tables are delayed, by up to half of the time that
  the slowest stream takes.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np
import pyarrow as pa

from lab.experiments.lab.arriving import Stream
from lab.experiments.lab.block import block
from lab.experiments.lab.plans import Plan, drawn
from lab.experiments.lab.work import Query
from millrace.engine.graph import QueryGraph
from millrace.engine.trees import spanning_tree

Array = np.ndarray[Any, np.dtype[Any]]

SIZES = tuple(thousands * 1000 for thousands in (1, 10, 50, 100) for _ in range(5))
"""Tuples of the twenty tables."""

SHAPES = tuple((kind, relations) for kind in ("path", "star") for relations in (4, 5))
MOST = 10.0
"""The largest join selectivity."""

_RESULTS = 2_000_000
"""Tuples in the result, at most; a set-up with more is drawn again."""

_RATES = (1e4, 1e5)
"""Tuples a second, from and to, before selections."""


@dataclass(frozen=True)
class Setup:
    """A join, its shape such as ``path of 4``, its initial plan and its join selectivities, by edge."""

    shape: str
    query: Query
    plan: Plan
    fans: tuple[float, ...]


def setup(seed: int, number: int, scale: float, batch: int) -> Setup:
    """Return a set-up of a seed: tables of a scale, 1 for the paper's, and so many tuples at a time."""
    for attempt in count():
        found = _drawn(np.random.default_rng([seed, number, attempt]), scale, batch, f"set-up {number}: ")
        query = found.query
        some = all(np.any(stream.passing) for stream in query.streams.values())
        if some and query.rows is not None and query.rows <= _RESULTS * scale:
            return found
    raise AssertionError("there is no end of attempts")


def _drawn(draw: np.random.Generator, scale: float, batch: int, name: str) -> Setup:
    """Return a random set-up."""
    kind, relations = SHAPES[draw.integers(len(SHAPES))]
    sizes = [max(10, round(SIZES[i] * scale)) for i in draw.choice(len(SIZES), relations, replace=False)]
    pairs = [(0 if kind == "star" else i - 1, i) for i in range(1, relations)]
    fans = draw.uniform(0, MOST, len(pairs))
    columns: list[dict[str, Array]] = [{} for _ in sizes]
    for (a, b), fan in zip(pairs, fans, strict=True):
        values = max(1, round(min(sizes[a], sizes[b]) / fan))
        for end in (a, b):  # as Wisconsin attributes: so many values, each as often, in random order
            columns[end][f"k{b}"] = draw.permutation(sizes[end]) % values
    passing = [draw.random(size) < share for size, share in zip(sizes, draw.random(relations), strict=True)]
    low, high = np.log(_RATES)
    rates = np.exp(draw.uniform(low, high, relations))
    slowest = max(size / rate for size, rate in zip(sizes, rates, strict=True))
    delays = draw.uniform(0, slowest / 2, relations) * (draw.random(relations) < 1 / 2)
    tables = {f"t{place}": pa.table(each) for place, each in enumerate(columns)}
    coming = zip(tables.items(), rates, delays, passing, strict=True)
    streams = {alias: Stream(table, rate, delay, mask) for (alias, table), rate, delay, mask in coming}
    equalities = [f"t{a}.k{b} = t{b}.k{b}" for a, b in pairs]
    spec = block(tables, *equalities, rows=dict.fromkeys(tables))
    plan = drawn(spanning_tree(QueryGraph.of(spec), [0] * relations), spec.aliases, draw)
    query = Query(spec, streams, batch, _rows(columns, passing, pairs), name)
    return Setup(f"{kind} of {relations}", query, plan, tuple(fans))


def _rows(columns: list[dict[str, Array]], passing: list[Array], pairs: list[tuple[int, int]]) -> int:
    """Return the size of the result, by counting from the leaves inwards."""
    weights = [mask.astype(float) for mask in passing]
    for a, b in reversed(pairs):
        outer, inner = columns[b][f"k{b}"], columns[a][f"k{b}"]
        weights[a] *= np.bincount(outer, weights[b], minlength=int(inner.max()) + 1)[inner]
    return int(weights[0].sum())
