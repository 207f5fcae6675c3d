"""A hub's hundred queries: against one of them alone, and against eight of them side by side in Spark."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.compute as pc
import pyarrow.parquet as pq

import millrace
from lab.benchmarks import harness
from lab.benchmarks.stream_cases import CASES, Case
from lab.benchmarks.stream_sides import Measured, Side, measured, own_folder, suffix

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

QUERIES = 100
BESIDE = 8
SIDES = (f"hub of {QUERIES}", f"{BESIDE} in Spark", "one alone", "one again")


def hub(spark: SparkSession, scale: float, rounds: int, done: Callable[[str], object]) -> Measured:
    """Run the case.

    Args:
        spark: A session for streams.
        scale: 1 for micro-batches of 100,000 rows.
        rounds: Micro-batches that count.
        done: Called with a side's name after each of its micro-batches.
    """
    case = CASES["three_way"].scaled(scale)
    with own_folder() as folder:
        sides: dict[str, Side] = {
            SIDES[0]: _Hub(spark, case, "hub", folder / "hub"),
            SIDES[1]: _Beside(spark, case, "spark", folder / "spark"),
            SIDES[2]: _One(spark, case, "one", folder / "one"),
            SIDES[3]: _One(spark, case, "one again", folder / "again"),
        }
        times = measured(case, sides, rounds, done)
        written = folder / "hub" / "queries"
        same = [_sums(written / "0") == _sums(folder / "one" / "out")]
        beside = [folder / "spark" / f"out{suffix(number)}" for number in range(BESIDE)]
        same += [_sums(written / str(number)) == _sums(each) for number, each in enumerate(beside)]
    many, spark_s, one, again = (harness.median(times[side]) for side in SIDES)
    figures = {
        "hub_100_ratio": many / one,
        "hub_8_ratio": (many / QUERIES) / (spark_s / BESIDE),
        "hub_aa": again / one,
    }
    rows = [
        {
            "case": "hub",
            "side": side,
            "median_s": harness.median(times[side]),
            "spread": harness.spread(times[side]),
        }
        for side in SIDES
    ]
    return Measured(figures, rows, all(same))


def _conditions(case: Case, number: int) -> dict[str, str]:
    """Return what a query asks of streams, beside the join: a tenth of one, and some of another."""
    a, b, c = case.names
    low, most = number % 90 / 100, 0.3 + number % 7 / 10
    one, other = (a, b) if number % 2 else (b, c)
    return {one: f"v >= {low} AND v < {low + 0.1}", other: f"v <= {most}"}


def _where(case: Case, number: int) -> str:
    return " AND ".join(
        f"({condition.replace('v ', f'{name}.v ')})" for name, condition in _conditions(case, number).items()
    )


def _sums(folder: Path) -> tuple[int, int]:
    table = pq.read_table(folder, columns=["k"])
    return table.num_rows, pc.sum(table["k"]).as_py() or 0


class _Hub(Side):
    """A hub of many queries."""

    def _started(self, tables: Mapping[str, DataFrame]) -> list[StreamingQuery]:
        case = self._case
        a, b, c = case.names
        on = f"{a} CROSS JOIN {b} JOIN {c} ON {case.condition}"
        hub = millrace.hub(self._spark, tables, on, self.folder / "checkpoint")
        values = ", ".join(f"{name}.v AS v_{name}" for name in case.names)
        for number in range(QUERIES):
            sink = self.folder / "queries" / str(number)
            hub.add(f"q{number}", f"{a}.k, {a}.t, {values}", _where(case, number), sink=sink)
        return [hub.start()]


class _One(Side):
    """One of the queries, alone."""

    def _started(self, tables: Mapping[str, DataFrame]) -> list[StreamingQuery]:
        text = f"{self._case.text} AND {_where(self._case, 0)}"
        return [self._written(millrace.sql(text, self._spark, tables))]


class _Beside(Side):
    """Some of the queries in Spark, side by side."""

    def _started(self, tables: Mapping[str, DataFrame]) -> list[StreamingQuery]:
        queries = []
        for number in range(BESIDE):
            wanted = _conditions(self._case, number)
            for name, frame in tables.items():
                frame.where(wanted.get(name, "true")).createOrReplaceTempView(name)
            queries.append(self._written(self._spark.sql(self._case.chain), number))
        return queries
