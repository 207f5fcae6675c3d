"""Operators for tests of what is above them: a kind and a target, and no work."""

from __future__ import annotations

from typing import Any

from millrace.engine import operator
from millrace.engine.operator import Operator, Step


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


class Build(_Named, operator.Build):
    """Names a SteM to build into."""


class Probe(_Named, operator.Probe):
    """Names a SteM to probe."""


class Join(_Named, operator.Join):
    """Names an edge."""


class Lookup(_Named, operator.Lookup):
    """Names a lookup."""


class Select(_Named, operator.Select):
    """Names a predicate."""


class Profiling(_Named, operator.Profiling):
    """Names a profile."""


class Settle(_Named, operator.Settle):
    """Names a predicate that raised."""


KINDS: dict[str, type[Operator]] = {
    kind.action: kind for kind in (Build, Probe, Join, Lookup, Select, Profiling, Settle)
}
