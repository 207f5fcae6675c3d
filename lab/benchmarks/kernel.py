"""A symmetric hash join on the multimap kernel against DuckDB and Polars, one thread each.

Two tables of as many random ``int64`` keys are joined on equality and the matches counted, about one
for each row. Keys lie in the range of the tables' size, as numbers that a database hands out do; the
*scattered* case spreads them over the whole of ``int64``, as hashes do, where no addressing by
distance helps. Millrace's side does what an eddy does with two SteMs: batches of 10,000 from
either side in turn, each built into its own table and probed into the other's. The kernel runs
in this process; Polars takes its number of threads when it is loaded, so it runs in one of its own,
which times itself.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from lab.benchmarks import harness
from lab.benchmarks.harness import Outcome, Target, parse_names
from lab.benchmarks.rivals import counted_by_duckdb
from lab.benchmarks.show import Ticker
from millrace.engine.kernels import Multimap
from millrace.errors import ExecutionError, SetupError

CASES = {"5m": 5_000_000, "1m": 1_000_000, "5m_scattered": 5_000_000}
RIVALS = ("duckdb", "polars")
BATCH = 10_000
_SEED = 20_000


def parse_rivals(text: str) -> tuple[str, ...]:
    """Return the engines in ``"duckdb,polars"``.

    Raises:
        OptionError: One of them is not known.
        SetupError: One of them is not installed.
    """
    names = parse_names("against", text, RIVALS)
    for name in names:
        if find_spec(name) is None:
            raise SetupError(f"{name} is not installed: pip install 'millrace[bench]'")
    return names


def bench(rivals: tuple[str, ...], sizes: tuple[str, ...], rounds: int, ticker: Ticker) -> Outcome:
    """Run the benchmark.

    Raises:
        OptionError: Too few rounds.
        ExecutionError: Two sides disagree on the number of matches.
    """
    harness.check_rounds(rounds)
    figures: dict[str, float] = {}
    rows: list[dict[str, Any]] = []
    controls: list[float] = []
    for size in sizes:
        left, right = keys(CASES[size], scattered="scattered" in size)
        with sides_for(left, right, rivals) as sides:
            answers = {name: count() for name, (count, _) in sides.items()}
            if len(set(answers.values())) > 1:
                raise ExecutionError(f"different numbers of matches at {size}: {answers}")
            seconds = _rounds({name: clock for name, (_, clock) in sides.items()}, size, rounds, ticker)
        ours = harness.median(seconds["millrace"])
        for rival in rivals:
            figures[f"{rival}_ratio_{size}"] = ours / harness.median(seconds[rival])
        controls.append(ours / harness.median(seconds["millrace again"]))
        rows += [
            {
                "size": f"{size} ⋈ {size}",
                "engine": name,
                "median_s": harness.median(times),
                "spread": harness.spread(times),
                "tuples_per_s": round(2 * CASES[size] / harness.median(times)),
                "matches": answers[name],
            }
            for name, times in seconds.items()
        ]
    figures["aa_ratio"] = harness.geomean(controls)
    targets = {
        f"duckdb_ratio_{size}": Target(high=1.2)
        for size in sizes
        if "duckdb" in rivals and "scattered" not in size
    }
    targets["aa_ratio"] = Target(0.9, 1.1, informational=True)
    largest = max(CASES[size] for size in sizes)
    return Outcome("kernel", largest, rounds, figures, rows, targets, ["one thread each"])


def _rounds(
    sides: dict[str, Callable[[], float]], size: str, rounds: int, ticker: Ticker
) -> dict[str, list[float]]:
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds):
        ticker.says(f"{size} ⋈ {size}, round {number + 1}")
        for name in harness.turned(list(sides), number):
            seconds[name].append(sides[name]())
            ticker.tick()
    return seconds


def keys(rows: int, *, scattered: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Return two columns of ``rows`` random ``int64`` keys with about one match a row."""
    random = np.random.default_rng(_SEED)
    columns = random.integers(0, rows, rows), random.integers(0, rows, rows)
    if not scattered:
        return columns
    places = random.integers(-(2**62), 2**62, rows)
    return places[columns[0]], places[columns[1]]


def symmetric_join(left: np.ndarray, right: np.ndarray, batch: int = BATCH) -> int:
    """Return the number of matches, by building and probing batches of both sides in turn."""
    tables = (Multimap(), Multimap())
    matches = 0
    for start in range(0, len(left), batch):
        for side, column in enumerate((left, right)):
            codes = column[start : start + batch]
            tables[side].insert(codes)
            matches += _probe(tables[1 - side], codes)
    return matches


def _probe(table: Multimap, codes: np.ndarray) -> int:
    count, walk = 0, table.probe(codes)
    while not walk.is_done:
        count += len(table.matches(walk, 4 * BATCH)[0])
    return count


Side = tuple[Callable[[], int], Callable[[], float]]
"""Counts the matches (and warms up); times one run, in seconds."""


@contextmanager
def sides_for(left: np.ndarray, right: np.ndarray, rivals: tuple[str, ...]) -> Iterator[dict[str, Side]]:
    """Give the sides by name; programs and connections end with the body."""

    def ours() -> int:
        return symmetric_join(left, right)

    with ExitStack() as stack:
        sides: dict[str, Side] = {"millrace": (ours, lambda: harness.timed(ours))}
        if "duckdb" in rivals:
            sides["duckdb"] = stack.enter_context(_duckdb(left, right))
        if "polars" in rivals:
            sides["polars"] = stack.enter_context(_polars(left, right))
        sides["millrace again"] = sides["millrace"]
        yield sides


@contextmanager
def _duckdb(left: np.ndarray, right: np.ndarray) -> Iterator[Side]:
    tables = {"l": pa.table({"k": left}), "r": pa.table({"k": right})}
    with counted_by_duckdb(tables, "SELECT count(*) FROM l JOIN r ON l.k = r.k") as count:
        yield count, lambda: harness.timed(count)


_POLARS = """
import sys, time
import numpy as np, polars as pl
left, right = (pl.DataFrame({"k": np.load(path)}).lazy() for path in sys.argv[1:3])
query = left.join(right, on="k").select(pl.len())
for _ in sys.stdin:
    start = time.perf_counter()
    count = query.collect().item()
    print(count, time.perf_counter() - start, flush=True)
"""


@contextmanager
def _polars(left: np.ndarray, right: np.ndarray) -> Iterator[Side]:
    with tempfile.TemporaryDirectory(prefix="millrace-") as folder:
        paths = [Path(folder) / "left.npy", Path(folder) / "right.npy"]
        for path, column in zip(paths, (left, right), strict=True):
            np.save(path, column)
        process = subprocess.Popen(
            [sys.executable, "-c", _POLARS, *map(str, paths)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "POLARS_MAX_THREADS": "1"},
        )
        assert process.stdin is not None and process.stdout is not None
        asked, answers = process.stdin, process.stdout

        def ask() -> tuple[int, float]:
            asked.write("go\n")
            asked.flush()
            answer = answers.readline().split()
            if len(answer) != 2:
                raise ExecutionError(f"the Polars process ended with exit code {process.wait()}")
            return int(answer[0]), float(answer[1])

        with process:
            try:
                yield (lambda: ask()[0]), (lambda: ask()[1])
            finally:
                asked.close()
                process.wait(timeout=60)
