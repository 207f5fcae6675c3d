"""A join with its data, and any side of a comparison run on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from millrace.architectures.choice import policy_of
from millrace.clock import VirtualClock
from millrace.errors import ExecutionError
from millrace.experiments.experiment import Panel
from millrace.experiments.stairs.arriving import Arriving, Stream
from millrace.experiments.stairs.costs import Costs
from millrace.experiments.stairs.plans import Opening, Plan, plans_of
from millrace.experiments.stairs.side import Meter, TooDear, Work
from millrace.graph import QueryGraph
from millrace.options import Options, Order
from millrace.policies import POLICIES
from millrace.runs.block_run import Given, Run
from millrace.runs.eddy_run import EddyRun
from millrace.runs.static import StaticPlan
from millrace.spec import JoinSpec
from millrace.trees import spanning_tree

STILL, HELD = "never-moves", "held"
"""Broken engines: no state is migrated; eddies keep to the plan that they begin with."""


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
        rows: Of the result; below 0 where that is not known before.
        name: Begins what is said of errors.
    """

    spec: JoinSpec
    streams: Mapping[str, Stream]
    batch: int
    rows: int
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
        policy: str | None = None,
        held: Callable[[Arriving], bool] = never,
        costs: Costs = Costs(),  # noqa: B008 - it is frozen
        looks: int = 32,
        limit: float = float("inf"),
    ) -> Work:
        """Run one side.

        Args:
            architecture: As in ``Options``.
            migration: For STAIRs; None for the default policy.
            order: Of a static plan; what an eddy has to keep to while it is held.
            policy: Of an eddy; None for the default one.
            held: Whether an eddy is still held to the plan, by what has arrived.
            costs: Of the operations.
            looks: How often to look at the time, about; more often where there are many results.
            limit: Seconds of work after which the run is stopped.

        Raises:
            ExecutionError: The result is wrong.
        """
        plan = order if isinstance(order, Plan) else self.plans[order]
        options = Options(
            architecture=architecture,
            migration=migration,
            policy=policy,
            batch_size=16_384,
            reoptimize_every=self.batch,
        )
        arriving, clock = self.arriving, VirtualClock()
        meter = Meter(self.spec, arriving, costs, max(1, arriving.rounds // looks), limit)
        sources, given = arriving.sources(), Given(schedule=arriving.schedule, clock=clock, output=meter)
        run: Run
        if architecture == "static":
            run = StaticPlan(self.spec, sources, replace(options, order=plan.order), **given)
        else:
            decides = POLICIES[policy_of(self.spec, options)](options)
            opening = Opening(plan, decides, lambda: not held(arriving))
            run = EddyRun(self.spec, sources, options, policy=opening, **given)
        meter.attach(run, architecture)
        try:
            (counted,) = run.run()
            rows: int | None = counted.column(0)[0].as_py()
            figures = meter.look()
        except TooDear:
            rows, figures = None, run.figures()
        if rows is not None and 0 <= self.rows != rows:
            raise ExecutionError(f"{self.name}{architecture} found {rows} rows of {self.rows}")
        return Work(min(limit, meter.seconds), rows, figures, tuple(meter.curve))


def panels(works: Mapping[str, Work]) -> list[Panel]:
    """Return what each side worked, and the tuples that it made on the way."""
    seconds = {name: work.seconds for name, work in works.items()}
    made = {name: work.figures.intermediate_tuples for name, work in works.items()}
    return [
        Panel.bars("Execution cost", "work, seconds of the virtual clock", seconds),
        Panel.bars("Intermediate tuples", "tuples", made),
    ]
