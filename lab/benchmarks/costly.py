"""Predicates that cost a set time and keep rows that are known beforehand.

What a predicate says depends on the row's id alone, through a hash: the same on every machine,
without a pattern that a row's neighbours share, and computable for all rows at once. The same
formulas serve Python's integers (in the tasks) and numpy's arrays (where the truth is told).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd

Array = np.ndarray[Any, np.dtype[Any]]
Kind = Literal["row", "pandas"]
Function = Callable[[Any], Any]

_WORD = 0xFFFFFFFF
_STRAY = 0x5BD1E995
"""Salts the hash that decides which rows do not follow the shared one."""


@dataclass(frozen=True)
class Layout:
    """Where a row stands: ids run through the partitions, and each partition through all phases.

    Attributes:
        rows: Of all partitions together; a multiple of ``partitions * phases``.
        partitions: Tasks.
        phases: Equal stretches of each partition.
    """

    rows: int
    partitions: int = 4
    phases: int = 1

    def phase(self, identity: Any) -> Any:
        """Return the phase of a row, or of an array of rows, by its id."""
        piece = self.rows // self.partitions
        return identity % piece * self.phases // piece


@dataclass(frozen=True)
class Costly:
    """A predicate over ids.

    Attributes:
        name: What reports call it; unique within a case.
        micros: CPU time of one row in microseconds. At 0 it is one multiplication and a comparison,
            so that next to nothing but the call is left: the hash would cost more.
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

    def truth(self, ids: Array, layout: Layout) -> Array:
        """Return for each of some ids whether it is kept, as booleans of the same shape."""
        limits = np.array(self._limits(), np.uint64)[layout.phase(ids)]
        drawn = self._draw()(ids.astype(np.uint64), self.salt)
        if self.strays:
            own = draw(ids.astype(np.uint64), self._own_salt())
            drawn = np.where(own < _limit(self.strays), draw(own, self.salt), drawn)
        return np.asarray(drawn < limits)

    def function(self, layout: Layout, kind: Kind = "row", *, free: bool = False) -> Function:
        """Return it as a function of one id, or of a Series of ids.

        Args:
            layout: Of the rows it is for.
            kind: Which of the two; a Series costs as much as its rows.
            free: Leave the cost away, to count calls only.
        """
        nanos = 0 if free else round(1000 * self.micros)
        made = self._over_series(layout, nanos) if kind == "pandas" else self._over_rows(layout, nanos)
        made.__name__ = self.name
        return made

    def _over_rows(self, layout: Layout, nanos: int) -> Function:
        limits, salt, own_salt = self._limits(), self.salt, self._own_salt()
        strays = _limit(self.strays)
        if not self.micros:
            limit = limits[0]
            return lambda identity: multiply(identity, salt) < limit

        def keep(identity: int) -> bool:
            began = time.thread_time_ns()
            drawn = draw(identity, salt)
            if strays:
                own = draw(identity, own_salt)
                drawn = draw(own, salt) if own < strays else drawn
            kept = bool(drawn < limits[layout.phase(identity)])
            burn(began + nanos)
            return kept

        return keep

    def _over_series(self, layout: Layout, nanos: int) -> Function:
        def keep(identity: pd.Series) -> pd.Series:
            began = time.thread_time_ns()
            kept = pd.Series(self.truth(identity.to_numpy(), layout))
            burn(began + nanos * len(identity))
            return kept

        return keep

    def _limits(self) -> tuple[int, ...]:
        return tuple(map(_limit, self.keeps))

    def _draw(self) -> Callable[[Any, int], Any]:
        return draw if self.micros else multiply

    def _own_salt(self) -> int:
        return sum(self.name.encode()) * _STRAY & _WORD


def stages(functions: Sequence[Function], orders: Sequence[Sequence[int]], layout: Layout) -> list[Function]:
    """Return predicates that, called in turn, are the given ones in another order in every phase.

    Args:
        functions: Row predicates.
        orders: By phase, places among ``functions``.
        layout: Tells the phase of a row.
    """

    def stage(number: int) -> Function:
        by_phase = [functions[order[number]] for order in orders]

        def keep(identity: int) -> Any:
            return by_phase[layout.phase(identity)](identity)

        keep.__name__ = f"stage_{number + 1}"
        return keep

    return [stage(number) for number in range(len(functions))]


def draw(identity: Any, salt: int) -> Any:
    """Return a number of 32 bits for an id below 2**32; arrays must be of ``uint64``."""
    mixed = (identity ^ salt) * 0x9E3779B1 & _WORD
    mixed = (mixed ^ mixed >> 15) * 0x85EBCA6B & _WORD
    mixed = (mixed ^ mixed >> 13) * 0xC2B2AE35 & _WORD
    return mixed ^ mixed >> 16


def multiply(identity: Any, salt: int) -> Any:
    """Return a number of 32 bits for an id below 2**32: far from random, but evenly spread and cheap."""
    return identity * salt & _WORD


def burn(until: int) -> None:
    """Spin until this thread has used so much CPU time, in nanoseconds.

    CPU time rather than wall time: a task that has to wait for a core has not worked meanwhile.
    """
    while time.thread_time_ns() < until:
        pass


def _limit(share: float) -> int:
    return round(share * (_WORD + 1))
