"""Joins of streams: one eddy in each cell against Spark's chain of two-way joins, batch by batch.

All sides run in one session, each with a checkpoint and files of its own, and only one has new files at a
time: so each micro-batch is measured side by side. Spark's joins are tuned: state in RocksDB with changelogs,
rows not tracked, the newest format, as many partitions as cores. What a micro-batch takes is what Spark
reports of it, from trigger to commit. The first ones, in which workers start, are not counted.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

import millrace
from millrace.benchmarks import harness
from millrace.benchmarks.harness import Outcome, Target
from millrace.benchmarks.show import Ticker
from millrace.benchmarks.stream_cases import CASES, SCHEMA, Case
from millrace.errors import ExecutionError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

SETTINGS = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.streaming.stateStore.rocksdb.trackTotalNumberOfRows": "false",
    "spark.sql.streaming.join.stateFormatVersion": "4",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.sql.streaming.numRecentProgressUpdates": "1000",
    "spark.sql.streaming.pollingDelay": "300",
}
SKIPPED = 3
_SIDES = ("millrace", "spark", "millrace again")
TARGETS = {
    "three_way_ratio": Target(high=0.35),
    "five_way_ratio": Target(high=0.25),
    "drift_ratio": Target(high=0.3),
    "small_batch_ratio": Target(high=1.1),
    "two_way_ratio": Target(high=1.0),
    "state_bytes_ratio": Target(high=0.5),
    "recovery_ratio": Target(high=1.0),
    "memory_flat": Target(high=1.1),
    "same_rows": Target(low=1, high=1),
}


def bench(spark: SparkSession, names: tuple[str, ...], scale: float, rounds: int, ticker: Ticker) -> Outcome:
    """Run the benchmark.

    Args:
        spark: A session with :data:`SETTINGS`.
        names: Cases.
        scale: 1 for micro-batches of the cases' sizes.
        rounds: Micro-batches that count.
        ticker: Told of each micro-batch of a side.

    Raises:
        OptionError: Too few rounds.
        ExecutionError: A stream stopped.
    """
    harness.check_rounds(rounds)
    figures: dict[str, float] = {}
    rows: list[dict[str, Any]] = []
    same = True
    for name in names:
        case = CASES[name]
        case = Case(case.streams, max(60, round(case.rows * scale)), case.drifts, case.window)
        with _folder() as folder:
            sides = {side: _Side(spark, case, side, folder / side.replace(" ", "_")) for side in _SIDES}
            times = _measured(case, sides, rounds, partial(_told, ticker, name))
            medians = {side: harness.median(taken) for side, taken in times.items()}
            figures[f"{name}_ratio"] = medians["millrace"] / medians["spark"]
            rows += [
                {"case": name, "side": side, "median_s": medians[side], "spread": harness.spread(times[side])}
                for side in _SIDES
            ]
            figures[f"{name}_aa"] = medians["millrace again"] / medians["millrace"]
            same &= sides["millrace"].rows() == sides["spark"].rows()
            if name == "three_way":
                sizes = {side: sides[side].state_bytes() for side in ("millrace", "spark")}
                figures["state_bytes_ratio"] = sizes["millrace"] / sizes["spark"]
                figures["recovery_ratio"] = _recovery(case, sides, SKIPPED + rounds)
            if name == "small_batch":
                held = sides["millrace"].figure("bytes")
                tenth = max(1, len(held) // 10)
                figures["memory_flat"] = max(held[-tenth:]) / max(held[SKIPPED : SKIPPED + max(tenth, 3)])
    figures["same_rows"] = float(same)
    notes = ["of a micro-batch from trigger to commit, as Spark says; memory of state by Millrace's figures"]
    return Outcome("stream", scale, rounds, figures, rows, TARGETS, notes)


def runs(names: tuple[str, ...], rounds: int) -> int:
    """Return how often a ticker ticks."""
    return len(names) * len(_SIDES) * (SKIPPED + rounds)


def _told(ticker: Ticker, case: str, side: str) -> None:
    ticker.says(f"{case}: {side}")
    ticker.tick()


class _Side:
    """A query that runs, with its files."""

    def __init__(self, spark: SparkSession, case: Case, side: str, folder: Path) -> None:
        self.folder = folder
        self._spark, self._case, self._side = spark, case, side
        self._progress: list[Any] = []
        self._query: StreamingQuery | None = None

    def start(self) -> None:
        """Start the query, or start it again."""
        tables: Mapping[str, DataFrame] = {
            name: self._spark.readStream.schema(SCHEMA)
            .option("maxFilesPerTrigger", 1)
            .parquet(str(self.folder / name))
            .withWatermark("t", "5 seconds")
            for name in self._case.names
        }
        if self._side == "spark":
            frame = _chained(self._spark, self._case, tables)
        else:
            frame = millrace.sql(self._case.text, self._spark, tables)
        self._query = (
            frame.writeStream.format("parquet")
            .option("path", str(self.folder / "out"))
            .option("checkpointLocation", str(self.folder / "checkpoint"))
            .start()
        )
        self._seen: set[int] = set()

    def work(self) -> float:
        """Let it take in the new files, and return the seconds that Spark reports."""
        assert self._query is not None
        self._query.processAllAvailable()
        until = time.monotonic() + 60
        while time.monotonic() < until:
            new = [p for p in self._query.recentProgress if p.batchId not in self._seen and p.numInputRows]
            if new:
                self._seen |= {p.batchId for p in new}
                self._progress += new
                return sum(p.durationMs["triggerExecution"] for p in new) / 1000
            time.sleep(0.02)
        raise ExecutionError(f"the stream of {self._side} reports no progress: {self._query.exception()}")

    def stop(self) -> None:
        """Stop it."""
        if self._query is not None:
            self._query.stop()

    def rows(self) -> tuple[int, float]:
        """Return how many rows were written, and the sum of their numbers."""
        table = pq.read_table(self.folder / "out", columns=["total"])
        return table.num_rows, round(sum(table["total"].to_pylist()), 3)

    def state_bytes(self) -> int:
        """Return the bytes of the state in the checkpoint."""
        files = (self.folder / "checkpoint" / "state").rglob("*")
        return sum(each.stat().st_size for each in files if each.is_file())

    def figure(self, name: str) -> list[float]:
        """Return a figure of Millrace's in each micro-batch."""
        return [float(next(iter(each.observedMetrics.values()))[name]) for each in self._progress]


def _chained(spark: SparkSession, case: Case, tables: Mapping[str, DataFrame]) -> DataFrame:
    for name, frame in tables.items():
        frame.createOrReplaceTempView(name)
    return spark.sql(case.chain)


def _measured(
    case: Case, sides: Mapping[str, _Side], rounds: int, done: Callable[[str], object]
) -> dict[str, list[float]]:
    """Return the seconds of each side's micro-batches, without the first ones."""
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


def _recovery(case: Case, sides: Mapping[str, _Side], batch: int) -> float:
    """Return the ratio of the first micro-batches after a restart."""
    taken = {}
    for side in ("millrace", "spark"):
        case.write([sides[side].folder], batch, batch)
        try:
            sides[side].start()
            taken[side] = sides[side].work()
        finally:
            sides[side].stop()
    return taken["millrace"] / taken["spark"]


@contextmanager
def _folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="millrace-stream-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
