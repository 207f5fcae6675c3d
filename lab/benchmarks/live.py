"""What it costs that tasks tell their figures while they work and somebody looks at the page.

The same queries run with the page and without, in turn; the page is asked for once a second, as a browser
does. What is planned while nobody looks tells nothing, so the sides without it are as they always were.
"""

from __future__ import annotations

import json
import threading
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import millrace
from lab.benchmarks import harness
from lab.benchmarks.harness import Outcome, Target
from lab.benchmarks.show import Ticker
from millrace.api.live import EVERY, Live
from millrace.errors import ExecutionError
from millrace.reports.board.board import Board
from millrace.spark.reports import ended_tasks

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CASES = ("filter", "join")
_WITHOUT, _AGAIN, _WITH = "without", "without, again", "with the page"
_SIDES = (_WITHOUT, _AGAIN, _WITH)
_ROWS = 4_000_000
_FACTS = 60_000_000
_KEYS = 200_000


def runs(rounds: int) -> int:
    """Return how many steps of progress there will be."""
    return len(CASES) * len(_SIDES) * rounds


def bench(spark: SparkSession, scale: float, rounds: int, ticker: Ticker) -> Outcome:
    """Run the benchmark.

    Args:
        spark: The session.
        scale: Of the tables; 1 for queries of some ten seconds on two cores.
        rounds: Timed rounds of all sides.
        ticker: Told of each run.

    Raises:
        OptionError: Too few rounds.
        ExecutionError: Two sides count differently, or a query is over before anything is told.
    """
    harness.check_rounds(rounds)
    with TemporaryDirectory(prefix="millrace-bench-") as folder:
        tables = _tables(Path(folder), scale)
        makers: dict[str, Callable[[], DataFrame]] = {
            "filter": lambda: _filter(spark, scale),
            "join": lambda: _join(spark, tables),
        }
        rows = [_measured(name, makers[name], rounds, ticker) for name in CASES]
    figures = {
        "live_overhead_ratio": harness.geomean([row["ratio"] for row in rows]),
        "aa_ratio": harness.geomean([row["aa_ratio"] for row in rows]),
    }
    targets = {
        "live_overhead_ratio": Target(high=1.01),
        "aa_ratio": Target(0.99, 1.01, informational=True),
    }
    note = "ratios are medians of the rounds' own: with the page over the mean of both sides without it"
    return Outcome("live", scale, rounds, figures, rows, targets, [note])


class _Counted(Board):
    """A board that counts what it is told."""

    def __init__(self) -> None:
        super().__init__(finished=ended_tasks)
        self.heard = 0

    def told(self, *given: Any, **named: Any) -> None:
        """Note what a task tells."""
        self.heard += 1
        super().told(*given, **named)


def _measured(name: str, make: Callable[[], DataFrame], rounds: int, ticker: Ticker) -> dict[str, Any]:
    """Return a case as a row of the table."""
    board = _Counted()
    frames = {side: make() for side in (_WITHOUT, _AGAIN)}
    with Live(board=board):
        frames[_WITH] = make()
    ticker.says(f"{name}, warm-up")
    answers = set()
    for side in _SIDES:
        with _looked_at(board) if side == _WITH else nullcontext():
            answers.add(str(_run(frames[side])))
    if len(answers) > 1:
        raise ExecutionError(f"different answers of {name}: {answers}")
    board.heard = 0
    ticker.says(name)
    seconds: dict[str, list[float]] = {side: [] for side in _SIDES}
    for number in range(rounds):
        for side in harness.turned(_SIDES, number):
            with _looked_at(board) if side == _WITH else nullcontext():
                seconds[side].append(harness.timed(partial(_run, frames[side])))
            ticker.tick()
    if not board.heard:
        raise ExecutionError(f"{name} is over before anything is told: give a larger --scale")
    each = zip(*(seconds[side] for side in _SIDES), strict=True)
    return {
        "case": name,
        "seconds": harness.median(seconds[_WITHOUT]),
        "with_page": harness.median(seconds[_WITH]),
        "spread": harness.spread(seconds[_WITHOUT]),
        "ratio": harness.median([2 * page / (first + again) for first, again, page in each]),
        "aa_ratio": harness.median(
            [again / first for first, again in zip(seconds[_WITHOUT], seconds[_AGAIN], strict=True)]
        ),
        "told_a_run": board.heard / rounds,
    }


def _run(frame: DataFrame) -> list[Any]:
    return frame.select("*").collect()  # Spark keeps what a plan has exchanged, so each run has a new one


@contextmanager
def _looked_at(board: Board) -> Iterator[None]:
    """Serve the page while the body runs, and ask for it as a browser does."""
    over = threading.Event()
    with Live(board=board) as page:

        def look() -> None:
            known: dict[str, str] = {}
            while not over.wait(EVERY):
                asked = ",".join(f"{name}.{stamp}" for name, stamp in known.items())
                with urllib.request.urlopen(f"{page.url}parts.json?known={asked}") as answer:  # noqa: S310
                    known = {part["id"]: part["stamp"] for part in json.load(answer)["parts"]}

        thread = threading.Thread(target=look, name="millrace bench live", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


def _filter(spark: SparkSession, scale: float) -> DataFrame:
    """Return two functions of Python over numbers, each called for rows one by one."""
    first = millrace.predicate(lambda x: x * 2654435761 % 97 < 60, name="first")
    second = millrace.predicate(lambda x: x * 40503 % 89 < 30, name="second")
    rows = max(1000, round(_ROWS * scale))
    return millrace.where(spark.range(rows), first("id"), second("id")).selectExpr("count(*)", "sum(id)")


def _join(spark: SparkSession, tables: Mapping[str, str]) -> DataFrame:
    text = (
        "SELECT count(*), sum(f.v) FROM f JOIN a ON f.a = a.k JOIN b ON f.b = b.k JOIN c ON f.c = c.k "
        "WHERE a.x < 70 AND b.x < 50 AND c.x < 30"
    )
    return millrace.sql(text, spark, tables, options={"take_all": True})


def _tables(folder: Path, scale: float) -> dict[str, str]:
    """Write a table of facts with three keys, and a table for each of these."""
    random = np.random.default_rng(7)
    keys = np.arange(_KEYS)
    paths = {name: str(folder / f"{name}.parquet") for name in ("f", "a", "b", "c")}
    for name in ("a", "b", "c"):
        pq.write_table(pa.table({"k": random.permutation(keys), "x": keys % 100}), paths[name])
    left = max(1000, round(_FACTS * scale))
    schema = pa.schema([(name, pa.int64()) for name in ("a", "b", "c", "v")])
    with pq.ParquetWriter(paths["f"], schema) as writer:
        while left:
            rows = min(left, 1 << 20)
            columns = [pa.array(random.integers(0, _KEYS, rows)) for _ in schema]
            writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))
            left -= rows
    return paths
