"""How long a fresh worker takes to its first batch: modules to load, compiled kernels to read.

Each run is a process of its own that has loaded what Spark's worker loads by itself. The first query of a
session pays for it, and whatever comes first on a new executor.
"""

from __future__ import annotations

import subprocess
import sys

from lab.benchmarks import harness
from lab.benchmarks.harness import Outcome, Target
from lab.benchmarks.show import Ticker
from millrace.errors import ExecutionError

KINDS = ("filter", "join")

_WORKER = """
import sys, time
import pyarrow, pyspark.worker
began = time.perf_counter()
from lab.benchmarks.first_batch import first_batch
first_batch(sys.argv[1])
print(time.perf_counter() - began)
"""


def bench(rounds: int, ticker: Ticker) -> Outcome:
    """Run the benchmark; the first process of each kind, which may compile, is not counted.

    Raises:
        OptionError: Too few rounds.
        ExecutionError: A process failed.
    """
    harness.check_rounds(rounds)
    seconds: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for number in range(rounds + 1):
        for kind in KINDS:
            ticker.says(f"{kind}, process {number + 1}")
            taken = _process(kind)
            if number:
                seconds[kind].append(taken)
            ticker.tick()
    figures = {f"first_{kind}_s": harness.median(times) for kind, times in seconds.items()}
    rows = [
        {"first batch of a": kind, "median_s": harness.median(times), "spread": harness.spread(times)}
        for kind, times in seconds.items()
    ]
    targets = {name: Target(high=0.25) for name in figures}
    return Outcome("start", 1, rounds, figures, rows, targets, ["beyond what Spark's worker loads by itself"])


def _process(kind: str) -> float:
    ran = subprocess.run([sys.executable, "-c", _WORKER, kind], capture_output=True, text=True, check=False)
    if ran.returncode:
        raise ExecutionError(f"a process that runs a {kind} failed: {ran.stderr.strip()[-500:]}")
    return float(ran.stdout)
