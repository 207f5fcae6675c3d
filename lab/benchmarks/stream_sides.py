"""Sides of a benchmark of streams: queries that run, with files of their own."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

import millrace
from lab.benchmarks.stream_cases import SCHEMA, Case
from millrace.errors import ExecutionError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

SKIPPED = 3
"""The first micro-batches, in which workers start, do not count."""


@dataclass(frozen=True)
class Measured:
    """What was measured of a case.

    Attributes:
        figures: The named figures.
        rows: One dictionary a side.
        same: Whether queries have as many rows, and the same sums, on all sides that run them.
    """

    figures: Mapping[str, float]
    rows: Sequence[dict[str, Any]] = ()
    same: bool = True


FIXED = {"b first": "feed_b", "c first": "feed_c"}
"""Sides of Millrace whose order does not change, by the stream that all others are joined with first."""


class Side:
    """A query that runs, with its files."""

    def __init__(self, spark: SparkSession, case: Case, side: str, folder: Path) -> None:
        self.folder = folder
        self._spark, self._case, self._side = spark, case, side
        self._progress: list[Any] = []
        self._queries: list[StreamingQuery] = []

    def start(self) -> None:
        """Start the query, or start it again."""
        tables: Mapping[str, DataFrame] = {
            name: self._spark.readStream.schema(SCHEMA)
            .option("maxFilesPerTrigger", 1)
            .parquet(str(self.folder / name))
            .withWatermark("t", "5 seconds")
            for name in self._case.names
        }
        self._queries = self._started(tables)
        self._seen: set[tuple[str, int]] = set()

    def _started(self, tables: Mapping[str, DataFrame]) -> list[StreamingQuery]:
        if self._side == "spark":
            return [self._written(_chained(self._spark, self._case, tables))]
        first = FIXED.get(self._side)
        others = [name for name in self._case.names if name != first]
        options = None if first is None else {"policy": "fixed", "order": (first, *others)}
        return [self._written(millrace.sql(self._case.text, self._spark, tables, options=options))]

    def _written(self, frame: DataFrame, number: int = 0) -> StreamingQuery:
        name = suffix(number)
        return (
            frame.writeStream.format("parquet")
            .option("path", str(self.folder / f"out{name}"))
            .option("checkpointLocation", str(self.folder / f"checkpoint{name}"))
            .start()
        )

    def work(self) -> float:
        """Let it take in the new files, and return the seconds that Spark reports, of the slowest query."""
        for query in self._queries:
            query.processAllAvailable()
        return max(map(self._taken, self._queries))

    def _taken(self, query: StreamingQuery) -> float:
        until = time.monotonic() + 60
        while time.monotonic() < until:
            new = [
                p for p in query.recentProgress if (query.id, p.batchId) not in self._seen and p.numInputRows
            ]
            if new:
                self._seen |= {(query.id, p.batchId) for p in new}
                self._progress += new
                return sum(p.durationMs["triggerExecution"] for p in new) / 1000
            time.sleep(0.02)
        raise ExecutionError(f"the stream of {self._side} reports no progress: {query.exception()}")

    def stop(self) -> None:
        """Stop it."""
        for query in self._queries:
            query.stop()

    def rows(self) -> tuple[int, float]:
        """Return how many rows were written, and the sum of their numbers."""
        table = pq.read_table(self.folder / "out", columns=["total"])
        return table.num_rows, round(sum(table["total"].to_pylist()), 3)

    def state_bytes(self) -> int:
        """Return the bytes of the state in the checkpoint."""
        files = (self.folder / "checkpoint" / "state").rglob("*")
        return sum(each.stat().st_size for each in files if each.is_file())

    def forget(self) -> None:
        """Have the next start find nothing but the checkpoint, as after a restart of the machine."""
        for query in self._queries:
            for files in Path(tempfile.gettempdir()).glob(f"blockmgr-*/millrace-streams/{query.id}"):
                shutil.rmtree(files, ignore_errors=True)

    def figure(self, name: str) -> list[float]:
        """Return a figure of Millrace's in each micro-batch."""
        return [float(next(iter(each.observedMetrics.values()))[name]) for each in self._progress]


def _chained(spark: SparkSession, case: Case, tables: Mapping[str, DataFrame]) -> DataFrame:
    for name, frame in tables.items():
        frame.createOrReplaceTempView(name)
    return spark.sql(case.chain)


def measured(
    case: Case, sides: Mapping[str, Side], rounds: int, done: Callable[[str], object]
) -> dict[str, list[float]]:
    """Return the seconds of each side's micro-batches, without the first ones.

    Args:
        case: Writes the files.
        sides: The sides by name.
        rounds: Micro-batches that count.
        done: Called with a side's name after each of its micro-batches.
    """
    times: dict[str, list[float]] = {side: [] for side in sides}
    batches = SKIPPED + rounds
    case.write([each.folder for each in sides.values()], 0, batches)
    try:
        for batch in range(batches):
            order = list(sides)[batch % len(sides) :] + list(sides)[: batch % len(sides)]
            for side in order:
                if batch:
                    case.write([sides[side].folder], batch, batches)
                else:
                    sides[side].start()
                taken = sides[side].work()
                if batch >= SKIPPED:
                    times[side].append(taken)
                done(side)
    finally:
        for each in sides.values():
            each.stop()
    return times


def suffix(number: int) -> str:
    """Return what the folders of a side's queries have behind their names, but for the first."""
    return f"_{number}" if number else ""


@contextmanager
def own_folder() -> Iterator[Path]:
    """Make a folder for the body."""
    folder = Path(tempfile.mkdtemp(prefix="millrace-stream-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
