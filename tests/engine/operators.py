"""Operators for tests of what is above them: a kind and a target, and no work; and outcomes of predicates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from millrace.engine.eddy.operator import Kind, Operator, Step


class _Named(Operator):
    """Equal to any other of the kind with the same target."""

    def __init__(self, target: int) -> None:
        super().__init__(target, *[f"{self.action} {target}"] * 2)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Operator) and other.place == self.place

    def __hash__(self) -> int:
        return hash(self.place)

    def step(self, work: Any, limit: int) -> Step:
        raise AssertionError(f"nothing is to be sent to {self}")


KINDS = {kind.value: type(kind.name, (_Named,), {"kind": kind}) for kind in Kind}
Build, Probe, Join = KINDS["build"], KINDS["probe"], KINDS["join"]


def outcomes_of(evaluated: int, passed: Sequence[int]) -> dict[int, np.ndarray]:
    """Return by predicate which tuples passed it, from bit sets of what all met and what each passed."""
    return {
        i: np.array([bits >> i & 1 == 1 for bits in passed], bool)
        for i in range(evaluated.bit_length())
        if evaluated >> i & 1
    }
