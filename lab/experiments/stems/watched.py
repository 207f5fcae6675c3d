"""The paper's data sources (table 3), and runs whose results are timed as they come.

Scans return a tuple at a time; indexes answer after a sleep "of identical duration". Everything else is taken
to cost nothing: in the paper's experiments sources took minutes and the rest of the processor's time was
spare. An eddy routes one tuple at a time here, as theirs did, so that what it does happens at once.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from lab.experiments.experiment import Curve, Panel
from lab.experiments.lab.indexes import RemoteIndex
from millrace.engine.arrivals.access_modules import IndexAM, Scan, ScanAM
from millrace.engine.figures import CellFigures
from millrace.engine.runs.eddy_run import EddyRun
from millrace.engine.runs.output import Output
from millrace.engine.spec import JoinSpec
from millrace.errors import ExecutionError
from millrace.limits.clock import VirtualClock
from millrace.options import Options

Array = np.ndarray[Any, np.dtype[Any]]
INT = pa.int64()


@dataclass(frozen=True)
class Watched:
    """A run and its results.

    Attributes:
        times: When each result came, ascending.
        table: The results in their order.
        end: When the run ended.
        figures: What the engine counted.
        answered: When remote indexes answered what.
    """

    times: Array
    table: pa.Table
    end: float
    figures: CellFigures
    answered: Sequence[tuple[float, int]]

    @property
    def answer(self) -> Counter[tuple[Any, ...]]:
        """The results in no order."""
        return Counter(zip(*(column.to_pylist() for column in self.table.columns), strict=True))

    def count(self, moments: Array) -> Array:
        """Return how many results had come by each moment."""
        return np.searchsorted(self.times, moments, side="right")

    def share_at(self, share: float) -> float:
        """Return when this share of all results had come."""
        return float(self.times[max(0, int(np.ceil(share * len(self.times))) - 1)])

    def curve(self, name: str) -> Curve:
        """Return the results over time."""
        return Curve(name, (0.0, *self.times, self.end), (0, *range(1, len(self.times) + 1), len(self.times)))


def watch(
    spec: JoinSpec,
    clock: VirtualClock,
    access: Mapping[str, Sequence[ScanAM | IndexAM]],
    then: tuple[float, Callable[[EddyRun], None]] | None = None,
    *,
    prefer: Any = (),
    **options: Any,
) -> Watched:
    """Run a block with the production engine, a tuple at a time, on the clock of its access modules.

    Args:
        spec: The block.
        clock: Of the run.
        access: Access modules by alias.
        then: A moment, and what is done to the run when the first result from then on comes.
        prefer: As the eddy takes it.
        options: Of the run.
    """
    eddy = EddyRun(
        spec,
        {},
        Options(batch_size=1, **options),
        clock=clock,
        access=access,
        output=Output(spec, 1),
        prefer=prefer,
    )
    times: list[float] = []
    found = []
    for batch in eddy.run():
        times += [clock.now()] * batch.num_rows
        found.append(batch)
        if then is not None and batch.num_rows and clock.now() >= then[0]:
            then[1](eddy)
            then = None
    table = pa.Table.from_batches(found, spec.output_schema)
    indexes = [each for ways in access.values() for each in ways if isinstance(each, RemoteIndex)]
    answered = [answer for index in indexes for answer in index.answered]
    return Watched(np.array(times), table, clock.now(), eddy.figures(), answered)


def check_answers(rows: int, *runs: Watched) -> None:
    """Raise ExecutionError unless all runs have so many results, and the same."""
    if any(len(run.times) != rows or run.answer != runs[0].answer for run in runs):
        raise ExecutionError(f"{[len(run.times) for run in runs]} results of {rows}")


def over_time(title: str, curves: Sequence[Curve], label: str = "results", **more: Any) -> Panel:
    """Return a panel of what had come by when."""
    return Panel(title, "time (s)", label, curves, kind="steps", **more)


def until(curve: Curve, moment: float) -> Curve:
    """Return the part of a curve up to a moment."""
    place = bisect_right(curve.x, moment)
    return Curve(curve.name, curve.x[:place], curve.y[:place])


def scan(alias: str, table: pa.Table, clock: VirtualClock, rate: float, **more: Any) -> Scan:
    """Return a scan of so many tuples a second, one at a time."""
    return Scan(alias, table.combine_chunks().to_batches(max_chunksize=1), clock, every=1 / rate, **more)


def table_r(draw: np.random.Generator, tuples: int, values: int) -> pa.Table:
    """Return R: ``key`` in random order, and ``a`` with so many values, randomly assigned."""
    a = np.concatenate([np.arange(values), draw.integers(0, values, tuples - values)])
    return pa.table({"key": pa.array(draw.permutation(tuples), INT), "a": pa.array(draw.permutation(a), INT)})


def table_s(values: int) -> pa.Table:
    """Return S, whose ``x`` and ``y`` are keys and have identical values."""
    return pa.table({"x": pa.array(range(values), INT), "y": pa.array(range(values), INT)})


def table_t(draw: np.random.Generator, tuples: int) -> pa.Table:
    """Return T: its ``key`` in random order."""
    return pa.table({"key": pa.array(draw.permutation(tuples), INT)})
