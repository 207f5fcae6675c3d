"""The cases of the predicates benchmark, and the oracle: what the best orders cost, given the truth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import permutations
from typing import Any

import numpy as np

from lab.benchmarks.costly import Array, Costly, Function, Kind, Layout, stages
from lab.benchmarks.harness import Target, parse_names

_CHECKED = 2654435761
_WORD = 1 << 32
CHECKSUM = f"id * {_CHECKED}L % {_WORD}L"
"""A number of 32 bits for each row, in Spark's SQL: its sum shows which rows were kept."""

_GOLDEN = 0x9E3779B1
_SALTS = (0x2545F491, 0x6C078965, 0x5D588B65, _GOLDEN, 0x85EBCA77, 0xC2B2AE3D)


@dataclass(frozen=True)
class Case:
    """A filter over ids from 0 on.

    Attributes:
        name: A letter.
        about: What it shows, in a few words.
        rows: In all partitions together.
        members: The predicates, as written.
        kind: How they are called.
        every: A condition that Spark evaluates itself keeps every so manyth id; None is no condition.
        phases: Stretches of each partition with selectivities of their own.
        targets: By the last part of the figures' names.
    """

    name: str
    about: str
    rows: int
    members: tuple[Costly, ...]
    kind: Kind = "row"
    every: int | None = None
    phases: int = 1
    targets: Mapping[str, Target] = field(default_factory=dict)

    @property
    def layout(self) -> Layout:
        """Where its rows stand."""
        return Layout(self.rows, phases=self.phases)

    @property
    def native(self) -> str | None:
        """The condition that Spark evaluates, as SQL text."""
        return None if self.every is None else f"id % {self.every} = 0"

    def scaled(self, scale: float) -> Case:
        """Return the case with ``scale`` times as many rows, at least one a phase."""
        step = self.layout.partitions * self.phases
        return replace(self, rows=max(1, round(self.rows * scale / step)) * step)

    def functions(self, *, free: bool = False) -> list[Function]:
        """Return the predicates as written, as functions; ``free`` ones burn no time."""
        return [member.function(self.layout, self.kind, free=free) for member in self.members]


@dataclass(frozen=True)
class Truth:
    """What is known of a case beforehand.

    Attributes:
        candidates: Rows that the predicates are for: those that Spark's own condition keeps.
        kept: Rows that all predicates keep.
        checksum: Sum of ``CHECKSUM`` over these.
        orders: The best order of each phase, as places among the case's members.
        calls: Calls of each member under these orders.
        stage_calls: Calls of whatever comes first, second and so on.
    """

    candidates: int
    kept: int
    checksum: int
    orders: tuple[tuple[int, ...], ...]
    calls: tuple[int, ...]
    stage_calls: tuple[int, ...]

    @classmethod
    def of(cls, case: Case) -> Truth:
        """Find the best orders by trying all of them."""
        ids = np.arange(0, case.rows, case.every or 1)
        outcomes = np.stack([member.truth(ids, case.layout) for member in case.members], axis=1)
        phases = case.layout.phase(ids)
        weights = [member.weight for member in case.members]
        orders = []
        calls, stage_calls = (np.zeros(len(weights), np.int64) for _ in range(2))
        for phase in range(case.phases):
            there = outcomes[phases == phase]
            order = best_order(there, weights)
            reached = calls_of(there, order)
            calls[list(order)] += reached
            stage_calls += reached
            orders.append(order)
        kept = ids[outcomes.all(axis=1)]
        checksum = int((kept * _CHECKED % _WORD).sum())
        return cls(len(ids), len(kept), checksum, tuple(orders), _whole(calls), _whole(stage_calls))

    def oracle(self, case: Case) -> list[Function]:
        """Return predicates that, called in the order returned, do what the best orders do."""
        functions = case.functions()
        if len(set(self.orders)) == 1:
            return [functions[place] for place in self.orders[0]]
        return stages(functions, self.orders, case.layout)


def weighted(case: Case, calls: Sequence[float]) -> float:
    """Return calls of the members weighted by what they cost."""
    return sum(member.weight * count for member, count in zip(case.members, calls, strict=True))


def calls_of(outcomes: Array, order: Sequence[int]) -> Array:
    """Return how often each predicate of an order is called, shape ``(predicates,)``.

    Args:
        outcomes: Whether a row is kept, shape ``(rows, predicates)``.
        order: Places of the predicates.
    """
    passed = np.logical_and.accumulate(outcomes[:, list(order)], axis=1).sum(axis=0)
    return np.array([len(outcomes), *passed[:-1]], np.int64)


def best_order(outcomes: Array, weights: Sequence[float]) -> tuple[int, ...]:
    """Return the order of the least cost, the first in lexical order of those that are equal."""

    def cost(order: tuple[int, ...]) -> float:
        return float(calls_of(outcomes, order) @ np.array(weights)[list(order)])

    return min(permutations(range(len(weights))), key=cost)


def _whole(numbers: Array) -> tuple[int, ...]:
    return tuple(map(int, numbers))


def _independent(costs: Sequence[float], *keeps: Sequence[float]) -> tuple[Costly, ...]:
    """Return predicates that know nothing of each other.

    Args:
        costs: Microseconds a row.
        keeps: For each phase, the shares that they keep.
    """
    names = ("first", "second", "third")
    return tuple(
        Costly(name, cost, tuple(by_phase[i] for by_phase in keeps), _SALTS[i])
        for i, (name, cost) in enumerate(zip(names, costs, strict=True))
    )


_ROUGHLY: dict[str, Any] = {"time_oracle_ratio": Target(high=1.1)}
_STATIC = {"calls_oracle_ratio": Target(high=1.05), **_ROUGHLY}
_CHANGING = {"calls_oracle_ratio": Target(high=1.1), **_ROUGHLY}

CASES = {
    case.name: case
    for case in (
        Case(
            "a",
            "cheap ones keep little, written worst-first",
            40_000,
            _independent((200, 50, 5), (0.9, 0.5, 0.1)),
            targets={**_STATIC, "time_spark_ratio": Target(high=0.15)},
        ),
        Case(
            "b",
            "cheap ones keep much, written worst-first",
            36_000,
            _independent((200, 50, 5), (0.1, 0.5, 0.9)),
            targets=_STATIC,
        ),
        # Costs are close to each other, for with those of (a) the cheapest comes first whatever the phase,
        # and one static order is within a few percent of the best of each phase.
        Case(
            "c",
            "selectivities change hands three times",
            128_000,
            _independent((30, 25, 20), (0.9, 0.5, 0.1), (0.1, 0.9, 0.5), (0.5, 0.1, 0.9), (0.9, 0.5, 0.1)),
            phases=4,
            targets=_CHANGING,
        ),
        # Once one of the three that agree has spoken, the others reject next to nothing, and the one
        # that knows better comes second although its own rank is the lowest.
        Case(
            "d",
            "three nearly agree, a dearer one knows better",
            36_000,
            (
                Costly("agrees", 50, (0.5,), _SALTS[3], strays=0.04),
                Costly("concurs", 45, (0.5,), _SALTS[3], strays=0.04),
                Costly("asserts", 40, (0.5,), _SALTS[3], strays=0.04),
                Costly("knows", 110, (0.1,), _SALTS[4]),
            ),
            targets=_CHANGING,
        ),
        Case(
            "e",
            "as (a), over pandas Series",
            36_000,
            _independent((200, 50, 5), (0.9, 0.5, 0.1)),
            kind="pandas",
            targets=_ROUGHLY,
        ),
        Case(
            "f",
            "a condition of Spark's keeps 1 %, beside one predicate",
            2_000_000,
            (Costly("dear", 200, (0.5,), _SALTS[0]),),
            every=100,
            targets={"time_spark_ratio": Target(high=1.05)},
        ),
        # No order is better than another, so that all there is beyond a static order is overhead.
        Case(
            "g",
            "free predicates of equal selectivity",
            4_800_000,
            _independent((0, 0, 0), (0.5, 0.5, 0.5)),
            targets={**_ROUGHLY, "time_spark_ratio": Target(high=1.0)},
        ),
    )
}
"""The cases by name. At full size Spark takes two seconds on two cores, and about five where there is
something to learn: what a job costs at its start is a fifth of a second on either side."""


def parse_cases(text: str | None) -> tuple[str, ...]:
    """Return the cases in ``"a,c,f"``; all of None.

    Raises:
        OptionError: One of them is not known.
    """
    return tuple(CASES) if text is None else parse_names("cases", text, tuple(CASES))
