"""What all benchmarks share: races, statistics, targets, equality of rows, the JSON format.

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
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from rich.console import Console
from rich.table import Table

from millrace.errors import ExecutionError, OptionError, near

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MIN_ROUNDS = 5
FEW_ROUNDS = 2
"""Rounds of the sides that no target is about."""

_PACKAGES = ("millrace", "pyspark", "pyarrow", "numpy", "numba", "sqlglot", "pandas", "duckdb", "polars")
_FLOAT = "<float>"

Case = Mapping[str, Callable[[], Any]]
"""The sides of a race by name; each returns its answer, or a :class:`Ran` with more."""


@dataclass(frozen=True)
class Target:
    """The range in which a figure should be; a target for information never fails a run."""

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
        else:
            text = f"≥ {self.low:g}" if math.isinf(self.high) else f"{self.low:g} to {self.high:g}"
        return f"{text} (for information)" if self.informational else text


CONTROL = Target(0.9, 1.1, informational=True)
"""Of the A/A control."""


@dataclass
class Outcome:
    """A finished benchmark: figures by name, one dictionary per row of its table, targets, remarks."""

    figures: dict[str, float] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    targets: dict[str, Target] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def add(self, part: str, other: Outcome) -> None:
        """Take over what a part has found.

        Figures whose names are taken get the part's name in front; the control is the worst of all.
        """
        for name, value in other.figures.items():
            if name == "aa_ratio" and name in self.figures:
                self.figures[name] = max(self.figures[name], value, key=lambda ratio: abs(math.log(ratio)))
                continue
            mine = f"{part}_{name}" if name in self.figures else name
            self.figures[mine] = value
            if name in other.targets:
                self.targets[mine] = other.targets[name]
        self.rows += other.rows
        self.notes += other.notes

    def missed(self) -> list[str]:
        """Return one sentence per target that was missed."""
        return [
            f"{name} is {self.figures[name]:.3f}, the target is {target}"
            for name, target in self.targets.items()
            if name in self.figures and not target.informational and not target.met(self.figures[name])
        ]


@dataclass
class Run:
    """One run of a benchmark: its options, its session, and the line that shows what happens.

    Attributes:
        names: Cases.
        scale: Size of the data, in the benchmark's own unit.
        rounds: Timed rounds, warm-up not counted.
        quick: Leave out what takes long and no target is about.
        session: Starts a session with settings; called when the first side needs one.
        says: Shows what runs now.
        peer: Address of a Spark Connect server that answers the same queries; None for none.
    """

    names: tuple[str, ...]
    scale: float
    rounds: int
    quick: bool = False
    peer: str | None = None
    session: Callable[[Mapping[str, str]], SparkSession] | None = None
    says: Callable[[str], object] = str
    conf: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def spark(self) -> SparkSession:
        """The session, started when it is first used."""
        assert self.session is not None, "this run has no session"
        return self.session(self.conf)


@dataclass(frozen=True)
class Bench:
    """A benchmark.

    Attributes:
        measure: Runs it.
        cases: What ``--cases`` may name.
        usual: Cases of a run that names none; all by default.
        quick: Cases of a quick run.
        rounds: Timed rounds by default.
        least: Fewest rounds that a median can bear.
        master: Spark's master by default.
        conf: Spark's settings.
    """

    measure: Callable[[Run], Outcome]
    cases: tuple[str, ...]
    usual: tuple[str, ...] = ()
    quick: tuple[str, ...] = ()
    rounds: int = MIN_ROUNDS
    least: int = MIN_ROUNDS
    master: str = "local[*]"
    conf: Mapping[str, str] = field(default_factory=dict)

    def names(self, text: str | None, *, quick: bool) -> tuple[str, ...]:
        """Return the cases in ``"one,two"``, each once; the usual ones of None.

        Raises:
            OptionError: There is no such case.
        """
        if text is None:
            return (self.quick if quick else ()) or self.usual or self.cases
        names = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
        for name in names:
            if name not in self.cases:
                raise OptionError(f"there is no case {name!r}: {near(name, self.cases)}")
        return names

    def enough(self, rounds: int | None) -> int:
        """Return the number of rounds; the usual one of None.

        Raises:
            OptionError: A median needs more.
        """
        if rounds is not None and rounds < self.least:
            raise OptionError(f"rounds is {rounds}: expected at least {self.least}")
        return self.rounds if rounds is None else rounds


@dataclass(frozen=True)
class Ran:
    """An answer with what else is known of the run; its own seconds where the side took the time itself."""

    answer: Any
    note: Any = None
    seconds: float | None = None


@dataclass(frozen=True)
class Times:
    """What a race has measured: seconds and notes of each run, by side, and the answers of the warm-up."""

    seconds: Mapping[str, list[float]]
    notes: Mapping[str, list[Any]]
    answers: Mapping[str, Any]

    def median(self, *names: str) -> float:
        """Return the median over all runs of some sides, which are the same thing."""
        return statistics.median([s for name in names for s in self.seconds[name]])

    def ratio(self, one: str, *others: str) -> float:
        """Return the median of one side over that of others."""
        return self.median(one) / self.median(*others)

    def rows(self, **case: Any) -> list[dict[str, Any]]:
        """Return a row for each side."""
        return [
            {**case, "side": name, "runs": len(s), "median_s": self.median(name), "spread": spread(s)}
            for name, s in self.seconds.items()
        ]


def race(
    run: Run,
    name: str,
    sides: Case,
    *,
    answer: Any = None,
    few: Collection[str] = (),
    rounds: int | None = None,
    repeats: int = 1,
) -> Times:
    """Measure the sides of one case.

    Args:
        run: The benchmark's run.
        name: Of the case.
        sides: By name. Those that are the same object are warmed up once.
        answer: What each side must answer, in each run; None for what the first side does.
        few: Sides that take part in the first rounds only.
        rounds: Timed rounds; the run's by default.
        repeats: Runs of each side in a round.

    Raises:
        ExecutionError: Sides answer differently.
    """
    return races(run, {name: sides}, _agree if answer is None else _expect(answer), few, rounds, repeats)[
        name
    ]


def races(
    run: Run,
    cases: Mapping[str, Case],
    check: Callable[[str, Mapping[str, Any]], object],
    few: Collection[str] = (),
    rounds: int | None = None,
    repeats: int = 1,
) -> dict[str, Times]:
    """Measure several cases, of which each round has all; see :func:`race`.

    Args:
        run: The benchmark's run.
        cases: The sides of each case.
        check: Takes a case's name and answers by side, before any time counts and after each run.
        few: Sides that take part in the first rounds only.
        rounds: Timed rounds; the run's by default.
        repeats: Runs of each side in a round.
    """
    found = {}
    for name, sides in cases.items():
        answers: dict[str, Any] = {}
        warm: dict[int, Any] = {}
        for side, call in sides.items():
            run.says(f"{name}: {side}, warm-up")
            answers[side] = warm[id(call)] if id(call) in warm else _measured(call).answer
            warm[id(call)] = answers[side]
        check(name, answers)
        found[name] = Times({side: [] for side in sides}, {side: [] for side in sides}, answers)
    for number in range(run.rounds if rounds is None else rounds):
        for name, sides in cases.items():
            times = found[name]
            for side in turned([s for s in sides if number < FEW_ROUNDS or s not in few], number):
                run.says(f"{name}: {side}, round {number + 1}")
                for _ in range(repeats):
                    ran = _measured(sides[side])
                    check(name, {**times.answers, side: ran.answer})
                    assert ran.seconds is not None
                    times.seconds[side].append(ran.seconds)
                    times.notes[side].append(ran.note)
    return found


def _measured(call: Callable[[], Any]) -> Ran:
    result: list[Any] = []
    seconds = timed(lambda: result.append(call()))
    ran = result[0] if isinstance(result[0], Ran) else Ran(result[0])
    return Ran(ran.answer, ran.note, seconds if ran.seconds is None else ran.seconds)


def _agree(name: str, answers: Mapping[str, Any]) -> None:
    first, *others = answers.values()
    if any(other != first for other in others):
        raise ExecutionError(f"the sides of {name} answer differently: {dict(answers)}")


def _expect(answer: Any) -> Callable[[str, Mapping[str, Any]], None]:
    def check(name: str, answers: Mapping[str, Any]) -> None:
        for side, found in answers.items():
            if found != answer:
                raise ExecutionError(f"{name}, {side}: the answer is {found}, expected {answer}")

    return check


def turned(names: Sequence[str], number: int) -> list[str]:
    """Return the order of round ``number``: rotated by one each round, and back to front every other."""
    shift = number % len(names)
    order = [*names[shift:], *names[:shift]]
    return order if number % 2 == 0 else order[::-1]


def timed(call: Callable[[], object]) -> float:
    """Return the wall time of one call, in seconds, garbage of earlier ones collected before."""
    gc.collect()
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def spread(values: Sequence[float]) -> float:
    """Return (largest - smallest) / median."""
    middle = statistics.median(values)
    return (max(values) - min(values)) / middle if middle else 0.0


def geomean(values: Sequence[float]) -> float:
    """Return the geometric mean, NaN of nothing."""
    return statistics.geometric_mean(values) if values else math.nan


def difference(left: Iterable[Sequence[Any]], right: Iterable[Sequence[Any]]) -> str | None:
    """Return what is different in words, None when the rows are equal as multisets.

    Rows are grouped by all values but the floats. Within a group the floats are sorted and compared one by
    one, so that sums made in another order compare equal.
    """
    ours, theirs = _groups(left), _groups(right)
    for key in ours.keys() | theirs.keys():
        mine, other = ours.get(key, []), theirs.get(key, [])
        if len(mine) != len(other):
            return f"{len(mine)} and {len(other)} rows like {key}"
        for a, b in zip(sorted(mine), sorted(other), strict=True):
            if not all(math.isclose(x, y, rel_tol=1e-9, abs_tol=1e-12) for x, y in zip(a, b, strict=True)):
                return f"{a} and {b} in rows like {key}"
    return None


def _groups(rows: Iterable[Sequence[Any]]) -> dict[tuple[Any, ...], list[tuple[float, ...]]]:
    groups: dict[tuple[Any, ...], list[tuple[float, ...]]] = {}
    for row in rows:
        # NaN equals NaN in Spark; as infinity it also sorts.
        floats = tuple(math.inf if math.isnan(v) else v for v in row if isinstance(v, float))
        key = tuple(_FLOAT if isinstance(v, float) else _hashable(v) for v in row)
        groups.setdefault(key, []).append(floats)
    return groups


def _hashable(value: Any) -> Any:
    if isinstance(value, dict):
        return tuple((key, _hashable(item)) for key, item in value.items())
    if isinstance(value, list | tuple):
        return tuple(map(_hashable, value))
    return bytes(value) if isinstance(value, bytearray) else value


@contextmanager
def duckdb_counts(tables: Mapping[str, pa.Table | str]) -> Iterator[Callable[[str], int]]:
    """Give what answers a query that counts, by DuckDB on one thread; Arrow tables are copied first.

    Args:
        tables: Arrow tables, or paths of Parquet files, by name.
    """
    import duckdb

    with duckdb.connect() as connection:
        connection.execute("SET threads = 1")
        for name, table in tables.items():
            if isinstance(table, str):
                path = table.replace("'", "''")
                connection.execute(f"CREATE VIEW {name} AS SELECT * FROM read_parquet('{path}')")
            else:
                connection.register("arrived", table)
                connection.execute(f"CREATE TABLE {name} AS SELECT * FROM arrived")
                connection.unregister("arrived")

        def count(query: str) -> int:
            row = connection.execute(query).fetchone()
            assert row is not None
            return int(row[0])

        yield count


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
    name: str,
    bench: Bench,
    run: Run,
    *,
    master: str | None = None,
    target: str | None = None,
    debug: bool = False,
) -> list[str]:
    """Run a benchmark, print its tables, write its JSON document; return the targets that it missed.

    Args:
        name: Of the benchmark.
        bench: The benchmark.
        run: Its options; the session is added here.
        master: Spark's master; the benchmark's by default.
        target: File for the document, ``-`` for standard output.
        debug: Let Spark log.
    """
    stderr = Console(stderr=True)
    with ExitStack() as stack:
        status = stack.enter_context(stderr.status(f"{name}: starting"))

        def session(conf: Mapping[str, str]) -> SparkSession:
            from millrace.cli.session import session as started

            return stack.enter_context(
                started(f"lab bench {name}", master or bench.master, None, conf, debug)
            )

        run.says, run.session, run.conf = status.update, session, bench.conf
        outcome = bench.measure(run)
    show(name, run, outcome, stderr if target == "-" else Console())
    document = {"bench": name, "versions": versions(), "scale": run.scale, "rounds": run.rounds}
    text = json.dumps(_plain({**document, "figures": outcome.figures, "rows": outcome.rows}), indent=2)
    if target == "-":
        print(text)
    elif target:
        Path(target).write_text(text + "\n", encoding="utf-8")
    return outcome.missed()


def _plain(value: Any) -> Any:
    """Return a value in what JSON knows, where NaN is null."""
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def show(name: str, run: Run, outcome: Outcome, console: Console) -> None:
    """Print the rows, the figures with their targets, and the notes."""
    heads = list(dict.fromkeys(head for row in outcome.rows for head in row))
    table = Table(*heads, title=f"{name}, scale {run.scale:g}, {run.rounds} rounds")
    for row in outcome.rows:
        table.add_row(*(_cell(row.get(head)) for head in heads))
    figures = Table("figure", "value", "target", "", title="figures")
    for figure, value in outcome.figures.items():
        target = outcome.targets.get(figure)
        verdict = "" if target is None else "met" if target.met(value) else "missed"
        figures.add_row(figure, _cell(value), str(target or ""), verdict)
    console.print(table, figures, *outcome.notes, sep="\n")


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "NO"
    if not isinstance(value, int | float):
        return "" if value is None else str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:,.3f}"
