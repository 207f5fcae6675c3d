"""Joins of streams: one eddy in each cell against Spark's chain of two-way joins, batch by batch.

All sides run in one session, each with a checkpoint and files of its own, and only one has new files at a
time: so each micro-batch is measured side by side. Spark's joins are tuned: state in RocksDB with changelogs,
rows not tracked, the newest format, as many partitions as cores. What a micro-batch takes is what Spark
reports of it, from trigger to commit. The first ones, in which workers start, are not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from millrace.benchmarks import crashing, harness, stream_hub, stream_memory
from millrace.benchmarks.harness import Outcome, Target
from millrace.benchmarks.show import Ticker
from millrace.benchmarks.stream_cases import CASES, Case
from millrace.benchmarks.stream_crashes import JoinWork
from millrace.benchmarks.stream_hub_crashes import HubWork
from millrace.benchmarks.stream_sides import SKIPPED, Side, measured, own_folder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
HUB = "hub"
"""The case of many queries."""

MEMORY = "memory"
"""The case of many micro-batches."""

CRASHES = "crashes"
"""The case of a driver that is killed."""

HUB_CRASHES = "hub-crashes"
"""The same with a hub, whose queries come and go."""

NAMES = (*CASES, HUB, MEMORY, CRASHES, HUB_CRASHES)

_RETAINED = "spark.sql.streaming.minBatchesToRetain"
_LATEST_CRASH = 3.0
"""Seconds after a query's start, or one of its commits."""

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
    "crashes_survived": Target(low=crashing.CRASHES),
    "hub_crashes_survived": Target(low=crashing.CRASHES),
    "hub_100_ratio": Target(high=4),
    "hub_8_ratio": Target(high=0.05),
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
        if name == HUB:
            outcome = stream_hub.hub(spark, scale, rounds, partial(_told, ticker, name))
            figures |= outcome.figures
            rows += outcome.rows
            same &= outcome.same
            continue
        if name == MEMORY:
            figures |= stream_memory.memory(spark, scale, partial(_told, ticker, name))
            continue
        if name in (CRASHES, HUB_CRASHES):
            found, alike = _crashes(spark, name, partial(_told, ticker, name))
            figures |= found
            same &= alike
            continue
        case = CASES[name]
        case = Case(case.streams, max(60, round(case.rows * scale)), case.drifts, case.window)
        with own_folder() as folder:
            sides = {side: Side(spark, case, side, folder / side.replace(" ", "_")) for side in _SIDES}
            times = measured(case, sides, rounds, partial(_told, ticker, name))
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
    if set(names) != {MEMORY}:  # which has nothing to compare with
        figures["same_rows"] = float(same)
    notes = ["of a micro-batch from trigger to commit, as Spark says; memory of the largest worker process"]
    return Outcome("stream", scale, rounds, figures, rows, TARGETS, notes)


def runs(names: tuple[str, ...], rounds: int) -> int:
    """Return how often a ticker ticks."""
    crashes = dict.fromkeys((CRASHES, HUB_CRASHES), crashing.CRASHES)
    fixed = {MEMORY: stream_memory.BATCHES, **crashes}
    sides = {name: len(stream_hub.SIDES if name == HUB else _SIDES) for name in names}
    return sum(fixed.get(name, sides[name] * (SKIPPED + rounds)) for name in names)


def _told(ticker: Ticker, case: str, side: str) -> None:
    ticker.says(f"{case}: {side}")
    ticker.tick()


def _crashes(spark: SparkSession, case: str, done: Callable[[str], object]) -> tuple[dict[str, float], bool]:
    """Return the figures of crashes, and whether the rows were the batch answer's in the end."""
    before = spark.conf.get(_RETAINED)
    spark.conf.set(_RETAINED, "20")  # so that a hub puts its changes together meanwhile
    try:
        with own_folder() as folder:
            work = JoinWork(spark, folder) if case == CRASHES else HubWork(spark, folder, 7)
            found = crashing.crashes(spark, work, crashing.CRASHES, 7, _LATEST_CRASH, done)
    finally:
        spark.conf.set(_RETAINED, str(before))
    crashes, crash = ("crashes", "crash") if case == CRASHES else ("hub_crashes", "hub_crash")
    figures: dict[str, float] = {
        crashes: found.crashes,
        f"{crashes}_survived": found.sound if found.same else 0,
        f"{crash}_micro_batches": found.files,
        f"{crash}_rows": found.rows,
    }
    return figures, found.same


def _recovery(case: Case, sides: Mapping[str, Side], batch: int) -> float:
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
