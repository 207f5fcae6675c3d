"""A small deterministic model of an eddy over selections only, with declared costs instead of clocks.

Real policies, candidates, accounts and profiles; tuples are row numbers of a matrix of outcomes, and
a decision is kept as long as in the eddy. Nothing here reads a clock or any other state.
"""

from __future__ import annotations

from itertools import pairwise, permutations

import numpy as np

from millrace.engine.operator import Operator
from millrace.engine.policies import POLICIES, Candidate, Policy
from millrace.engine.router.routing_table import DecisionLifetime, RoutingTable
from millrace.engine.statistics import Statistics
from millrace.engine.tuples import Signature, TupleBatch
from millrace.options import Options
from tests.engine.operators import Profiling, Select

PIECE = 30e-6
"""Seconds that a piece costs the eddy whatever its size; a third of it shows in the module's account."""

LONGEST = 131_072


class Simulation:
    """Sends tuples through predicates as a policy says.

    Args:
        outcomes: Which tuple passes which predicate, booleans of shape ``(tuples, predicates)``.
        costs: Seconds per call, by predicate.
        policy: Decides.
        batch: Tuples that arrive together.
        stop: Predicate and call of it at which the machine stops for a tenth of a second, or None.
    """

    def __init__(
        self,
        outcomes: np.ndarray,
        costs: tuple[float, ...],
        policy: Policy,
        batch: int = 10_000,
        stop: tuple[int, int] | None = None,
    ) -> None:
        self._stop = stop
        self.outcomes, self.costs, self.policy = outcomes, costs, policy
        self.calls = np.zeros(len(costs), np.int64)
        self.pieces = 0
        self.profiled = 0
        self.kept: list[int] = []
        self.decisions: list[tuple[Signature, list[tuple[Operator, float]]]] = []
        self._statistics = Statistics(2 * LONGEST)
        self._busy = 0.0
        pace = DecisionLifetime(LONGEST, lambda: self._busy)
        self._table = RoutingTable(
            policy,
            self._candidates,
            pace.lasting,
            LONGEST,
            lambda signature, shares: self.decisions.append((signature, shares)),
        )
        for rows in np.split(np.arange(len(outcomes)), range(batch, len(outcomes), batch)):
            self._finish(TupleBatch(Signature(1), {0: rows}, {}))

    @property
    def work(self) -> float:
        """Cost-weighted calls, seconds."""
        return float(self.calls @ np.array(self.costs))

    @property
    def cost(self) -> float:
        """Seconds with the eddy's own."""
        return self.work + self.pieces * PIECE

    def _finish(self, arrived: TupleBatch) -> None:
        """Take tuples to their end, those in flight before new ones."""
        waiting = [arrived]
        while waiting:
            batch = waiting.pop()
            if batch.signature.done == (1 << len(self.costs)) - 1:
                self.kept.extend(batch.rows[0])
            elif batch.size:
                pieces, rest = self._table.route(batch)
                if rest is not None:
                    waiting.append(rest)
                waiting += [self._send(operator, piece) for operator, piece in pieces]

    def _candidates(self, signature: Signature) -> list[Candidate]:
        legal = [Select(i) for i in self._ready(signature)]
        legal += [Profiling(0)] if len(legal) > 1 else []
        profile = self._statistics.profile(signature.span)
        get = self._statistics.get
        return [Candidate(d, f"p{d.target}", get((signature, d)), 1 / 3, get(d), profile) for d in legal]

    def _ready(self, signature: Signature) -> list[int]:
        return [i for i in range(len(self.costs)) if not signature.done >> i & 1]

    def _send(self, operator: Operator, batch: TupleBatch) -> TupleBatch:
        """Return the tuples that come back."""
        self.pieces += 1
        rows, met = batch.rows[0], [operator.target]
        if isinstance(operator, Profiling):
            met = self._ready(batch.signature)
            self._statistics.profile(1).add({i: self.outcomes[rows, i] for i in met})
            self.profiled += len(rows)
        passing = self.outcomes[np.ix_(rows, met)]
        seconds = 0.0
        for i, passed in zip(met, passing.T, strict=True):
            took = len(rows) * self.costs[i] + PIECE / 3
            self.calls[i] += len(rows)
            if self._stop is not None and i == self._stop[0] and self.calls[i] >= self._stop[1]:
                self._stop = None
                took += 0.1
            self._statistics.update(Select(i), len(rows), int(passed.sum()), took)
            seconds += took
        kept = np.flatnonzero(passing.all(axis=1))
        self._statistics.update((batch.signature, operator), len(rows), len(kept), seconds)
        self._busy += seconds
        done = batch.signature.done | sum(1 << i for i in met)
        return batch.take(kept, signature=Signature(1, done))


def simulate(
    outcomes: np.ndarray,
    costs: tuple[float, ...],
    policy: str,
    batch: int = 10_000,
    stop: tuple[int, int] | None = None,
    **options: object,
) -> Simulation:
    """Return a finished simulation under a policy by its name."""
    made = POLICIES[policy](Options(policy=policy, **options))
    return Simulation(outcomes, costs, made, batch, stop)


def static(outcomes: np.ndarray, costs: tuple[float, ...], order: tuple[int, ...]) -> float:
    """Return the cost-weighted calls of one order for all tuples, seconds."""
    left = np.ones(len(outcomes), bool)
    work = 0.0
    for i in order:
        work += float(left.sum()) * costs[i]
        left &= outcomes[:, i]
    return work


def oracle(outcomes: np.ndarray, costs: tuple[float, ...], changes: tuple[int, ...] = ()) -> float:
    """Return the cost-weighted calls of the best static order of each phase, seconds.

    Args:
        outcomes: Of all tuples.
        costs: By predicate.
        changes: Tuple numbers at which a new phase begins.
    """
    orders = list(permutations(range(len(costs))))
    bounds = (0, *changes, len(outcomes))
    return sum(min(static(outcomes[a:b], costs, order) for order in orders) for a, b in pairwise(bounds))
