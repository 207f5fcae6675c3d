"""Timing sides against each other, by the processor time of this process.

Rounds take the sides in turning order (:mod:`millrace.benchmarks.harness`). What other programs do meanwhile
shows in wall time much more than in processor time, so that the latter is compared.
"""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Mapping
from time import process_time

from millrace.benchmarks.harness import turned

_LEAST = 0.03
"""Seconds that one measurement takes at least: a short run is repeated within it."""

_MOST = 20
"""Repetitions within a measurement, at most."""


def medians(sides: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Return the median seconds of a run by side, each warmed up once, of so many measurements of each."""
    repeats = {name: _repeats(run) for name, run in sides.items()}
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds):
        for name in turned(list(sides), number):
            gc.collect()
            began = process_time()
            for _ in range(repeats[name]):
                sides[name]()
            seconds[name].append((process_time() - began) / repeats[name])
    return {name: statistics.median(found) for name, found in seconds.items()}


def _repeats(run: Callable[[], object]) -> int:
    """Return how often to run a side within a measurement, from a second look at it."""
    run()
    began = process_time()
    run()
    return max(1, min(_MOST, round(_LEAST / max(process_time() - began, 1e-9))))
