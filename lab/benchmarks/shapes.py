"""Queries of many small blocks, and of what stands beside joins, with Millrace and with Spark SQL.

CTEs that are read several times, unions of channels, scalar subqueries in a row, EXISTS and IN beside
joins, keys that are expressions, snowflakes of small dimensions, LIMIT above joins, tiny tables: where an
engine that takes only joins may lose to one that sees the whole query. The data is TPC-H's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import TYPE_CHECKING

from lab.benchmarks import side_by_side
from lab.benchmarks.harness import Outcome, Target, parse_names
from lab.benchmarks.show import Ticker
from lab.benchmarks.side_by_side import Case

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_HEAD = re.compile(r"^-- (\w+): .*$", re.MULTILINE)


def texts() -> dict[str, str]:
    """Return the queries by name."""
    _, *parts = _HEAD.split((files("lab.benchmarks") / "queries" / "shapes.sql").read_text())
    return {name: text.strip() for name, text in zip(parts[::2], parts[1::2], strict=True)}


def parse_shapes(text: str | None) -> tuple[str, ...]:
    """Return the names in ``"tiny_tables,wide_output"``; all of None.

    Raises:
        OptionError: There is no such shape.
    """
    known = tuple(texts())
    return known if text is None else parse_names("queries", text, known)


def bench(
    spark: SparkSession,
    tables: Mapping[str, str],
    scale: float,
    names: Sequence[str],
    rounds: int,
    ticker: Ticker,
) -> Outcome:
    """Run the benchmark.

    Raises:
        OptionError: Too few rounds.
    """
    known = texts()
    cases = [Case(name, known[name]) for name in names]
    side_by_side.run(spark, tables, cases, rounds, ticker)
    targets = {
        "shapes_geomean_ratio": Target(high=0.7),
        "shapes_worst_ratio": Target(high=1.15),
        "shapes_equal": Target(len(cases), len(cases)),
        "aa_ratio": Target(0.9, 1.1, informational=True),
    }
    rows = [side_by_side.row(case) for case in cases]
    figures = side_by_side.figures(cases, "shapes_")
    return Outcome("shapes", scale, rounds, figures, rows, targets, side_by_side.notes(cases))
