"""Predicates that cost a set time and keep known rows, and what the best orders of them cost.

What a predicate says depends on the row's id alone, through a hash: the same on every machine, without a
pattern that a row's neighbours share, and computable for all rows at once. The same formulas serve Python's
integers, in the tasks, and numpy's arrays, where the truth is counted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from typing import Any, Literal

import numpy as np
import pandas as pd

Array = np.ndarray[Any, np.dtype[Any]]
Function = Callable[[Any], Any]

_WORD = 1 << 32
_MASK = _WORD - 1
_STRAY = 0x5BD1E995
"""Salts the hash that decides which rows do not follow the shared one."""

_CHECKED = 2654435761
CHECKSUM = f"id * {_CHECKED}L % {_WORD}L"
"""A number of 32 bits for each row, in Spark's SQL: its sum shows which rows were kept."""


@dataclass(frozen=True)
class Costly:
    """A predicate over ids.

    Attributes:
        name: What reports call it; unique within a case.
        micros: CPU time of one row in microseconds. At 0 it is one multiplication and a comparison, so that
            next to nothing but the call is left: the hash would cost more.
        keeps: Share of rows that it keeps in each phase.
        salt: Of its hash. Predicates of one salt that keep equal shares keep the same rows.
        strays: Share of rows that it decides by a hash of its own instead.
    """

    name: str
    micros: float
    keeps: tuple[float, ...]
    salt: int
    strays: float = 0.0

    @property
    def weight(self) -> float:
        """What a call counts in cost-weighted calls; all free ones count the same."""
        return self.micros or 1.0

    def truth(self, ids: Array, phases: Array) -> Array:
        """Return for each of some ids, and its phase, whether it is kept."""
        limits = np.array([*map(_limit, self.keeps)], np.uint64)[phases]
        drawn = (_draw if self.micros else _multiply)(ids.astype(np.uint64), self.salt)
        if self.strays:
            own = _draw(ids.astype(np.uint64), self._own_salt)
            drawn = np.where(own < _limit(self.strays), _draw(own, self.salt), drawn)
        return np.asarray(drawn < limits)

    def function(self, case: Filter, *, free: bool = False) -> Function:
        """Return it as the filter calls it: of one id, or of a Series; ``free`` leaves its cost away."""
        nanos, limits = 0 if free else round(1000 * self.micros), [*map(_limit, self.keeps)]
        salt, own_salt, stray, phase = self.salt, self._own_salt, _limit(self.strays), case.phase

        def cheap(identity: int) -> bool:
            return bool(_multiply(identity, salt) < limits[0])

        def row(identity: int) -> bool:
            began = time.thread_time_ns()
            drawn = _draw(identity, salt)
            if stray:
                own = _draw(identity, own_salt)
                drawn = _draw(own, salt) if own < stray else drawn
            kept = bool(drawn < limits[phase(identity)])
            _burn(began + nanos)
            return kept

        def series(identity: pd.Series) -> pd.Series:
            began, ids = time.thread_time_ns(), identity.to_numpy()
            kept = pd.Series(self.truth(ids, phase(ids)))
            _burn(began + nanos * len(identity))
            return kept

        made = series if case.kind == "pandas" else row if self.micros else cheap
        made.__name__ = self.name
        return made

    @property
    def _own_salt(self) -> int:
        return sum(self.name.encode()) * _STRAY & _MASK


def _draw(identity: Any, salt: int) -> Any:
    """Return a number of 32 bits for an id below 2**32; arrays must be of ``uint64``."""
    mixed = (identity ^ salt) * 0x9E3779B1 & _MASK
    mixed = (mixed ^ mixed >> 15) * 0x85EBCA6B & _MASK
    mixed = (mixed ^ mixed >> 13) * 0xC2B2AE35 & _MASK
    return mixed ^ mixed >> 16


def _multiply(identity: Any, salt: int) -> Any:
    """Return a number of 32 bits for an id below 2**32: far from random, but evenly spread and cheap."""
    return identity * salt & _MASK


def _burn(until: int) -> None:
    """Spin until this thread has used so much CPU time: a task that waits for a core has not worked."""
    while time.thread_time_ns() < until:
        pass


def _limit(share: float) -> int:
    return round(share * _WORD)


@dataclass(frozen=True)
class Filter:
    """A filter over ids from 0 on, in equal partitions of equal phases, each with selectivities of its own.

    ``members`` are the predicates, as written. Spark itself keeps ``every`` so manyth id.
    """

    about: str
    rows: int
    members: tuple[Costly, ...]
    kind: Literal["row", "pandas"] = "row"
    every: int = 1
    phases: int = 1
    partitions: int = 4

    def phase(self, identity: Any) -> Any:
        """Return the phase of a row, or of an array of rows, by its id."""
        piece = self.rows // self.partitions
        return identity % piece * self.phases // piece

    @property
    def native(self) -> list[str]:
        """The conditions that Spark evaluates, as SQL text."""
        return [] if self.every == 1 else [f"id % {self.every} = 0"]

    def scaled(self, scale: float) -> Filter:
        """Return the filter over ``scale`` times as many rows, at least one a phase."""
        step = self.partitions * self.phases
        return replace(self, rows=max(1, round(self.rows * scale / step)) * step)

    def functions(self, *, free: bool = False) -> list[Function]:
        """Return the predicates as written, as functions; ``free`` ones burn no time."""
        return [member.function(self, free=free) for member in self.members]

    def work(self, calls: Sequence[float]) -> float:
        """Return calls of the predicates weighted by what they cost."""
        return sum(member.weight * count for member, count in zip(self.members, calls, strict=True))


@dataclass(frozen=True)
class Truth:
    """What is known of a filter beforehand.

    Attributes:
        kept: How many rows all predicates keep, and the sum of ``CHECKSUM`` over these.
        orders: The best order of each phase, as places among the predicates.
        calls: Calls of each predicate under these orders.
        stage_calls: Calls of whatever comes first, second and so on.
    """

    kept: tuple[int, int]
    orders: tuple[tuple[int, ...], ...]
    calls: tuple[int, ...]
    stage_calls: tuple[int, ...]

    @classmethod
    def of(cls, case: Filter) -> Truth:
        """Find the best orders by trying all of them."""
        ids = np.arange(0, case.rows, case.every)
        phases = case.phase(ids)
        outcomes = np.stack([member.truth(ids, phases) for member in case.members], axis=1)
        weights = np.array([member.weight for member in case.members])
        orders, calls, stages = [], np.zeros(len(weights), np.int64), np.zeros(len(weights), np.int64)
        for phase in range(case.phases):
            there = outcomes[phases == phase]
            best = min(
                permutations(range(len(weights))),
                key=lambda order: float(_calls(there, order) @ weights[list(order)]),
            )
            reached = _calls(there, best)
            calls[list(best)] += reached
            stages += reached
            orders.append(best)
        kept = ids[outcomes.all(axis=1)]
        answer = len(kept), int((kept * _CHECKED % _WORD).sum())
        return cls(answer, tuple(orders), tuple(map(int, calls)), tuple(map(int, stages)))

    def oracle(self, case: Filter) -> list[Function]:
        """Return predicates that, called in the order returned, do what the best orders do."""
        functions, orders = case.functions(), self.orders
        if len(set(orders)) == 1:
            return [functions[place] for place in orders[0]]

        def stage(number: int) -> Function:
            by_phase = [functions[order[number]] for order in orders]

            def keep(identity: int) -> Any:
                return by_phase[case.phase(identity)](identity)

            keep.__name__ = f"stage_{number + 1}"
            return keep

        return [stage(number) for number in range(len(functions))]


def _calls(outcomes: Array, order: Sequence[int]) -> Array:
    """Return how often each predicate of an order is called; outcomes are ``(rows, predicates)``."""
    passed = np.logical_and.accumulate(outcomes[:, list(order)], axis=1).sum(axis=0)
    return np.array([len(outcomes), *passed[:-1]], np.int64)


_SALTS = (0x2545F491, 0x6C078965, 0x5D588B65, 0x9E3779B1, 0x85EBCA77)


def _independent(costs: Sequence[float], *keeps: Sequence[float]) -> tuple[Costly, ...]:
    """Return predicates that know nothing of each other, with the shares that they keep in each phase."""
    rows = zip(("first", "second", "third"), costs, zip(*keeps, strict=True), _SALTS[:3], strict=True)
    return tuple(Costly(*row) for row in rows)


def _agreeing(name: str, micros: float) -> Costly:
    return Costly(name, micros, (0.5,), _SALTS[3], strays=0.04)


_DEAR_FIRST, _FALLING = (200, 50, 5), (0.9, 0.5, 0.1)
_PHASES = (_FALLING, (0.1, 0.9, 0.5), (0.5, 0.1, 0.9), _FALLING)
FILTERS = {
    "a": Filter("cheap ones keep little, written worst-first", 40_000, _independent(_DEAR_FIRST, _FALLING)),
    "b": Filter(
        "cheap ones keep much, written worst-first", 36_000, _independent(_DEAR_FIRST, (0.1, 0.5, 0.9))
    ),
    # Costs are close to each other, for with those of (a) the cheapest comes first whatever the phase,
    # and one static order is within a few percent of the best of each phase.
    "c": Filter(
        "selectivities change hands three times", 128_000, _independent((30, 25, 20), *_PHASES), phases=4
    ),
    # Once one of the three that agree has spoken, the others reject next to nothing, and the one
    # that knows better comes second although its own rank is the lowest.
    "d": Filter(
        "three nearly agree, a dearer one knows better",
        36_000,
        (
            *(_agreeing("agrees", 50), _agreeing("concurs", 45), _agreeing("asserts", 40)),
            Costly("knows", 110, (0.1,), _SALTS[4]),
        ),
    ),
    "e": Filter("as (a), over pandas Series", 36_000, _independent(_DEAR_FIRST, _FALLING), kind="pandas"),
    "f": Filter(
        "a condition of Spark's keeps 1 %, beside one predicate",
        2_000_000,
        (Costly("dear", 200, (0.5,), _SALTS[0]),),
        every=100,
    ),
    # No order is better than another, so that all there is beyond a static order is overhead.
    "g": Filter("free predicates of equal selectivity", 4_800_000, _independent((0, 0, 0), (0.5, 0.5, 0.5))),
}
"""At full size Spark takes two seconds on two cores, and about five where there is something to learn: what
a job costs at its start is a fifth of a second on either side."""
