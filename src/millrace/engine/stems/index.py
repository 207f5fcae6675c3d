"""What a SteM searches by beside hash tables: the order of a column, for inequalities; nothing, for products.

Raman, Deshpande & Hellerstein 2003, section 2.1.4: a SteM searches by arbitrary predicates and has a hash
table *or a tree* on a join column. Here the tree is a few sorted runs, merged so that their sizes fall
geometrically: appending costs O(log n) a row, a probe is a binary search in each run.

Values become whole numbers in the same order. Spark's order of floats holds: NaN is equal to itself and above
everything else, -0.0 equals 0.0. A null compares with nothing, so it is in no run.

Both kinds of pairs are known by their numbers alone, so a probe returns them in steps, as a block ripple join
does. Every search is a :class:`Cursor`; that of a hash table is :class:`millrace.engine.kernels.Walk`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import pyarrow as pa

from millrace.engine.arrays import Array
from millrace.engine.plan.expressions import Column, Compare
from millrace.engine.plan.spec import JoinSpec
from millrace.engine.tuples import codes, is_exact, is_key_type
from millrace.engine.tuples.batch import TupleBatch

_TURNED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}


class Cursor(Protocol):
    """How far the matches of probe tuples have been returned; ``is_new`` until some are asked for."""

    is_new: bool

    @property
    def is_done(self) -> bool:
        """Whether every match has been returned."""

    def pairs(self, limit: int) -> tuple[Array, Array]:
        """Return the next pairs, at most ``limit``: positions of tuples, and row numbers."""


class Pairs:
    """Counts pairs off that come in cells of these sizes."""

    def __init__(self, counts: Array) -> None:
        self._starts = np.concatenate(([0], np.cumsum(counts)))
        self._done = 0
        self.is_new = True

    @property
    def is_done(self) -> bool:
        return bool(self._done >= self._starts[-1])

    def _next(self, limit: int) -> tuple[Array, Array]:
        """Return the cells of the next pairs, at most ``limit``, and which pairs of these cells they are."""
        self.is_new = False
        numbers = np.arange(self._done, min(self._done + limit, int(self._starts[-1])))
        self._done += limit
        cells = np.searchsorted(self._starts, numbers, side="right") - 1
        return cells, numbers - self._starts[cells]


class Product(Pairs):
    """Pairs every probe tuple with every row between its bounds: steps of a block ripple join.

    Rows are those from ``low`` to below ``end``; with ``high``, to below ``high[i]`` for probe tuple ``i``.
    """

    def __init__(self, tuples: int, low: int, end: int, high: Array | None) -> None:
        counts = np.full(tuples, end, np.int64) if high is None else high.astype(np.int64)
        super().__init__(np.maximum(counts - low, 0))
        self._low = low

    def pairs(self, limit: int) -> tuple[Array, Array]:
        left, offsets = self._next(limit)
        right = offsets + self._low
        return left.astype(np.int32), right.astype(np.int32)


@dataclass(frozen=True)
class _Run:
    values: Array
    rows: Array


class Ranges(Pairs):
    """Pairs every probe tuple with the rows in its range, those from number ``low`` on and below ``high[i]``.

    ``begins`` and ``counts`` say where the range begins in each run and how many rows it has, each of shape
    ``(tuples,)``; ``high`` is None when there is no bound.
    """

    def __init__(
        self,
        runs: Sequence[_Run],
        begins: Sequence[Array],
        counts: Sequence[Array],
        tuples: int,
        low: int,
        high: Array | None,
    ) -> None:
        super().__init__(np.concatenate([*counts, np.zeros(0, np.int64)]))
        self._runs, self._begins, self._tuples = runs, begins, tuples
        self._low, self._high = low, high

    def pairs(self, limit: int) -> tuple[Array, Array]:
        cells, offsets = self._next(limit)
        left = cells % self._tuples if self._tuples else cells
        right = np.empty(len(cells), np.int32)
        which = cells // self._tuples if self._tuples else cells
        for i in np.unique(which).tolist():
            at = which == i
            right[at] = self._runs[i].rows[self._begins[i][left[at]] + offsets[at]]
        keep = right >= self._low
        if self._high is not None:
            keep &= right < self._high[left]
        return left[keep].astype(np.int32), right[keep]


@dataclass(frozen=True)
class Inequality:
    """``column op other.bound``, residual predicate ``number`` seen from the relation that has ``column``."""

    number: int
    column: str
    op: str
    other: int
    bound: str
    type: pa.DataType


def inequalities(spec: JoinSpec, relation: int) -> tuple[Inequality, ...]:
    """Return the residual predicates of a block that tuples of a relation can be searched by."""
    alias = spec.aliases[relation]
    found = []
    for number, predicate in enumerate(spec.residuals):
        match predicate:
            case Compare(op, Column(left), Column(right), kind) if op in _TURNED and _is_ordered(kind):
                if left.relation == right.relation:
                    continue
                mine, bound, seen = left, right, str(op)
                if right.relation == alias:
                    mine, bound, seen = right, left, _TURNED[op]
                if mine.relation == alias and bound.relation in spec.aliases:
                    other = spec.aliases.index(bound.relation)
                    found.append(Inequality(number, mine.column, seen, other, bound.column, kind))
    return tuple(found)


class OrderedIndex:
    """Rows, from number ``first`` on, in the order of one column's values in a type, in sorted runs."""

    def __init__(self, kind: pa.DataType, first: int) -> None:
        self._kind = kind
        self._next = first
        self._runs: list[_Run] = []

    @property
    def nbytes(self) -> int:
        return sum(int(run.values.nbytes + run.rows.nbytes) for run in self._runs)

    def insert(self, column: pa.Array) -> None:
        """Append rows with these values; nulls are left out."""
        values, valid = self._places(column)
        rows = np.arange(self._next, self._next + len(values), dtype=np.int32)
        self._next += len(values)
        if valid is not None:
            values, rows = values[valid], rows[valid]
        if not len(values):
            return
        pieces = [_Run(values, rows)]
        size = len(values)
        while self._runs and len(self._runs[-1].values) < 2 * size:
            pieces.append(self._runs.pop())
            size += len(pieces[-1].values)
        self._runs.append(_sorted(pieces))

    def evict(self, below: int) -> None:
        """Drop the rows below this number."""
        kept = [(run, run.rows >= below) for run in self._runs]
        self._runs = [_Run(run.values[keep], run.rows[keep]) for run, keep in kept if keep.any()]

    def probe(
        self, searched: Sequence[Inequality], batch: TupleBatch, low: int, high: Array | None
    ) -> Ranges:
        """Begin to match tuples with the rows that satisfy all of these inequalities.

        There is at least one, all of this index's column and type. Only rows from ``low`` on match, and below
        ``high[i]`` for tuple ``i``; None when there is no bound.
        """
        runs, valid = tuple(self._runs), np.ones(batch.size, np.bool_)
        begins = [np.zeros(batch.size, np.int64) for _ in runs]
        ends = [np.full(batch.size, len(run.values)) for run in runs]
        for each in searched:
            bounds, known = self._places(batch.stores[each.other].gather(each.bound, batch.rows[each.other]))
            valid = valid if known is None else valid & known
            side: Literal["left", "right"] = "left" if each.op in (">=", "<") else "right"
            for number, run in enumerate(runs):
                at = np.searchsorted(run.values, bounds, side)
                if each.op[0] == ">":
                    begins[number] = np.maximum(begins[number], at)
                else:
                    ends[number] = np.minimum(ends[number], at)
        counts = [
            np.where(valid, np.maximum(end - begin, 0), 0) for begin, end in zip(begins, ends, strict=True)
        ]
        return Ranges(runs, begins, counts, batch.size, low, high)

    def _places(self, column: pa.Array) -> tuple[Array, Array | None]:
        """Return the values' places in their order, ``int64``, and which are not null; None for all."""
        numbers, valid = codes(column, self._kind)
        if pa.types.is_floating(self._kind):  # the bits of negative numbers count the wrong way round
            numbers = np.where(numbers < 0, numbers ^ np.int64(0x7FFFFFFFFFFFFFFF), numbers)
        return numbers, valid


def _is_ordered(kind: pa.DataType) -> bool:
    """Return whether values of the type can be put in order as whole numbers."""
    return is_key_type(kind) and is_exact(kind)


def _sorted(pieces: Sequence[_Run]) -> _Run:
    # Sorting what consists of sorted runs is merging them: numpy's stable sort finds the runs.
    values = np.concatenate([piece.values for piece in reversed(pieces)])
    rows = np.concatenate([piece.rows for piece in reversed(pieces)])
    order = np.argsort(values, kind="stable")
    return _Run(values[order], rows[order])
