"""One side of a comparison: a join run by one architecture, timed by what it works."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from millrace.experiments.stairs.arriving import Arriving
from millrace.experiments.stairs.costs import Costs, indexes_of
from millrace.figures import CellFigures
from millrace.runs.block_run import Run
from millrace.runs.output import Output
from millrace.spec import JoinSpec
from millrace.tuples import TupleBatch

_RESULTS = 262_144
"""Result tuples after which a run that may have to be stopped is looked at."""


class TooDear(Exception):
    """A run has worked more than it may: nothing is wrong, but the answer is no longer of interest."""


class Meter(Output):
    """Counts results, and looks at the run's books now and then: the time is what they say was worked.

    Args:
        spec: The block; only counted, so what becomes of its results costs nobody anything.
        arriving: Its tuples.
        costs: Of the operations.
        every: Batches between two looks.
        limit: Seconds of work that are too many.

    Attributes:
        seconds: What was worked when it was last looked.
        curve: Seconds and results at every look.
    """

    def __init__(self, spec: JoinSpec, arriving: Arriving, costs: Costs, every: int, limit: float) -> None:
        super().__init__(spec, 1)
        self.seconds = 0.0
        self.curve: list[tuple[float, int]] = []
        self._arriving = arriving
        self._costs = costs
        self._every = every
        self._limit = limit
        self._run: Run | None = None
        self._indexes: dict[str, int] | None = None
        self._architecture = ""
        self._rounds = 0
        self._unseen = 0

    def attach(self, run: Run, architecture: str) -> None:
        """Take the run to look at."""
        self._run, self._architecture = run, architecture
        self._indexes = indexes_of(self._spec) if architecture == "stems" else None

    def look(self) -> CellFigures:
        """Advance the time to what has been worked.

        Raises:
            TooDear: That is more than the limit.
        """
        assert self._run is not None
        figures = self._run.figures()
        read = sum(self._arriving.read.values())
        self.seconds = self._costs.seconds(figures, read, self._indexes)
        if self._architecture != "static":
            self.seconds += self._costs.adapting(figures, read, stairs=self._architecture == "stairs")
        self.curve.append((self.seconds, self.counted))
        self._unseen = 0
        if self.seconds > self._limit:
            raise TooDear
        return figures

    def add(self, batch: TupleBatch) -> Iterator[pa.RecordBatch]:
        """Count results, and look where there are many."""
        yield from super().add(batch)
        self._unseen += batch.size
        if self._unseen >= _RESULTS:
            self.look()

    def rest(self) -> Iterator[pa.RecordBatch]:
        """Look, if it is time to."""
        yield from super().rest()
        self._rounds += 1
        if self._rounds % self._every == 0:
            self.look()


@dataclass(frozen=True)
class Work:
    """What a run took.

    Attributes:
        seconds: Of work; the limit where it was stopped.
        rows: Of the result; None where it was stopped.
        figures: The books at the end.
        curve: Seconds and results, from time to time.
    """

    seconds: float
    rows: int | None
    figures: CellFigures
    curve: tuple[tuple[float, int], ...]
