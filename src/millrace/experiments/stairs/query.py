"""A join with its data, and any side of a comparison run on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

from millrace.errors import ExecutionError
from millrace.experiments.experiment import Panel
from millrace.experiments.stairs.arriving import Arriving, Stream
from millrace.experiments.stairs.costs import Costs
from millrace.experiments.stairs.plans import Plan, plans_of
from millrace.experiments.stairs.side import Work, work_of
from millrace.graph import QueryGraph
from millrace.options import Options, Order
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
    """A join of three relations with its data.

    Attributes:
        spec: The block.
        streams: By alias.
        batch: Tuples at a time, and for which a decision holds.
        rows: Of the result; below 0 where that is not known before.
    """

    spec: JoinSpec
    streams: Mapping[str, Stream]
    batch: int
    rows: int

    @cached_property
    def plans(self) -> dict[Order, Plan]:
        """All plans by their order."""
        tree = spanning_tree(QueryGraph.of(self.spec), [0] * len(self.spec.relations))
        return {plan.order: plan for plan in plans_of(tree, self.spec.aliases)}

    def work(
        self,
        architecture: str,
        migration: str | None = None,
        *,
        order: Order,
        policy: str | None = None,
        held: Callable[[Arriving], bool] = never,
        looks: int = 32,
    ) -> Work:
        """Run one side.

        Args:
            architecture: As in ``Options``.
            migration: For STAIRs; None for the default policy.
            policy: Of an eddy; None for the default one.
            order: Of a static plan; what an eddy has to keep to while it is held.
            held: Whether an eddy is still held to the plan.
            looks: How often to look at the time, about.

        Raises:
            ExecutionError: The result is wrong.
        """
        options = Options(
            architecture=architecture,
            migration=migration,
            policy=policy,
            batch_size=16_384,
            reoptimize_every=self.batch,
        )
        work = work_of(
            self.spec,
            Arriving(self.streams, self.batch),
            options,
            plan=self.plans[order],
            held=held,
            costs=Costs(),
            looks=looks,
        )
        if 0 <= self.rows != work.rows:
            raise ExecutionError(f"{architecture} found {work.rows} rows of {self.rows}")
        return work


def panels(works: Mapping[str, Work]) -> list[Panel]:
    """Return what each side worked, and the tuples that it made on the way."""
    seconds = {name: work.seconds for name, work in works.items()}
    made = {name: work.figures.intermediate_tuples for name, work in works.items()}
    return [
        Panel.bars("Execution cost", "work, seconds of the virtual clock", seconds),
        Panel.bars("Intermediate tuples", "tuples", made),
    ]
