"""What all benchmarks share: races, statistics, targets, the tables that are printed, the JSON document.

A race runs each side once to warm up and compares the answers before any time counts. Its rounds
interleave the sides and turn their order, so that a slow minute of the machine or a warm cache favours
nobody. One side appears a second time (the A/A control): the ratio of its two medians shows how much of
any other ratio is noise.
"""

from __future__ import annotations

import gc
import json
import math
import os
import platform
import statistics
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from millrace.errors import ExecutionError, OptionError, near

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MIN_ROUNDS = 5
FEW_ROUNDS = 2
"""Rounds of the sides that no target is about."""

AA = "aa_ratio"
"""The figure of the A/A control; no run fails by it."""

_PACKAGES = ("millrace", "pyspark", "pyarrow", "numpy", "numba", "sqlglot", "pandas", "duckdb")


@dataclass(frozen=True)
class Target:
    """The range in which a figure should be."""

    low: float = -math.inf
    high: float = math.inf

    def met(self, value: float) -> bool:
        """Tell whether the value is within the target; NaN never is."""
        return self.low <= value <= self.high

    def __str__(self) -> str:
        if self.low == self.high:
            return f"= {self.low:g}"
        if math.isinf(self.low):
            return f"≤ {self.high:g}"
        return f"≥ {self.low:g}" if math.isinf(self.high) else f"{self.low:g} to {self.high:g}"


@dataclass
class Run:
    """One run of a benchmark: its options, its session, and what it has found.

    Attributes:
        names: Cases.
        scale: Size of the data, in the benchmark's own unit.
        rounds: Timed rounds, warm-up not counted.
        quick: Leave out what takes long and no target is about.
        session: Starts a session with settings; called when the first side needs one.
        says: Shows what runs now.
        tells: Prints what a case has shown as soon as it is over, so that a run that is stopped has told it.
        controls: Ratios of sides to themselves; their geometric mean becomes a figure.
        peer: Address of a Spark Connect server that answers the same queries; None for none.
    """

    names: tuple[str, ...]
    scale: float
    rounds: int
    quick: bool = False
    session: Callable[[Mapping[str, str]], SparkSession] | None = None
    says: Callable[[str], object] = str
    tells: Callable[[str], object] = str
    conf: Mapping[str, str] = field(default_factory=dict)
    figures: dict[str, float] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    targets: dict[str, Target] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    controls: list[float] = field(default_factory=list)
    peer: str | None = None

    @cached_property
    def spark(self) -> SparkSession:
        assert self.session is not None, "this run has no session"
        return self.session(self.conf)

    def race(
        self,
        name: str,
        sides: Mapping[str, Callable[[], Any]],
        *,
        control: str = "",
        answer: Any = None,
        check: Callable[[str, Any, Any], object] | None = None,
        few: Collection[str] = (),
        rounds: int | None = None,
        repeats: int = 1,
    ) -> Times:
        """Measure the sides of one case.

        Args:
            name: Of the case.
            sides: By name; each returns its answer, or a :class:`Ran` with more.
            control: The side that runs a second time, as ``… again``.
            answer: What each side must answer, in each run; None for what the first side does.
            check: Takes a side, its answer and the expected one after each run, in place of an equality.
            few: Sides that take part in the first rounds only.
            rounds: Timed rounds; the run's by default.
            repeats: Runs of each side in a round.

        Raises:
            ExecutionError: Sides answer differently.
        """
        times = Times(name, {side: [] for side in sides}, {side: [] for side in sides})
        expected = answer

        def checked(side: str, what: str) -> Ran:
            self.says(f"{name}: {side}, {what}")
            ran = _measured(sides[side])
            wanted = ran.answer if expected is None else expected
            if check is not None:
                check(side, ran.answer, wanted)
            elif ran.answer != wanted:
                raise ExecutionError(f"{name}, {side}: the answer is {ran.answer}, expected {wanted}")
            return ran

        for side in sides:
            warm = checked(side, "warm-up")
            expected = warm.answer if expected is None else expected
        if control:
            sides = {**sides, f"{control} again": sides[control]}
            times.seconds[f"{control} again"], times.notes[f"{control} again"] = [], []
        for number in range(self.rounds if rounds is None else rounds):
            for side in turned([s for s in sides if number < FEW_ROUNDS or s not in few], number):
                for _ in range(repeats):
                    ran = checked(side, f"round {number + 1}")
                    assert ran.seconds is not None
                    times.seconds[side].append(ran.seconds)
                    times.notes[side].append(ran.note)
        if control:
            self.controls.append(times.control(control))
        self.tells(f"{name}: " + ", ".join(f"{side} {times.median(side):.3f} s" for side in sides))
        return times

    def missed(self) -> list[str]:
        """Return one sentence per target that was missed."""
        return [
            f"{name} is {self.figures[name]:.3f}, the target is {target}"
            for name, target in self.targets.items()
            if name in self.figures and not target.met(self.figures[name])
        ]


@dataclass(frozen=True)
class Ran:
    """An answer with what else is known of the run; its own seconds where the side took the time itself."""

    answer: Any
    note: Any = None
    seconds: float | None = None


@dataclass(frozen=True)
class Times:
    """What a race has measured: seconds and notes of each run, by side."""

    case: str
    seconds: dict[str, list[float]]
    notes: dict[str, list[Any]]

    def median(self, *names: str) -> float:
        """Return the median over all runs of some sides, which are the same thing."""
        return statistics.median([s for name in names for s in self.seconds[name]])

    def ratio(self, one: str, *others: str) -> float:
        """Return the median of one side over that of others."""
        return self.median(one) / self.median(*others)

    def control(self, name: str) -> float:
        return self.ratio(name, f"{name} again")

    def note(self, side: str, name: str) -> float:
        middle: float = statistics.median(note[name] for note in self.notes[side])
        return middle

    def rows(self, **case: Any) -> list[dict[str, Any]]:
        """Return a row for each side, with the medians of the numbers in its notes."""
        return [
            {"case": self.case, **case, "side": name, "runs": len(s)}
            | {"median_s": self.median(name), "spread": spread(s)}
            | {number: self.note(name, number) for number in self.notes[name][0] or ()}
            for name, s in self.seconds.items()
        ]


@dataclass(frozen=True)
class Bench:
    """A benchmark: what runs it, what ``--cases`` may name, and defaults.

    A run that names no cases takes the ``usual`` ones, else all. ``least`` is the fewest rounds that a
    median can bear; ``conf`` are Spark's settings.
    """

    measure: Callable[[Run], None]
    cases: tuple[str, ...]
    targets: Mapping[str, Target] = field(default_factory=dict)
    usual: tuple[str, ...] = ()
    quick: tuple[str, ...] = ()
    rounds: int = MIN_ROUNDS
    least: int = MIN_ROUNDS
    master: str = "local[*]"
    conf: Mapping[str, str] = field(default_factory=dict)

    def run(self, cases: str | None, scale: float, rounds: int | None, *, quick: bool) -> Run:
        """Return a run of the cases in ``"one,two"``, the usual ones of None.

        Raises:
            OptionError: There is no such case, or a median needs more rounds.
        """
        names = (self.quick if quick else ()) or self.usual or self.cases
        if cases is not None:
            names = tuple(dict.fromkeys(part.strip() for part in cases.split(",")))
        for name in names:
            if name not in self.cases:
                raise OptionError(f"there is no case {name!r}: {near(name, self.cases)}")
        if rounds is not None and rounds < self.least:
            raise OptionError(f"rounds is {rounds}: expected at least {self.least}")
        targets = dict(self.targets)
        return Run(names, scale, rounds or self.rounds, quick, conf=self.conf, targets=targets)


def _measured(call: Callable[[], Any]) -> Ran:
    seconds, result = timed(call)
    ran = result if isinstance(result, Ran) else Ran(result)
    return Ran(ran.answer, ran.note, seconds if ran.seconds is None else ran.seconds)


def turned(names: Sequence[str], number: int) -> list[str]:
    """Return the order of round ``number``: rotated by one each round, and back to front every other."""
    shift = number % len(names)
    order = [*names[shift:], *names[:shift]]
    return order if number % 2 == 0 else order[::-1]


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    """Return the wall time of a call in seconds, garbage of earlier ones collected before; and its result."""
    gc.collect()
    start = time.perf_counter()
    result = call()
    return time.perf_counter() - start, result


def spread(values: Sequence[float]) -> float:
    """Return (largest - smallest) / median."""
    middle = statistics.median(values)
    return (max(values) - min(values)) / middle if middle else 0.0


def geomean(values: Sequence[float]) -> float:
    """Return the geometric mean, NaN of nothing."""
    return statistics.geometric_mean(values) if values else math.nan


def versions() -> dict[str, str]:
    """Return versions of what was measured with, and what the machine is."""
    found = {"python": platform.python_version(), "cpus": str(os.cpu_count()), "machine": platform.machine()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def execute(
    name: str, bench: Bench, run: Run, master: str | None, target: str | None, debug: bool
) -> list[str]:
    """Run a benchmark, print its tables, and write its JSON document, ``-`` to stdout.

    Returns the targets that were missed, a sentence each.
    """
    stderr = Console(stderr=True)
    with ExitStack() as stack:
        status = stack.enter_context(stderr.status(f"{name}: starting"))

        def session(conf: Mapping[str, str]) -> SparkSession:
            from millrace.cli.session import session as started

            where = master or bench.master
            return stack.enter_context(started(f"lab bench {name}", where, None, conf, debug))

        run.says, run.tells, run.session = status.update, stderr.print, session
        bench.measure(run)
    if run.controls:
        run.figures[AA] = geomean(run.controls)
    show(name, run, stderr if target == "-" else Console())
    document = {"bench": name, "versions": versions(), "scale": run.scale, "rounds": run.rounds}
    text = json.dumps(_plain({**document, "figures": run.figures, "rows": run.rows}), indent=2)
    if target == "-":
        print(text)
    elif target:
        Path(target).write_text(text + "\n", encoding="utf-8")
    missed = run.missed()
    for sentence in missed:
        stderr.print(f"missed: {sentence}")
    return missed


def _plain(value: Any) -> Any:
    """Return a value in what JSON knows, where NaN is null."""
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def show(name: str, run: Run, console: Console) -> None:
    """Print the rows, the figures with their targets, and the notes."""
    heads = list(dict.fromkeys(head for row in run.rows for head in row))
    table = Table(*heads, title=f"{name}, scale {run.scale:g}, {run.rounds} rounds")
    for row in run.rows:
        table.add_row(*(_cell(row.get(head)) for head in heads))
    figures = Table("figure", "value", "target", "", title="figures")
    for figure, value in run.figures.items():
        target = run.targets.get(figure)
        verdict = "" if target is None else "met" if target.met(value) else "missed"
        figures.add_row(figure, _cell(value), str(target or ""), verdict)
    console.print(table, figures, *run.notes, sep="\n")


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "NO"
    if not isinstance(value, int | float):
        return "" if value is None else str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:,.3f}"
