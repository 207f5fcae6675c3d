"""Crashes of the driver: a process that joins streams is killed at random times, and started again.

The child process has the driver, its JVM and the executor in it. It works through the files that are there,
one of each stream a micro-batch, and gets SIGKILL some random time after the query has started and its first
offsets are written: while it plans, reads state, writes, or commits. The next child goes on from the
checkpoint with another architecture. After each crash, what Spark's file sink has committed must be a part of
the batch answer with nothing twice; when the rest has been worked through, it must be all of it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

import millrace
from millrace.benchmarks.stream_cases import SCHEMA, Case
from millrace.errors import ExecutionError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

CRASHES = 50
_ARCHITECTURES = ("stems", "stairs")
_PATIENCE = 180
_MOST_COMMITS = 4
_STATE = "spark.sql.streaming.stateStore."
_KEPT = (
    "spark.sql.shuffle.partitions",
    f"{_STATE}providerClass",
    f"{_STATE}rocksdb.changelogCheckpointing.enabled",
)
_CASE = Case(3, 600)
_BATCHES = 1 << 20  # more than there will be: only feeds that drift ask


@dataclass(frozen=True)
class Survived:
    """What came of it.

    Attributes:
        crashes: Children that were killed at work.
        sound: After how many of them the sink held a part of the batch answer, and nothing twice.
        files: Micro-batches' files that were worked through.
        rows: Rows of the batch answer.
        same: Whether the sink held just these in the end.
    """

    crashes: int
    sound: int
    files: int
    rows: int
    same: bool


def crashes(
    spark: SparkSession,
    folder: Path,
    count: int,
    seed: int,
    longest: float,
    done: Callable[[str], object],
    ahead: int = 8,
) -> Survived:
    """Kill a query so many times, let it finish, and compare.

    Args:
        spark: A session for streams, which reads what was written and runs the query to its end.
        folder: Where everything goes.
        count: Crashes.
        seed: Of the times.
        longest: Seconds from the start of a query, or one of its first commits, to its crash, at most.
        done: Called after each crash.
        ahead: Files of each stream that a child finds when it starts.

    Raises:
        ExecutionError: A child process failed by itself.
    """
    random = np.random.default_rng(seed)
    files = killed = sound = 0
    while killed < count:
        while files < _worked_through(folder) + ahead:
            _CASE.write([folder], files, _BATCHES)
            files += 1
        commits, seconds = int(random.integers(0, _MOST_COMMITS)), random.uniform(0, longest)
        if not _killed(spark, folder, _ARCHITECTURES[killed % 2], commits, seconds):
            continue  # it was done before its time
        killed += 1
        sound += not _written(spark, folder) - _answer(spark, folder)
        done("millrace")
    run(spark, folder, _ARCHITECTURES[0]).awaitTermination()
    want = _answer(spark, folder)
    same = _written(spark, folder) == want and want.total() > 0
    return Survived(killed, sound, files, want.total(), same)


def run(spark: SparkSession, folder: Path, architecture: str) -> StreamingQuery:
    """Start the query over the files that are there; it ends by itself."""
    tables = {
        name: spark.readStream.schema(SCHEMA)
        .option("maxFilesPerTrigger", 1)
        .parquet(str(folder / name))
        .withWatermark("t", "5 seconds")
        for name in _CASE.names
    }
    joined = millrace.sql(_CASE.text, spark, tables, {"architecture": architecture})
    return (
        joined.writeStream.format("parquet")
        .option("path", str(folder / "out"))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )


def _killed(spark: SparkSession, folder: Path, architecture: str, commits: int, seconds: float) -> bool:
    """Run a child and kill it so long after so many commits; tell whether it was still at work.

    Of seconds alone, a busy machine would make crashes in the first micro-batch only.
    """
    last = _worked_through(folder) + commits
    started = folder / "started"
    started.unlink(missing_ok=True)
    settings = {name: spark.conf.get(name, None) for name in _KEPT}
    given = [f"{name}={value}" for name, value in settings.items() if value is not None]
    command = [sys.executable, "-m", __name__, str(folder), architecture, *given]
    environment = {**os.environ, "PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON", sys.executable)}
    with (folder / "child.log").open("wb") as log:
        # A session of its own: the JVM is in its process group, and ends with it.
        child = subprocess.Popen(
            command, env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
        )
    try:
        until = time.monotonic() + _PATIENCE
        # After a crash before the first offsets are written, Spark may ask for an empty checkpoint.
        begun = (started, folder / "checkpoint" / "offsets" / "0")

        def at_work() -> bool:
            return all(map(Path.exists, begun)) and _worked_through(folder) >= last

        while not at_work() and child.poll() is None and time.monotonic() < until:
            time.sleep(0.02)
        try:
            code = child.wait(seconds) if at_work() else child.poll()
        except subprocess.TimeoutExpired:
            return True
        if code == 0:
            return False
        said = (folder / "child.log").read_text(errors="replace")[-2000:]
        raise ExecutionError(f"the process of the query ended by itself, or did not start: {said}")
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()


def _worked_through(folder: Path) -> int:
    """Return how many micro-batches have been committed."""
    names = [path.name for path in (folder / "checkpoint" / "commits").glob("*") if path.name.isdigit()]
    return max(map(int, names), default=-1) + 1


def _written(spark: SparkSession, folder: Path) -> Counter[tuple[object, ...]]:
    """Return the rows that the sink has committed; files that it has not are left out by Spark."""
    if not any((folder / "out" / "_spark_metadata").glob("[0-9]*")):
        return Counter()
    return _rows(spark.read.parquet(str(folder / "out")))


def _answer(spark: SparkSession, folder: Path) -> Counter[tuple[object, ...]]:
    """Return the rows of Spark's own join over all files."""
    for name in _CASE.names:
        spark.read.schema(SCHEMA).parquet(str(folder / name)).createOrReplaceTempView(name)
    try:
        return _rows(spark.sql(_CASE.text))
    finally:
        for name in _CASE.names:
            spark.catalog.dropTempView(name)


def _rows(df: DataFrame) -> Counter[tuple[object, ...]]:
    table = df.toArrow()
    columns = [table[name].to_pylist() for name in ("k", "t", "total")]
    return Counter((k, t, round(total, 6)) for k, t, total in zip(*columns, strict=True))


def _child() -> None:
    from pyspark.sql import SparkSession

    folder, architecture, *settings = sys.argv[1:]
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    for setting in settings:
        builder = builder.config(*setting.split("=", 1))
    query = run(builder.getOrCreate(), Path(folder), architecture)
    (Path(folder) / "started").touch()
    query.awaitTermination()


if __name__ == "__main__":
    _child()
