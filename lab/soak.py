"""What a soak does: kill drivers or workers, let sinks raise, and compare what is written; or watch memory.

A child process has the driver, its JVM and the executor of a streaming query in it. It gets SIGKILL some
random time after the query has started and its first offsets are written: while it plans, reads state,
writes, or commits. The next child goes on from the checkpoint with another architecture. After each crash,
what is written must be a part of the batch answer with nothing twice. At the end it must be all of it.

A worker gets SIGKILL while the query runs in this process, and a sink raises before or behind what it writes.
Where that ends the query, it is started again.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
from pyspark.errors import StreamingQueryException

import millrace
from lab.bench.harness import Bench, Run, Target
from lab.bench.streams import SCHEMA, SETTINGS, Feeds, Side, by_millrace, own_folder
from millrace.errors import ExecutionError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

FEEDS, MANY = Feeds(3, 600), 1 << 20
"""The join, and more micro-batches than there will be: only feeds that drift are told how many."""

AHEAD = 8
"""Files of each stream that a child finds when it starts."""

HUB_QUERIES = 8
_SELECTED = ", ".join(["feed_a.k", "feed_a.t", *(f"{name}.v AS v_{name}" for name in FEEDS.names)])
"""By each query of the hub."""

_LATEST = 3.0
"""Seconds from the start of a query, or one of its first commits, to its crash, at most."""

_MOST_COMMITS = 4
_PATIENCE = 180
_ARCHITECTURES = ("stems", "joins")
_SEED = 7

Rows = Counter[tuple[object, ...]]


def measure(run: Run) -> None:
    """Run the soak that is named."""
    (name,) = run.names
    with own_folder() as folder:
        if name == "memory":
            _memory(run, Path(folder))
        elif name == "faults":
            _faults(run, Path(folder))
        elif name in ("workers", "sinks"):
            _failures(run, Path(folder), name)
        else:
            _crashes(run, Path(folder), hub=name == "hub-crashes")


def _crashes(run: Run, folder: Path, *, hub: bool) -> None:
    """Kill a query so many times, let it finish, and compare.

    Raises:
        ExecutionError: A child process failed by itself.
    """
    random = np.random.default_rng(_SEED)
    files = killed = sound = 0
    while killed < run.rounds:
        while files < _committed(folder) + AHEAD:
            FEEDS.write(folder, files, MANY)
            files += 1
        commits, seconds = int(random.integers(0, _MOST_COMMITS)), random.uniform(0, _LATEST)
        if not _killed(run.spark, folder, killed, commits, seconds, hub=hub):
            continue  # it was done before its time
        killed += 1
        sound += all(not written - answer for _, written, answer in _written(run.spark, folder, hub=hub))
        run.says(f"{killed} of {run.rounds} crashes")
    start(run.spark, folder, _ARCHITECTURES[0], None, hub=hub).awaitTermination()
    found = list(_written(run.spark, folder, hub=hub))
    # Queries that came to a hub later than the first files have a part of the answer.
    same = all(written == answer for name, written, answer in found if name in ("out", "q0"))
    rows = sum(written.total() for _, written, _ in found)
    one, many = ("hub_crash", "hub_crashes") if hub else ("crash", "crashes")
    survived = sound if same and rows and all(not written - answer for _, written, answer in found) else 0
    run.figures = {
        many: killed,
        f"{many}_survived": survived,
        f"{one}_micro_batches": files,
        f"{one}_rows": rows,
    }
    run.targets = {f"{many}_survived": Target(low=run.rounds)}


def _failures(run: Run, folder: Path, name: str) -> None:
    """End a worker of the query, or let its sink raise, so many times; let it finish, and compare."""
    random, files, failed, sound, ended = np.random.default_rng(_SEED), 0, 0, 0, 0
    due = {"before": False, "behind": False}

    def write(rows: DataFrame, number: int) -> None:
        """Write a micro-batch under its number, as a sink does that may get it twice."""
        for when in due:
            if due[when]:
                due[when] = False
                raise OSError(f"the sink is full {when} micro-batch {number}")
            if when == "before":
                rows.write.mode("overwrite").parquet(str(folder / "out" / str(number)))

    while failed < run.rounds:
        while files < _committed(folder) + AHEAD:
            FEEDS.write(folder, files, MANY)
            files += 1
        due[str(random.choice(list(due)))] = name == "sinks"
        query = start(run.spark, folder, _ARCHITECTURES[failed % 2], None, hub=False, write=write)
        hit = name == "sinks"
        if name == "workers":
            time.sleep(random.uniform(0, _LATEST))
            hit = _ended_worker(random)
        try:
            query.awaitTermination()
        except StreamingQueryException:
            ended += 1
        failed += hit
        ((_, written, answer),) = _written(run.spark, folder, hub=False)
        sound += hit and not written - answer
        run.says(f"{failed} of {run.rounds} failures")
    start(run.spark, folder, _ARCHITECTURES[0], None, hub=False, write=write).awaitTermination()
    ((_, written, answer),) = _written(run.spark, folder, hub=False)
    run.figures = {
        f"{name}_failed": failed,
        f"{name}_survived": sound if written == answer and written else 0,
        f"{name}_queries_ended": ended,
        f"{name}_rows": written.total(),
    }
    run.targets = {f"{name}_survived": Target(low=run.rounds)}


def _ended_worker(random: np.random.Generator) -> bool:
    """Kill one of the workers of this process' Spark; tell whether there was one."""
    below = psutil.Process().children(recursive=True)
    workers = [each for each in below if _is_worker(each) and _is_worker(each.parent())]
    if workers:
        workers[int(random.integers(len(workers)))].kill()
    return bool(workers)


def _is_worker(process: psutil.Process | None) -> bool:
    try:
        return process is not None and "pyspark.daemon" in process.cmdline()
    except psutil.Error:  # it has just ended
        return False


def _killed(
    spark: SparkSession, folder: Path, number: int, commits: int, seconds: float, *, hub: bool
) -> bool:
    """Run a child and kill it so long after so many commits; tell whether it was still at work.

    Of seconds alone, a busy machine would make crashes in the first micro-batch only.
    """
    last = _committed(folder) + commits
    started, log = folder / "started", folder / "child.log"
    started.unlink(missing_ok=True)
    settings = {name: str(spark.conf.get(name, None)) for name in SETTINGS}
    given = [f"{name}={value}" for name, value in settings.items() if value != "None"]
    architecture = _ARCHITECTURES[number % 2]
    command = [sys.executable, "-m", "lab.soak", str(folder), architecture, str(number), str(int(hub))]
    environment = {**os.environ, "PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON", sys.executable)}
    with log.open("wb") as out:
        # A session of its own: the JVM is in its process group, and ends with it.
        quiet: Any = {"stdout": out, "stderr": out, "stdin": subprocess.DEVNULL}
        process = subprocess.Popen([*command, *given], env=environment, start_new_session=True, **quiet)
    try:
        until = time.monotonic() + _PATIENCE
        # After a crash before the first offsets are written, Spark may ask for an empty checkpoint.
        begun = (started, _checkpoint(folder) / "offsets" / "0")

        def at_work() -> bool:
            return all(map(Path.exists, begun)) and _committed(folder) >= last

        while not at_work() and process.poll() is None and time.monotonic() < until:
            time.sleep(0.02)
        try:
            code = process.wait(seconds) if at_work() else process.poll()
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


def _checkpoint(folder: Path) -> Path:
    inner = folder / "checkpoint" / "spark"  # a hub's
    return inner if inner.exists() else folder / "checkpoint"


def _committed(folder: Path) -> int:
    """Return how many micro-batches have been committed."""
    names = [path.name for path in (_checkpoint(folder) / "commits").glob("*") if path.name.isdigit()]
    return max(map(int, names), default=-1) + 1


def start(
    spark: SparkSession,
    folder: Path,
    architecture: str,
    number: int | None,
    *,
    hub: bool,
    write: Callable[[DataFrame, int], None] | None = None,
) -> StreamingQuery:
    """Start the query, or the hub, over the files that are there; it ends by itself.

    With the numbers of the first crashes a query comes to the hub; None is no crash. Spark's own sink writes
    what no function does.
    """
    streams, options = FEEDS.read(spark, folder), {"architecture": architecture}
    if not hub:
        joined = millrace.sql(FEEDS.text, spark=spark, tables=streams, options=options)
        writer = joined.writeStream.option("checkpointLocation", str(folder / "checkpoint"))
        writer = writer.trigger(availableNow=True)
        if write is not None:
            return writer.foreachBatch(write).start()
        return writer.format("parquet").option("path", str(folder / "out")).start()
    a, b, c = FEEDS.names
    on = f"{a} CROSS JOIN {b} JOIN {c} ON {FEEDS.condition}"
    made = millrace.Session(spark, streams).hub(on, folder / "checkpoint", options=options)
    standing = {query.name for query in made.list()}
    if number is not None and number < HUB_QUERIES and f"q{number}" not in standing:
        sink = folder / "queries" / f"q{number}"
        made.add(f"q{number}", _SELECTED, _condition(number), sink=sink)
    return made.start(availableNow=True)


def _condition(number: int) -> str:
    return f"feed_a.v >= {number / 20} AND (feed_b.v < 0.9 OR feed_a.v < feed_c.v)"


def _written(spark: SparkSession, folder: Path, *, hub: bool) -> list[tuple[str, Rows, Rows]]:
    """Return the sinks with what they have committed, and the answer of Spark's own join over all files."""
    for name in FEEDS.names:
        spark.read.schema(SCHEMA).parquet(str(folder / name)).createOrReplaceTempView(name)
    if not hub:
        by_sink = any((folder / "out" / "_spark_metadata").glob("[0-9]*"))
        places = [str(folder / "out")] if by_sink else map(str, (folder / "out").glob("[0-9]*/*.parquet"))
        return [("out", _rows(spark, *places), _rows(spark, FEEDS.text))]
    found, joined = [], ", ".join(FEEDS.names)
    for number in range(HUB_QUERIES):
        files = list((folder / "queries" / f"q{number}").glob("*.parquet"))
        text = f"SELECT {_SELECTED} FROM {joined} WHERE {FEEDS.condition} AND {_condition(number)}"
        found.append((f"q{number}", _rows(spark, *map(str, files)), _rows(spark, text)))
    return found


def _rows(spark: SparkSession, *source: str) -> Rows:
    if not source:
        return Counter()
    df = spark.sql(source[0]) if source[0].startswith("SELECT") else spark.read.parquet(*map(str, source))
    table = df.toArrow()
    columns = [table[name].to_pylist() for name in sorted(table.column_names)]
    return Counter((k, t, *(round(x, 6) for x in more)) for k, t, *more in zip(*columns, strict=True))


def _faults(run: Run, folder: Path) -> None:
    """Break calls of the coordinator that touch disk or network, so many times, as its tests do.

    Raises:
        AssertionError: A task lost rows, or failed with an error that is none of ours.
        TimeoutError: A task, a question or the end hangs.
    """
    import pytest

    from tests.limits.test_cache import run_with_faults

    ended = failed = 0
    for seed in range(run.rounds):
        run.says(f"faults: run {seed + 1} of {run.rounds}")
        with pytest.MonkeyPatch.context() as patched:
            outcomes = run_with_faults([_SEED * 10_000 + seed], folder, patched)
        ended, failed = ended + outcomes[0], failed + outcomes[1]
    run.figures = {"faults_ended": ended, "faults_failed": failed}
    run.targets = {"faults_ended": Target(low=1), "faults_failed": Target(low=1)}


def _memory(run: Run, folder: Path) -> None:
    """Compare the most memory of the largest worker in the last tenth of micro-batches with the second tenth.

    A micro-batch spans more event time than tuples are kept for, so each one lets go of what the one before
    brought: memory that grows is memory that leaks. It matters neither which process Spark gave a cell to nor
    how many there are.

    Raises:
        ExecutionError: The stream stopped, or has no worker process on this machine.
    """
    feeds, batches, resident = Feeds(3, 5_000).scaled(run.scale), max(20, run.rounds), []
    side = Side(run.spark, feeds, batches, folder, by_millrace(run, feeds))
    try:
        for batch in range(batches):
            run.says(f"memory: micro-batch {batch + 1} of {batches}")
            side.work()
            resident.append(_largest_worker())
    finally:
        side.stop()
    run.figures = {
        "memory_flat": flatness(resident),
        "memory_mb": max(resident) / 1e6,
        "memory_state_flat": flatness(side.figure("held")),
        "memory_expired_rows": sum(side.figure("expired")),
    }
    run.targets = {"memory_flat": Target(high=1.05)}


def flatness(values: list[float]) -> float:
    """Return the largest of the last tenth over the largest of the second tenth."""
    tenth = len(values) // 10
    return max(values[-tenth:]) / max(values[tenth : 2 * tenth])


def _largest_worker() -> float:
    """Return the resident bytes of the largest worker process of this process' Spark."""
    found = [0]
    for process in psutil.Process().children(recursive=True):
        try:
            if _is_worker(process):
                found.append(process.memory_info().rss)
        except psutil.Error:  # it has just ended
            continue
    if not max(found):
        raise ExecutionError("no worker process of Spark runs below this one; use a local master")
    return float(max(found))


NAMES = ("crashes", "hub-crashes", "workers", "sinks", "faults", "memory")
# Spark repeats the task of a worker that was killed.
BENCH = Bench(measure, NAMES, least=1, master="local[2,4]", conf=SETTINGS)

if __name__ == "__main__":
    from pyspark.sql import SparkSession

    place, kind, crash, of_hub, *settings = sys.argv[1:]
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    for setting in settings:
        builder = builder.config(*setting.split("=", 1))
    query = start(builder.getOrCreate(), Path(place), kind, int(crash), hub=of_hub == "1")
    (Path(place) / "started").touch()
    query.awaitTermination()
