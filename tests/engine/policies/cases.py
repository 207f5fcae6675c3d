"""The situations that the policies are measured in: outcomes, costs and phases, by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tests.engine.policies.simulator import oracle

MICRO = 1e-6


@dataclass(frozen=True)
class Case:
    """Outcomes of shape ``(tuples, predicates)``, seconds per call, and where a new phase begins."""

    outcomes: np.ndarray
    costs: tuple[float, ...]
    changes: tuple[int, ...] = ()

    @property
    def oracle(self) -> float:
        return oracle(self.outcomes, self.costs, self.changes)


def outcomes_of(evaluated: int, passed: Sequence[int]) -> dict[int, np.ndarray]:
    """Return by predicate which tuples passed it, from bit sets of what all met and what each passed."""
    return {
        i: np.array([bits >> i & 1 == 1 for bits in passed], bool)
        for i in range(evaluated.bit_length())
        if evaluated >> i & 1
    }


def independent(seed: int, costs: tuple[float, ...], kept: tuple[float, ...], tuples: int = 20_000) -> Case:
    """Return a case of independent predicates; costs in microseconds."""
    drawn = np.random.default_rng(seed).random((tuples, len(costs)))
    return Case(drawn < np.array(kept), tuple(c * MICRO for c in costs))


def drift(seed: int, tuples: int = 20_000) -> Case:
    """Return a case in which the predicates exchange their selectivities three times."""
    costs = (200, 50, 5)
    kept = [np.roll((0.9, 0.5, 0.1), turn) for turn in range(4)]
    parts = [independent(seed * 4 + i, costs, tuple(k), tuples // 4).outcomes for i, k in enumerate(kept)]
    changes = (tuples // 4, tuples // 2, 3 * tuples // 4)
    return Case(np.vstack(parts), independent(0, costs, (0, 0, 0), 1).costs, changes)


def correlated(seed: int, tuples: int = 20_000) -> Case:
    """Return a case in which predicates 0 and 1 reject nearly the same tuples, so that 2 comes second."""
    random = np.random.default_rng(seed)
    drawn = random.random((tuples, 3))
    first = drawn[:, 0] < 0.3
    same = np.where(random.random(tuples) < 0.97, first, drawn[:, 1] < 0.3)
    third = drawn[:, 2] < 0.5
    return Case(np.stack([same, first, third], axis=1), (50 * MICRO, 48 * MICRO, 55 * MICRO))


def shadowed(seed: int, tuples: int = 20_000) -> Case:
    """Return a case in which predicate 0 comes to reject most, but little of what 1 has left to it."""
    random = np.random.default_rng(seed)
    before = tuples // 10
    second = random.random(tuples) < 0.4
    first = random.random(tuples) < np.where(second, 0.75, 0.0)
    first[:before] = True
    return Case(np.stack([first, second], axis=1), (45 * MICRO, 60 * MICRO), (before,))


CASES: dict[str, Callable[[int], Case]] = {
    "a": lambda seed: independent(seed, (200, 50, 5), (0.9, 0.5, 0.1)),
    "b": lambda seed: independent(seed, (200, 50, 5), (0.1, 0.5, 0.9)),
    "drift": drift,
    "correlated": correlated,
    "written best": lambda seed: independent(seed, (5, 50, 200), (0.1, 0.5, 0.9)),
    "free": lambda seed: independent(seed, (0.1, 0.1, 0.1), (0.9, 0.5, 0.1), 40_000),
}
