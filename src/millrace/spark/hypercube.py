"""HyperCube: which cells a tuple goes to, and how many cells an attribute class gets.

After Afrati and Ullman, "Optimizing joins in a map-reduce environment" (EDBT 2010). Every
attribute class is an *axis* with a *share* of coordinates; the product of the shares is the number
of cells. A tuple has one coordinate on the axis of each of its classes, by the hash of its key,
and goes to every cell that agrees with them. The tuples of one result agree on all their classes,
so they meet in exactly one cell.

A relation may also be *spread*: it gets an axis of its own on which a tuple's coordinate is
arbitrary (see :mod:`millrace.spark.exchange`). That is right too, since no other relation has a coordinate
there. It is the best axis when one relation is large and the others are small, or not connected with it.
A relation with set semantics cannot be spread: equal tuples must meet.

A *frequent* key would fill one coordinate of its axis. Its tuples of the largest relation are spread over the
axis, and those of the others go to every coordinate (Beame, Koutris and Suciu, "Skew in parallel query
processing", PODS 2014). A result still has one tuple that is in one cell alone, and all others are there.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pyarrow as pa

from millrace.engine.arrays import Array
from millrace.engine.plan.graph import QueryGraph

# More share vectors than this are not tried; a vector takes about 5 µs.
_SEARCH_LIMIT = 20_000


@dataclass(frozen=True)
class Axis:
    """One dimension of the cube; that of a spread relation has no type, and its column is empty.

    One column of a relation is enough even if more of its columns are in the class.
    """

    share: int  # number of coordinates, at least 1
    type: pa.DataType | None  # in which keys are compared
    columns: tuple[tuple[int, str], ...]  # of relations, by number
    nulls: bool = False  # whether tuples with a null key stay, at coordinate 0: those of an antijoin do
    frequent: tuple[int, ...] = ()  # codes of keys without a coordinate of their own; on one axis at most
    spread: int | None = None  # the relation whose tuples of these keys are spread

    def column(self, relation: int) -> str | None:
        return next((column for number, column in self.columns if number == relation), None)

    def spreads(self, relation: int) -> bool:
        """Whether the relation's tuples of frequent keys are spread; those of others go everywhere."""
        return relation == self.spread


@dataclass(frozen=True)
class Cube:
    """The axes with a share above 1 and, by mixed radix, the numbers of the cells."""

    axes: tuple[Axis, ...]

    @property
    def cells(self) -> int:
        return math.prod(axis.share for axis in self.axes)

    def strides(self) -> tuple[int, ...]:
        """Return what one step along each axis adds to a cell's number."""
        strides, step = [], 1
        for axis in self.axes:
            strides.append(step)
            step *= axis.share
        return tuple(strides)

    def offsets(self, relation: int, *, frequent: bool = False) -> tuple[int, ...]:
        """Return what to add to a tuple's base cell to get every cell that it goes to.

        A tuple of another relation than the spread one goes everywhere on the axis where its key is frequent.
        """
        offsets = [0]
        for axis, stride in zip(self.axes, self.strides(), strict=True):
            if axis.column(relation) is None or (frequent and axis.frequent and not axis.spreads(relation)):
                offsets = [o + stride * c for c in range(axis.share) for o in offsets]
        return tuple(sorted(offsets))

    def copies(self, relation: int) -> int:
        """Return to how many cells each tuple of the relation goes."""
        return math.prod(axis.share for axis in self.axes if axis.column(relation) is None)

    def cuts_alike(self, one: int, other: int) -> bool:
        """Whether equal tuples of two relations go to the same cells.

        Two relations on an axis without a type, or with frequent keys of which one is spread, do not.
        """
        return all(
            axis.column(one) == axis.column(other) and axis.spreads(one) == axis.spreads(other)
            for axis in self.axes
        )

    def find_axes(self, relation: int) -> list[tuple[Axis, str, int]]:
        """Return the axes on which the relation's tuples have coordinates, with its columns and strides."""
        columns = [axis.column(relation) for axis in self.axes]
        axes = zip(self.axes, columns, self.strides(), strict=True)
        return [(axis, column, stride) for axis, column, stride in axes if column is not None]

    def show(self, aliases: Sequence[str]) -> str:
        if not self.axes:
            return "1 cell"
        parts = []
        for axis in self.axes:
            names = " = ".join(
                f"{aliases[number]}.{column}" if column else f"rows of {aliases[number]}"
                for number, column in axis.columns
            )
            apart = f", frequent keys spread: {len(axis.frequent)}" if axis.frequent else ""
            parts.append(f"{names}: {axis.share}{apart}")
        return f"{self.cells} cells ({'; '.join(parts)})"


def choose(
    graph: QueryGraph,
    sizes: Sequence[float],
    cells: int,
    fixed: Sequence[bool],
    looked_up: Collection[int] = (),
) -> Cube:
    """Return the cube of at most ``cells`` cells whose fullest cell receives the least.

    Ties go to fewer copies sent, then to fewer cells. ``sizes`` are rows or bytes of each relation that are
    to be sent; what is ``fixed`` must not be spread. Every cell can ask for any tuple of a relation that is
    looked up. So these are no reason for an axis: on it, a result would be found in every cell.
    """
    candidates = [axis for axis, _ in class_axes(graph, looked_up)]
    loose = [n for n in range(graph.relations) if not fixed[n] and n not in looked_up]
    loose.sort(key=lambda number: -sizes[number])
    candidates += [Axis(1, None, ((number, ""),)) for number in loose[:2]]
    # The heaviest classes first, so that a cut-off search drops the lightest.
    candidates.sort(key=lambda axis: -sum(sizes[number] for number, _ in axis.columns))
    if _count(len(candidates), cells, 1) > _SEARCH_LIMIT:
        # Powers of two find out which axes matter; only these are then searched through.
        while _count(len(candidates), cells, 2) > _SEARCH_LIMIT:
            candidates.pop()
        coarse = _best(candidates, sizes, cells, step=2)
        ranked = sorted((axis for axis in coarse if axis.share > 1), key=lambda axis: -axis.share)
        candidates = [replace(axis, share=1) for axis in ranked]
        while _count(len(candidates), cells, 1) > _SEARCH_LIMIT:
            candidates.pop()
    return Cube(tuple(axis for axis in _best(candidates, sizes, cells, step=1) if axis.share > 1))


def find_frequent(codes: Array, share: int) -> tuple[int, ...]:
    """Return codes that each take more than half of what a coordinate should get of these."""
    found, counts = np.unique(codes, return_counts=True)
    return tuple(found[2 * share * counts > len(codes)].tolist())


def class_axes(graph: QueryGraph, looked_up: Collection[int] = ()) -> Iterator[tuple[Axis, int]]:
    """Yield the attribute classes that tuples can be partitioned by, as axes of one coordinate, numbered."""
    for number, attribute in enumerate(graph.classes):
        if attribute.span.bit_count() > 1 and any(r not in looked_up for r, _ in attribute.members):
            columns: dict[int, str] = {}
            for relation, column in attribute.members:
                columns.setdefault(relation, column)
            yield Axis(1, attribute.type, tuple(columns.items())), number


def _best(candidates: Sequence[Axis], sizes: Sequence[float], cells: int, *, step: int) -> list[Axis]:
    """Return the candidates with the shares whose fullest cell receives the least."""
    holds = [[axis.column(r) is not None for axis in candidates] for r in range(len(sizes))]

    def rank(shares: tuple[int, ...]) -> tuple[float, float, int]:
        product = math.prod(shares)
        load = sent = 0.0
        for size, mine in zip(sizes, holds, strict=True):
            own = math.prod(share for share, is_own in zip(shares, mine, strict=True) if is_own)
            load += size / own
            sent += size * product / own
        # Rounded, so that sums that differ by a rounding error are ties.
        return float(f"{load:.9g}"), float(f"{sent:.9g}"), product

    shares = min(_products(len(candidates), cells, step), key=rank)
    return [replace(axis, share=share) for share, axis in zip(shares, candidates, strict=True)]


def _shares(cells: int, step: int) -> Iterator[int]:
    """Yield the shares to try up to ``cells``: every number, or with ``step`` 2 every power of two."""
    share = 1
    while share <= cells:
        yield share
        share = share + 1 if step == 1 else share * step


@cache
def _count(axes: int, cells: int, step: int) -> int:
    """Return the number of vectors that :func:`_products` returns."""
    if axes == 0:
        return 1
    return sum(_count(axes - 1, cells // first, step) for first in _shares(cells, step))


def _products(axes: int, cells: int, step: int) -> list[tuple[int, ...]]:
    """Return every vector of ``axes`` shares whose product is at most ``cells``."""
    vectors: list[tuple[int, ...]] = [()]
    for _ in range(axes):
        vectors = [(*each, share) for each in vectors for share in _shares(cells // math.prod(each), step)]
    return vectors
