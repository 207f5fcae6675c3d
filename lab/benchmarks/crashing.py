"""Crashes of the driver: a process at work on a streaming query is killed at random times, and started again.

The child process has the driver, its JVM and the executor in it. It gets SIGKILL some random time after the
query has started and its first offsets are written: while it plans, reads state, writes, or commits. The next
child goes on from the checkpoint with another architecture. After each crash, what is written must be a part
of the batch answer with nothing twice; when the rest has been worked through, it must be all of it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from pyspark.sql import SparkSession

from millrace.errors import ExecutionError

CRASHES = 50
_ARCHITECTURES = ("stems", "stairs")
_PATIENCE = 180
_MOST_COMMITS = 4
_STATE = "spark.sql.streaming.stateStore."
_KEPT = (
    "spark.sql.shuffle.partitions",
    f"{_STATE}providerClass",
    f"{_STATE}rocksdb.changelogCheckpointing.enabled",
    "spark.sql.streaming.minBatchesToRetain",
)


@dataclass(frozen=True)
class Survived:
    """What came of it.

    Attributes:
        crashes: Children that were killed at work.
        sound: After how many of them there was a part of the batch answer, and nothing twice.
        files: Micro-batches' files that were worked through.
        rows: Rows of the batch answer.
        same: Whether just these were there in the end.
    """

    crashes: int
    sound: int
    files: int
    rows: int
    same: bool


class Work(Protocol):
    """A query over the files of a folder, which a process of its own works on.

    Attributes:
        module: What the process runs; it calls :func:`child`.
        folder: Where everything goes.
        checkpoint: Spark's.
    """

    module: str
    folder: Path
    checkpoint: Path

    def write(self, batch: int) -> None:
        """Write the files of a micro-batch."""

    def ask(self) -> None:
        """Ask something of the process, or of the next one; called before it starts and while it works."""

    def is_sound(self) -> bool:
        """Whether what is written is a part of the batch answer, with nothing twice."""

    def finish(self, architecture: str) -> tuple[int, bool]:
        """Work through the rest; returns the rows of the batch answer, and whether just they are written."""


def crashes(
    spark: SparkSession,
    work: Work,
    count: int,
    seed: int,
    longest: float,
    done: Callable[[str], object],
    ahead: int = 8,
) -> Survived:
    """Kill a query so many times, let it finish, and compare.

    Args:
        spark: A session for streams, whose settings the processes get.
        work: The query.
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
        while files < _worked_through(work) + ahead:
            work.write(files)
            files += 1
        commits, seconds = int(random.integers(0, _MOST_COMMITS)), random.uniform(0, longest)
        if not _killed(spark, work, _ARCHITECTURES[killed % 2], commits, seconds):
            continue  # it was done before its time
        killed += 1
        sound += work.is_sound()
        done("millrace")
    rows, same = work.finish(_ARCHITECTURES[0])
    return Survived(killed, sound, files, rows, same and rows > 0)


def _killed(spark: SparkSession, work: Work, architecture: str, commits: int, seconds: float) -> bool:
    """Run a child and kill it so long after so many commits; tell whether it was still at work.

    Of seconds alone, a busy machine would make crashes in the first micro-batch only.
    """
    last = _worked_through(work) + commits
    started, log = work.folder / "started", work.folder / "child.log"
    started.unlink(missing_ok=True)
    settings = {name: spark.conf.get(name, None) for name in _KEPT}
    given = [f"{name}={value}" for name, value in settings.items() if value is not None]
    command = [sys.executable, "-m", work.module, str(work.folder), architecture, *given]
    environment = {**os.environ, "PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON", sys.executable)}
    work.ask()
    with log.open("wb") as out:
        # A session of its own: the JVM is in its process group, and ends with it.
        process = subprocess.Popen(
            command, env=environment, stdout=out, stderr=out, stdin=subprocess.DEVNULL, start_new_session=True
        )
    try:
        until = time.monotonic() + _PATIENCE
        # After a crash before the first offsets are written, Spark may ask for an empty checkpoint.
        begun = (started, work.checkpoint / "offsets" / "0")

        def at_work() -> bool:
            return all(map(Path.exists, begun)) and _worked_through(work) >= last

        while not at_work() and process.poll() is None and time.monotonic() < until:
            time.sleep(0.02)
        try:
            if at_work():
                work.ask()
                code: int | None = process.wait(seconds)
            else:
                code = process.poll()
        except subprocess.TimeoutExpired:
            return True
        if code == 0:
            return False
        said = log.read_text(errors="replace")[-2000:]
        raise ExecutionError(f"the process of the query ended by itself, or did not start: {said}")
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _worked_through(work: Work) -> int:
    """Return how many micro-batches have been committed."""
    names = [path.name for path in (work.checkpoint / "commits").glob("*") if path.name.isdigit()]
    return max(map(int, names), default=-1) + 1


def child(work: Callable[[SparkSession, Path, str], Callable[[], object]]) -> None:
    """Do what a child process does.

    Args:
        work: Starts the query in a folder with an architecture; returns what waits for its end.
    """
    folder, architecture, *settings = sys.argv[1:]
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    for setting in settings:
        builder = builder.config(*setting.split("=", 1))
    wait = work(builder.getOrCreate(), Path(folder), architecture)
    (Path(folder) / "started").touch()
    wait()
