"""Which attribute of a tuple tells what it will meet, found in a sample of tuples whose matches are known.

Bizarro, Babu, DeWitt & Widom 2005, "Content-based routing": the attribute that the outcome hangs on most, and
a plan for each of its values. Here values come in buckets, the plan is an order of joins, and what it would
save is counted on tuples that it was not made from: of many attributes one always seems to tell something.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from millrace.engine.arrays import Array, scalar, to_numpy

Order = tuple[int, ...]
"""Columns of the counts, that of the join to visit first at the head; ``()`` where none is preferred."""

BUCKETS = 32
"""Values of an attribute that are told apart, or ranges of as many tuples each."""

_LEAST = 16
"""Tuples of a bucket that its order is made from."""

_WORTH = 0.9
"""Share of the work that is left where dividing tuples is worth the work that this takes."""

_ERRORS = 3.0
"""Standard errors by which savings exceed nothing: one of several attributes is always the luckiest."""

_ORDERS = 4
"""Orders, at most: small batches cost more than a slightly worse order."""


@dataclass(frozen=True, eq=False)
class Division:
    """Tuples divided by an attribute.

    Attributes:
        column: The attribute.
        bounds: Where buckets begin, ascending numbers; or the value of each bucket.
        orders: The orders there are.
        order_of: For each bucket, and at last for null and unknown values, the number of its order.
    """

    column: str
    bounds: Array | pa.Array
    orders: tuple[Order, ...]
    order_of: Array

    def of(self, values: pa.Array) -> Array:
        """Return for each value of the attribute the number of its order."""
        chosen: Array = self.order_of[_bucketed(values, self.bounds)]
        return chosen


def division(columns: Mapping[str, pa.Array], counts: Array) -> Division | None:
    """Return how tuples are best divided, None where that is not worth it.

    Args:
        columns: Attributes of the tuples in the sample.
        counts: Matches of each tuple in each of several relations, shape ``(tuples, relations)``.
    """
    known, unseen = counts[::2], counts[1::2]
    single = _order(known)
    without = _works(unseen, single)
    least = _WORTH * without.sum()
    if _works(np.sort(unseen, axis=1), range(counts.shape[1])).sum() > least:
        return None  # not even if the best order of every tuple were known
    best = None
    for column, values in columns.items():
        bounds = _bounds(values)
        if bounds is None:
            continue
        buckets = _bucketed(values, bounds)
        size = len(bounds) + 2
        if not _tells(buckets[::2], size, known, single):
            continue
        orders, order_of = _orders(buckets[::2], size, known, single)
        chosen, work = order_of[buckets[1::2]], without.copy()
        for number, order in enumerate(orders):
            work[chosen == number] = _works(unseen[chosen == number], order)
        if work.sum() <= least and _is_certain(without - work):
            best, least = Division(column, bounds, orders, order_of), work.sum()
    return best


def _order(counts: Array) -> Order:
    """Return an order that goes on with whatever leaves the fewest tuples."""
    left, order = list(range(counts.shape[1])), []
    made = np.ones(len(counts))
    while left:
        sums = made @ counts[:, left]
        order.append(left.pop(int(np.argmin(sums))))
        made = made * counts[:, order[-1]]
    return tuple(order)


def _works(counts: Array, order: Iterable[int]) -> Array:
    """Return how many tuples are sent to a join, for each of these; the last makes the same in any order."""
    made = np.cumprod(counts[:, list(order)[:-1]], axis=1, dtype=np.float64)
    works: Array = 1 + made.sum(axis=1)
    return works


def _work(counts: Array, order: Order) -> float:
    return float(_works(counts, order).sum())


def _is_certain(saved: Array) -> bool:
    """Tell whether savings of single tuples are no matter of chance."""
    return float(saved.mean()) > _ERRORS * float(saved.std()) / math.sqrt(len(saved))


def _tells(buckets: Array, size: int, counts: Array, order: Order) -> bool:
    """Tell whether the best join to begin with depends on the bucket enough to look closer."""
    first = np.stack([np.bincount(buckets, c, size) for c in counts.T])
    return float(first[order[0]].sum() - first.min(axis=0).sum()) > (1 - _WORTH) / 2 * _work(counts, order)


def _orders(buckets: Array, size: int, counts: Array, single: Order) -> tuple[tuple[Order, ...], Array]:
    """Return the orders, the single best one first, and the number of that of each bucket."""
    wanted: dict[int, Order] = {}
    votes: dict[Order, int] = {}
    for bucket in range(size - 1):  # the last one is for what is unknown
        mine = counts[buckets == bucket]
        if len(mine) >= _LEAST:
            own = _order(mine)
            if _work(mine, own) < _WORTH * _work(mine, single):
                wanted[bucket] = own
                votes[own] = votes.get(own, 0) + len(mine)
    others = sorted((o for o in votes if o != single), key=lambda o: -votes[o])[: _ORDERS - 1]
    orders = (single, *others)
    order_of = np.zeros(size, np.int8)
    for bucket, own in wanted.items():
        order_of[bucket] = orders.index(own) if own in orders else 0
    return orders, order_of


def _bounds(values: pa.Array) -> Array | pa.Array | None:
    """Return the values there are if they are few, where buckets begin if they are numbers, else None."""
    kind = values.type
    if not (_is_number(kind) or pt.is_boolean(kind) or pt.is_string(kind) or pt.is_large_string(kind)):
        return None
    distinct = pc.unique(values).drop_null()
    if len(distinct) <= BUCKETS:
        return distinct if len(distinct) > 1 else None
    ranges = min(BUCKETS, len(values) // (4 * _LEAST))
    if not _is_number(kind) or ranges < 2:
        return None
    numbers = np.sort(_numbers(values))
    numbers = numbers[~np.isnan(numbers)]  # picked and not interpolated: there is nothing between infinities
    return np.unique(numbers[np.arange(1, ranges) * len(numbers) // ranges])


def _bucketed(values: pa.Array, bounds: Array | pa.Array) -> Array:
    """Return the bucket of each value, ``len(bounds) + 1`` for what has none."""
    last = len(bounds) + 1
    if isinstance(bounds, pa.Array):
        found = pc.fill_null(pc.index_in(values, bounds), scalar(last, pa.int32()))
        return to_numpy(found)
    numbers = _numbers(values)
    ranged: Array = np.searchsorted(bounds, numbers, side="right")
    ranged[np.isnan(numbers)] = last
    return ranged


def _is_number(kind: pa.DataType) -> bool:
    return any(each(kind) for each in (pt.is_integer, pt.is_floating, pt.is_date32, pt.is_timestamp))


def _numbers(values: pa.Array) -> Array:
    """Return values as ``float64``, in the same order but for what rounding makes equal; null as NaN."""
    if pt.is_date32(values.type):
        values = values.cast(pa.int32())
    elif pt.is_timestamp(values.type):
        values = values.cast(pa.int64())
    return to_numpy(pc.fill_null(values.cast(pa.float64(), safe=False), scalar(math.nan, pa.float64())))
