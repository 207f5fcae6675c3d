"""Joins of streams: one eddy in each cell against Spark's chain of two-way joins, batch by batch.

All sides run in one session, each with a checkpoint and files of its own, and only one has new files at a
time: so each micro-batch is measured side by side. Spark's joins are tuned: state in RocksDB with changelogs,
rows not tracked, the newest format, as many partitions as cores. What a micro-batch takes is what Spark
reports of it, from trigger to commit. The first ones, in which workers start, are not counted.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from lab.benchmarks import crashing, harness, stream_hub, stream_memory
from lab.benchmarks.harness import Outcome, Target
from lab.benchmarks.show import Ticker
from lab.benchmarks.stream_cases import CASES, Case
from lab.benchmarks.stream_crashes import JoinWork
from lab.benchmarks.stream_hub_crashes import HubWork
from lab.benchmarks.stream_sides import FIXED, SKIPPED, Measured, Side, measured, own_folder
from millrace.streams import plan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTINGS = {
    **plan.SETTINGS,
    "spark.sql.streaming.join.stateFormatVersion": "4",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.sql.streaming.numRecentProgressUpdates": "1000",
    "spark.sql.streaming.pollingDelay": "300",
}
RECOVERY = "recovery"
"""The case of a restart with a large window."""

_WINDOW = Case(3, 100_000, window=600)
_FILLING = 20
"""Micro-batches until it has two million rows."""

HUB = "hub"
"""The case of many queries."""

MEMORY = "memory"
"""The case of many micro-batches."""

CRASHES = "crashes"
"""The case of a driver that is killed."""

HUB_CRASHES = "hub-crashes"
"""The same with a hub, whose queries come and go."""

NAMES = (*CASES, RECOVERY, HUB, MEMORY, CRASHES, HUB_CRASHES)

_RETAINED = "spark.sql.streaming.minBatchesToRetain"
_LATEST_CRASH = 3.0
"""Seconds after a query's start, or one of its commits."""

_SIDES = ("millrace", "spark", "millrace again")
TARGETS = {
    "three_way_ratio": Target(high=0.35),
    "five_way_ratio": Target(high=0.25),
    "drift_ratio": Target(high=0.3),
    "drift_fixed_ratio": Target(high=0.8),
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
        found = _case(spark, name, scale, rounds, partial(_told, ticker, name))
        figures |= found.figures
        rows += found.rows
        same &= found.same
    if set(names) != {MEMORY}:  # which has nothing to compare with
        figures["same_rows"] = float(same)
    notes = ["of a micro-batch from trigger to commit, as Spark says; memory of the largest worker process"]
    return Outcome("stream", scale, rounds, figures, rows, TARGETS, notes)


def _case(
    spark: SparkSession, name: str, scale: float, rounds: int, done: Callable[[str], object]
) -> Measured:
    if name == RECOVERY:
        return _large_recovery(spark, scale, done)
    if name == HUB:
        return stream_hub.hub(spark, scale, rounds, done)
    if name == MEMORY:
        return Measured(stream_memory.memory(spark, scale, done))
    if name in (CRASHES, HUB_CRASHES):
        return _crashes(spark, name, done)
    return _chained(spark, name, scale, rounds, done)


def _chained(
    spark: SparkSession, name: str, scale: float, rounds: int, done: Callable[[str], object]
) -> Measured:
    """Measure a case against Spark's chain of joins, and where feeds drift, against orders that stay."""
    case, figures = CASES[name].scaled(scale), dict[str, float]()
    with own_folder() as folder:
        sides = {side: Side(spark, case, side, folder / side.replace(" ", "_")) for side in _sides(name)}
        times = measured(case, sides, rounds, done)
        medians = {side: harness.median(taken) for side, taken in times.items()}
        figures[f"{name}_ratio"] = medians["millrace"] / medians["spark"]
        figures[f"{name}_aa"] = medians["millrace again"] / medians["millrace"]
        if case.drifts:
            figures["drift_fixed_ratio"] = medians["millrace"] / min(medians[side] for side in FIXED)
            work = {side: sum(sides[side].figure("seconds")[SKIPPED:]) for side in ("millrace", *FIXED)}
            figures["drift_fixed_work"] = work["millrace"] / min(work[side] for side in FIXED)
        if name == "three_way":
            sizes = {side: sides[side].state_bytes() for side in ("millrace", "spark")}
            figures["state_bytes_ratio"] = sizes["millrace"] / sizes["spark"]
        same = sides["millrace"].rows() == sides["spark"].rows()
    rows = [
        {"case": name, "side": side, "median_s": medians[side], "spread": harness.spread(times[side])}
        for side in sides
    ]
    return Measured(figures, rows, same)


def runs(names: tuple[str, ...], rounds: int) -> int:
    """Return how often a ticker ticks."""
    crashes = dict.fromkeys((CRASHES, HUB_CRASHES), crashing.CRASHES)
    fixed = {MEMORY: stream_memory.BATCHES, RECOVERY: 2 * _FILLING, **crashes}
    sides = {name: len(stream_hub.SIDES if name == HUB else _sides(name)) for name in names}
    return sum(fixed.get(name, sides[name] * (SKIPPED + rounds)) for name in names)


def _sides(name: str) -> tuple[str, ...]:
    return (*_SIDES, *FIXED) if name in CASES and CASES[name].drifts else _SIDES


def _told(ticker: Ticker, case: str, side: str) -> None:
    ticker.says(f"{case}: {side}")
    ticker.tick()


def _crashes(spark: SparkSession, case: str, done: Callable[[str], object]) -> Measured:
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
    figures = {
        crashes: float(found.crashes),
        f"{crashes}_survived": found.sound if found.same else 0,
        f"{crash}_micro_batches": found.files,
        f"{crash}_rows": found.rows,
    }
    return Measured(figures, same=found.same)


def _large_recovery(spark: SparkSession, scale: float, done: Callable[[str], object]) -> Measured:
    """Return what the first micro-batch after a restart takes over Spark's, with a window of 2M rows."""
    case = _WINDOW.scaled(scale)
    with own_folder() as folder:
        sides = {side: Side(spark, case, side, folder / side) for side in ("millrace", "spark")}
        measured(case, sides, _FILLING - SKIPPED, done)
        held = sides["millrace"].figure("held")[-1]
        taken = {"cold": _restarted(case, sides["millrace"], _FILLING, cold=True)}
        taken["warm"] = _restarted(case, sides["millrace"], _FILLING + 1, cold=False)
        taken["spark"] = _restarted(case, sides["spark"], _FILLING, cold=False)
        _restarted(case, sides["spark"], _FILLING + 1, cold=False)
        same = sides["millrace"].rows() == sides["spark"].rows()
    figures = {
        "recovery_ratio": taken["cold"] / taken["spark"],
        "recovery_warm_ratio": taken["warm"] / taken["spark"],
        "recovery_rows": held,
    }
    return Measured(figures, same=same)


def _restarted(case: Case, side: Side, batch: int, *, cold: bool) -> float:
    """Return the seconds of a side's first micro-batch after a restart.

    Args:
        case: Writes the files.
        side: The side.
        batch: Number of the micro-batch.
        cold: Whether only the checkpoint is left.
    """
    if cold:
        side.forget()
    case.write([side.folder], batch, batch)
    try:
        side.start()
        return side.work()
    finally:
        side.stop()
