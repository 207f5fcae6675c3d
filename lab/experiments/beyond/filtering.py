"""Predicates of declared cost and outcome, met in the order that a policy finds, on the virtual clock.

The eddy, its selections and its policies are those of production. What a predicate answers stands in a
column, and the clock moves by what it declares to cost; nothing else takes time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, permutations
from typing import Any

import numpy as np
import pyarrow as pa

from lab.experiments.experiment import Curve, Panel
from lab.experiments.lab.block import block, selection
from lab.experiments.lab.costs import MICRO
from lab.experiments.lab.run import batches
from millrace.engine.runs.run_of import run_of
from millrace.errors import ExecutionError
from millrace.limits.clock import VirtualClock
from millrace.options import Options

Outcomes = np.ndarray[Any, np.dtype[np.bool_]]
"""Which tuple passes which predicate, shape ``(tuples, predicates)``."""


@dataclass(frozen=True)
class Work:
    """What a run took: tuples that had arrived, and seconds of the virtual clock, at some moments."""

    tuples: Sequence[int]
    seconds: Sequence[float]

    @property
    def total(self) -> float:
        """Seconds in all."""
        return self.seconds[-1]


def rates(title: str, works: Mapping[str, Work], **more: Any) -> Panel:
    """Return a panel of microseconds per tuple between two moments, over the tuples at the second one."""
    curves = []
    for name, work in works.items():
        steps = zip(pairwise(work.tuples), pairwise(work.seconds), strict=True)
        micros = [(t - s) / (n - m) / MICRO for (m, n), (s, t) in steps]
        curves.append(Curve(name, work.tuples[1:], micros))
    return Panel(title, "tuples", "time (µs per tuple)", curves, **more)


def drawn(tuples: int, keeps: Sequence[float], random: np.random.Generator) -> Outcomes:
    """Return outcomes of independent predicates, by the shares that they keep."""
    return random.random((tuples, len(keeps))) < np.array(keeps)


def filtered(
    outcomes: Outcomes,
    costs: Sequence[float],
    batch: int,
    *,
    policy: str | None = None,
    order: Sequence[int] | None = None,
    seed: int = 0,
) -> Work:
    """Run all tuples through all predicates by a policy, or in an order as a static plan.

    Args:
        outcomes: Of the predicates.
        costs: Seconds a call, by predicate.
        batch: Tuples that arrive together.
        policy: Of the eddy.
        order: A static plan's, in place of an eddy.
        seed: Of the policy's random choices.

    Raises:
        ExecutionError: The tuples that came through are not those that pass every predicate.
    """
    clock = VirtualClock()
    table = pa.table({f"p{i + 1}": outcomes[:, i] for i in range(len(costs))})
    calls = [selection("t", f"p{i + 1}", costs[i], clock) for i in order or range(len(costs))]
    tuples, seconds = [0], [0.0]

    def arriving() -> Iterator[pa.RecordBatch]:
        for each in batches(table, batch):
            yield each
            # Asked for more: what came before has been worked off.
            tuples.append(tuples[-1] + each.num_rows)
            seconds.append(clock.now())

    architecture = "stems" if order is None else "static"
    options = Options(architecture=architecture, policy=policy, batch_size=batch, seed=seed)
    run = run_of(block({"t": table}, predicates=calls), {"t": arriving()}, options, clock=clock)
    kept = sum(result.column(0)[0].as_py() for result in run.run())
    if kept != (expected := int(outcomes.all(axis=1).sum())):
        raise ExecutionError(f"{policy or order} kept {kept} tuples, expected {expected}")
    return Work(tuples, seconds)


def cost(outcomes: Outcomes, costs: Sequence[float], order: Sequence[int]) -> float:
    """Return the seconds that all tuples take in one order."""
    left = np.ones(len(outcomes), bool)
    seconds = 0.0
    for i in order:
        seconds += float(left.sum()) * costs[i]
        left &= outcomes[:, i]
    return seconds


def best(outcomes: Outcomes, costs: Sequence[float]) -> tuple[int, ...]:
    """Return the order of the least cost, by trying all of them."""
    return min(permutations(range(len(costs))), key=lambda order: cost(outcomes, costs, order))


def oracle(outcomes: Outcomes, costs: Sequence[float], batch: int, changes: Sequence[int] = ()) -> Work:
    """Return what the best order of each phase would take, given the truth, by batches.

    A new phase begins at the tuples in ``changes``, which begin batches.
    """
    tuples, seconds = [0], [0.0]
    for low, high in pairwise((0, *changes, len(outcomes))):
        order = best(outcomes[low:high], costs)
        for start in range(low, high, batch):
            end = min(start + batch, high)
            tuples.append(end)
            seconds.append(seconds[-1] + cost(outcomes[start:end], costs, order))
    return Work(tuples, seconds)
