"""Comparing answers, and naming the blocks of a query."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import reduce

from pyspark.sql import DataFrame, functions as sf

from millrace.api.query import Query
from millrace.engine.plan.expressions import exists_in


def bag(frame) -> Counter[str]:
    return bag_of(frame.collect())


def bag_of(rows) -> Counter[str]:
    """Rows as a multiset, by position; NaN equals itself in text."""
    return Counter(repr(tuple(row)) for row in rows)


def bags(frames: Mapping[str, DataFrame]) -> dict[str, Counter[str]]:
    """The rows of several DataFrames, whatever their columns, as Spark writes them: all in one job."""
    named = [
        frame.toDF(*(f"c{n}" for n in range(len(frame.columns)))).select(
            sf.lit(name).alias("name"), sf.struct("*").cast("string").alias("row")
        )
        for name, frame in frames.items()
    ]
    found: dict[str, Counter[str]] = {name: Counter() for name in frames}
    for name, row in reduce(DataFrame.union, named).collect():
        found[name][row] += 1
    return found


def taken(found: Query) -> str:
    """The blocks as ``a b|c d+``, with what they look for matches in as ``+e`` and ``-e`` (semi and anti).

    What they left-join is ``?e``. What one condition asks is written ``+e/-f``. A ``+`` at the end says that
    tasks aggregate.
    """
    names = []
    for block in found.blocks:
        asked = [[*exists_in(p)] for p in block.join.residuals]
        signs = ["/".join(f"{'-' if e.negated else '+'}{e.relation}" for e in each) for each in asked if each]
        signs = [*(f"?{each.relation}" for each in block.join.outer), *signs]
        names.append(" ".join([*block.join.aliases, *signs]) + ("+" if block.aggregate else ""))
    return "|".join(names)
