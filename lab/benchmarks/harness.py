"""What all benchmarks share: rounds, statistics, targets, the JSON format.

Rounds interleave the sides and turn their order round after round, so that a slow minute of the
machine or a warm cache favours nobody. One side appears a second time (the A/A control): the ratio
of its two medians shows how much of any other ratio is noise.
"""

from __future__ import annotations

import gc
import math
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from millrace.errors import OptionError, near

MIN_ROUNDS = 5
_PACKAGES = ("millrace", "pyspark", "pyarrow", "numpy", "numba", "sqlglot", "pandas", "duckdb", "polars")


@dataclass(frozen=True)
class Target:
    """What a figure should be: between ``low`` and ``high``.

    ``informational`` targets are shown and never fail a run.
    """

    low: float = -math.inf
    high: float = math.inf
    informational: bool = False

    def met(self, value: float) -> bool:
        """Tell whether the value is within the target; NaN never is."""
        return self.low <= value <= self.high

    def __str__(self) -> str:
        if self.low == self.high:
            text = f"= {self.low:g}"
        elif math.isinf(self.low):
            text = f"≤ {self.high:g}"
        elif math.isinf(self.high):
            text = f"≥ {self.low:g}"
        else:
            text = f"{self.low:g} to {self.high:g}"
        return f"{text} (for information)" if self.informational else text


@dataclass(frozen=True)
class Outcome:
    """A finished benchmark.

    Attributes:
        bench: Its name.
        scale: Size of the data, in the benchmark's own unit.
        rounds: Timed rounds, warm-up not counted.
        figures: The named figures.
        rows: One dictionary per case, with medians and spreads.
        targets: By figure name.
        notes: Remarks printed below the table.
    """

    bench: str
    scale: float
    rounds: int
    figures: Mapping[str, float]
    rows: Sequence[Mapping[str, Any]]
    targets: Mapping[str, Target] = field(default_factory=dict)
    notes: Sequence[str] = ()

    def missed(self) -> list[str]:
        """Return one sentence per target that was missed."""
        return [
            f"{name} is {self.figures[name]:.3f}, the target is {target}"
            for name, target in self.targets.items()
            if name in self.figures and not target.informational and not target.met(self.figures[name])
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return the one JSON format of all benchmarks."""
        return {
            "bench": self.bench,
            "versions": versions(),
            "scale": self.scale,
            "rounds": self.rounds,
            "figures": dict(self.figures),
            "rows": [dict(row) for row in self.rows],
        }


def versions() -> dict[str, str]:
    """Return versions of what was measured with, and what the machine is."""
    found = {"python": platform.python_version(), "cpus": str(os.cpu_count()), "machine": platform.machine()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def parse_names(option: str, text: str, known: Sequence[str]) -> tuple[str, ...]:
    """Return the names in ``"one,two"``, each once.

    Args:
        option: What the text is given as.
        text: Names between commas.
        known: Those that there are.

    Raises:
        OptionError: One of them is not known.
    """
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    for name in names:
        if name not in known:
            raise OptionError(f"{option} has {name!r}: {near(name, known)}")
    return names


def check_rounds(rounds: int) -> None:
    """Raise :class:`OptionError` for fewer rounds than a median can bear."""
    if rounds < MIN_ROUNDS:
        raise OptionError(f"rounds is {rounds}: expected at least {MIN_ROUNDS}")


def interleave(
    sides: Mapping[str, Callable[[], object]],
    rounds: int,
    finished: Callable[[], None] = lambda: None,
) -> dict[str, list[float]]:
    """Time every side once a round, in turning order, and return seconds by side.

    Args:
        sides: What to run, already warmed up by the caller.
        rounds: How often.
        finished: Called after each single run.
    """
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds):
        for name in turned(list(sides), number):
            seconds[name].append(timed(sides[name]))
            finished()
    return seconds


def turned(names: Sequence[str], number: int) -> list[str]:
    """Return the order of round ``number``: rotated by one each round, and back to front every other."""
    shift = number % len(names)
    order = [*names[shift:], *names[:shift]]
    return order if number % 2 == 0 else order[::-1]


def timed(run: Callable[[], object]) -> float:
    """Return the wall time of one call, in seconds, garbage of earlier ones collected before."""
    gc.collect()
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def median(values: Sequence[float]) -> float:
    """Return the median."""
    return statistics.median(values)


def spread(values: Sequence[float]) -> float:
    """Return (largest - smallest) / median."""
    middle = statistics.median(values)
    return (max(values) - min(values)) / middle if middle else 0.0


def geomean(values: Sequence[float]) -> float:
    """Return the geometric mean, NaN of nothing."""
    return statistics.geometric_mean(values) if values else math.nan
