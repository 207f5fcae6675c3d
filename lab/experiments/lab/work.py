"""A join with its data, and any side of a comparison run on it, at the prices of what it works."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import pyarrow as pa

from lab.experiments.experiment import Panel
from lab.experiments.lab.arriving import Arriving, Stream
from lab.experiments.lab.costs import Prices
from lab.experiments.lab.plans import Opening, Plan, plans_of
from millrace.engine.architectures.choice import policy_of
from millrace.engine.figures import CellFigures
from millrace.engine.graph import QueryGraph
from millrace.engine.policies import POLICIES
from millrace.engine.runs.block_run import Given, Run
from millrace.engine.runs.eddy_run import EddyRun
from millrace.engine.runs.output import Output
from millrace.engine.runs.static import StaticPlan
from millrace.engine.spec import JoinSpec
from millrace.engine.trees import spanning_tree
from millrace.engine.tuples import TupleBatch
from millrace.errors import ExecutionError
from millrace.limits.clock import VirtualClock
from millrace.options import Options, Order

STILL, HELD = "never-moves", "held"
"""Broken engines: no state is migrated; eddies keep to the plan that they begin with."""

COST = "work, seconds of the virtual clock"
_RESULTS = 262_144
"""Result tuples after which a run that may have to be stopped is looked at."""


class TooDear(Exception):
    """A run has worked more than it may: nothing is wrong, but the answer is no longer of interest."""


class Meter(Output):
    """Counts results, which costs nobody anything, and looks now and then at what was worked.

    Args:
        spec: The block, which is only counted.
        worked: Returns the seconds so far.
        every: Batches between two looks.
        limit: Seconds of work that are too many: then :class:`TooDear` is raised.

    Attributes:
        curve: Seconds and results at every look.
    """

    def __init__(self, spec: JoinSpec, worked: Callable[[], float], every: int, limit: float) -> None:
        super().__init__(spec, 1)
        self.curve: list[tuple[float, int]] = []
        self._worked, self._every, self._limit = worked, every, limit
        self._rounds = self._unseen = 0

    def look(self) -> None:
        """Note what was worked."""
        self.curve.append((self._worked(), self.counted))
        self._unseen = 0
        if self.curve[-1][0] > self._limit:
            raise TooDear

    def add(self, batch: TupleBatch) -> Iterator[pa.RecordBatch]:
        """Count results, and look where there are many."""
        yield from super().add(batch)
        self._unseen += batch.size
        if self._unseen >= _RESULTS:
            self.look()

    def rest(self) -> Iterator[pa.RecordBatch]:
        """Look, if it is time to."""
        self._rounds += 1
        if self._rounds % self._every == 0:
            self.look()
        return iter(())


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
    curve: list[tuple[float, int]]


def never(_: Arriving) -> bool:
    """Hold an eddy to no plan."""
    return False


def always(_: Arriving) -> bool:
    """Hold an eddy to its plan to the end."""
    return True


@dataclass(frozen=True)
class Query:
    """A join with its data.

    Attributes:
        spec: The block.
        streams: By alias.
        batch: Tuples at a time, and for which a decision holds.
        rows: Of the result; None where that is not known before.
        name: Begins what is said of errors.
    """

    spec: JoinSpec
    streams: Mapping[str, Stream]
    batch: int
    rows: int | None = None
    name: str = ""

    @cached_property
    def plans(self) -> dict[Order, Plan]:
        """All plans by their order."""
        tree = spanning_tree(QueryGraph.of(self.spec), [0] * len(self.spec.relations))
        return {plan.order: plan for plan in plans_of(tree, self.spec.aliases)}

    @cached_property
    def arriving(self) -> Arriving:
        """The streams side by side, for one run after the other."""
        return Arriving(self.streams, self.batch)

    def work(
        self,
        architecture: str,
        migration: str | None = None,
        *,
        order: Order | Plan,
        held: Callable[[Arriving], bool] = never,
        prices: Prices = Prices(),  # noqa: B008 - it is frozen
        looks: int = 32,
        limit: float = float("inf"),
        **more: Any,
    ) -> Work:
        """Run one side.

        Args:
            architecture: As in ``Options``, like ``migration``.
            migration: For STAIRs; None for the default policy.
            order: Of a static plan; what an eddy has to keep to while it is held.
            held: Whether an eddy is still held to the plan, by what has arrived.
            prices: Of the operations.
            looks: How often to look at the time, about; more often where there are many results.
            limit: Seconds of work after which the run is stopped.
            more: Options of the run.

        Raises:
            ExecutionError: The result is wrong.
        """
        plan = order if isinstance(order, Plan) else self.plans[order]
        options = Options(
            architecture=architecture,
            migration=migration,
            batch_size=16_384,
            reoptimize_every=self.batch,
            **more,
        )
        arriving = self.arriving

        def worked() -> float:
            return prices.seconds(run.figures(), sum(arriving.read.values()), architecture, self.spec)

        meter = Meter(self.spec, worked, max(1, len(arriving.order) // looks), limit)
        sources = arriving.sources()
        given = Given(schedule=arriving.schedule, clock=VirtualClock(), output=meter)
        run: Run
        if architecture == "static":
            run = StaticPlan(self.spec, sources, replace(options, order=plan.order), **given)
        else:
            decides = POLICIES[policy_of(self.spec, options)](options)
            opening = Opening(plan, decides, lambda: not held(arriving))
            run = EddyRun(self.spec, sources, options, policy=opening, **given)
        try:
            (counted,) = run.run()
            meter.look()
        except TooDear:
            return Work(limit, None, run.figures(), meter.curve)
        rows = counted.column(0)[0].as_py()
        if self.rows not in (None, rows):
            raise ExecutionError(f"{self.name}{architecture} found {rows} rows of {self.rows}")
        return Work(meter.curve[-1][0], rows, run.figures(), meter.curve)


def panels(works: Mapping[str, Work]) -> list[Panel]:
    """Return what each side worked, and the tuples that it made on the way."""
    made = {name: work.figures.intermediate_tuples for name, work in works.items()}
    return [
        Panel.bars("Execution cost", COST, {name: work.seconds for name, work in works.items()}),
        Panel.bars("Intermediate tuples", "tuples", made),
    ]
