"""The query of figures 4 to 6: ``SELECT * FROM U WHERE s1() AND s2()`` (Avnur & Hellerstein 2000, section
4.1).

U has 50,000 tuples of 100 bytes; what is in them does not matter and is left out. A selection is a spin loop
of some delay units and a decision drawn at random. One processor serves both selections and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from millrace.clock import VirtualClock
from millrace.experiments.experiment import Parameter
from millrace.experiments.lab.run import Finished, finish
from millrace.experiments.lab.selections import selection
from millrace.experiments.lab.sources import batches
from millrace.options import Options
from millrace.router.back_pressure import Backpressure
from millrace.runs.eddy_run import EddyRun
from millrace.spec import JoinSpec, RelationSpec

TUPLES = Parameter("tuples", 50_000, 1_000, 1_000_000, "tuples", "in table U")
POINTS = Parameter("points", 9, 2, 33, "points", "on each curve")
BATCH = Parameter("batch", 100, 1, 1_000, "tuples", "that are routed together; the paper's is 1")
QUEUE = Parameter("queue", 200, 1, 100_000, "tuples", "in a module's input queue when it is full")
BUFFER = Parameter("buffer", 600, 1, 100_000, "tuples", "in the eddy when it takes no more")
PARAMETERS = (TUPLES, POINTS, BATCH, QUEUE, BUFFER)

ORDERS = {"s1 first": ("s1", "s2"), "s2 first": ("s2", "s1")}
"""Static orders: an eddy that keeps to the order of the WHERE clause."""


@dataclass(frozen=True)
class Pair:
    """Two selections.

    Attributes:
        costs: Delay units for each tuple.
        kept: Share of tuples that pass.
    """

    costs: tuple[float, float]
    kept: tuple[float, float]

    @property
    def orders(self) -> tuple[float, float]:
        """Delay units for each tuple when s1 comes first, and when s2 does, on the average."""
        (c1, c2), (k1, k2) = self.costs, self.kept
        return c1 + k1 * c2, c2 + k2 * c1


def run_pair(
    pair: Pair,
    policy: str,
    seed: int,
    tuples: int,
    batch: int,
    limits: Backpressure,
    order: tuple[str, ...] = ("s1", "s2"),
) -> Finished:
    """Run the query.

    Args:
        pair: The selections.
        policy: Routes; ``"fixed"`` keeps to ``order``.
        seed: Of the decisions.
        tuples: In U.
        batch: Tuples that are routed together.
        limits: Of the queues.
        order: Of the WHERE clause.

    Returns:
        A run in delay units.
    """
    draw = np.random.default_rng(seed)
    table = pa.table({f"s{i + 1}": draw.random(tuples) < kept for i, kept in enumerate(pair.kept)})
    clock = VirtualClock()
    costs = dict(zip(("s1", "s2"), pair.costs, strict=True))
    spec = JoinSpec(
        (RelationSpec("U", table.schema, rows=tuples),),
        residuals=tuple(selection("U", name, costs[name], clock) for name in order),
        count_only=True,
    )
    options = Options(policy=policy, batch_size=batch)
    eddy = EddyRun(spec, {"U": batches(table, batch)}, options, clock=clock, backpressure=limits)
    return finish(eddy, clock)


def place(cost: float, best: float, worst: float) -> float:
    """Return where a cost lies between the best order's (0) and the worst one's (1)."""
    return (cost - best) / (worst - best)
