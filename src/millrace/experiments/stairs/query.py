"""A join with its data, and any side of a comparison run on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from millrace.errors import ExecutionError
from millrace.experiments.stairs.arriving import Arriving, Stream
from millrace.experiments.stairs.costs import Costs
from millrace.experiments.stairs.plans import Plan, plans_of
from millrace.experiments.stairs.side import Work, work_of
from millrace.expressions import ColumnRef
from millrace.graph import QueryGraph
from millrace.options import Options, Order
from millrace.spec import Equality, JoinSpec, RelationSpec
from millrace.trees import spanning_tree


def block(tables: Mapping[str, tuple[pa.Schema, int | None]], joins: Sequence[str]) -> JoinSpec:
    """Return a block that is counted.

    Args:
        tables: Schema and rows, where they are known, by alias.
        joins: Each the text of an equality of whole numbers, such as ``r.a = s.a``.
    """
    relations = tuple(RelationSpec(alias, schema, rows=rows) for alias, (schema, rows) in tables.items())
    equalities = []
    for text in joins:
        left, right = (ColumnRef(*side.split(".")) for side in text.split(" = "))
        equalities.append(Equality(left, right, pa.int64()))
    return JoinSpec(relations, tuple(equalities), count_only=True)


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
        rows: Of the result.
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
        if work.rows != self.rows:
            raise ExecutionError(f"{architecture} found {work.rows} rows of {self.rows}")
        return work
