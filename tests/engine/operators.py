"""Operators for tests of what is above them: a kind and a target, and no work; and outcomes of predicates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from millrace.engine.eddy import operator as real
from millrace.engine.eddy.operator import Operator, Step


class _Named:
    """Equal to any other of the kind with the same target."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.name = self.label = f"{self.action} {target}"  # type: ignore[attr-defined]

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.target == self.target  # type: ignore[attr-defined]

    def __hash__(self) -> int:
        return hash((type(self), self.target))

    def step(self, work: Any, limit: int) -> Step:
        raise AssertionError(f"nothing is to be sent to {self}")


KINDS: dict[str, type[Operator]] = {
    kind.action: type(kind.__name__, (_Named, kind), {})
    for kind in (real.Build, real.Probe, real.Join, real.Lookup, real.Select, real.Profiling, real.Settle)
}
Build, Probe, Join, Lookup, Select, Profiling, Settle = KINDS.values()


def outcomes_of(evaluated: int, passed: Sequence[int]) -> dict[int, np.ndarray]:
    """Return by predicate which tuples passed it, from bit sets of what all met and what each passed."""
    return {
        i: np.array([bits >> i & 1 == 1 for bits in passed], bool)
        for i in range(evaluated.bit_length())
        if evaluated >> i & 1
    }
