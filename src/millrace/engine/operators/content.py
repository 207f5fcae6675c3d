"""Content-sensitive routing: tuples of the streamed relation are divided by the value of an attribute.

Deshpande & Hellerstein 2004, section 5.4, leave it as future work: a table may consist of parts with other
join characteristics each, and no single order is good for all of them. Where an attribute tells the parts
apart, tuples get the order that their part seems to want into their signature. Decisions are made by
signature, so that each part has statistics and routes of its own from then on; they begin with what the
sample says.

Bizarro, Babu, DeWitt & Widom 2005, "Content-based routing": the attribute that the outcome hangs on most, and
a plan for each of its values. Here values come in buckets, the plan is an order of joins, and what it would
save is counted on tuples that it was not made from: of many attributes one always seems to tell something.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from millrace.engine.arrays import Array, scalar, to_numpy
from millrace.engine.eddy.operator import Kind, Operator, Step
from millrace.engine.eddy.run_statistics import believe
from millrace.engine.stems.join_state import JoinState
from millrace.engine.stems.stem import SteM
from millrace.engine.tuples.batch import TupleBatch

if TYPE_CHECKING:
    from millrace.engine.eddy.context import RunContext

_SAMPLE = 2048
"""Tuples whose matches are counted to find an attribute."""

_LEAST_OF_BATCH = 256
"""Tuples of a batch that say enough."""

_MATCHES = 32
"""Matches counted for a tuple of the sample, on average, at most."""

_AGAIN = 1 << 22
"""Tuples after which it is looked again at the latest; earlier it is when four times as many have come."""

Order = tuple[int, ...]
"""Columns of the counts, that of the join to visit first at the head; ``()`` where none is preferred."""

BUCKETS = 32
"""Values of an attribute that are told apart, or ranges of as many tuples each."""

_LEAST_OF_BUCKET = 16
"""Tuples of a bucket that its order is made from."""

_WORTH = 0.9
"""Share of the work that is left where dividing tuples is worth the work that this takes."""

_ERRORS = 3.0
"""Standard errors by which savings exceed nothing: one of several attributes is always the luckiest."""

_ORDERS = 4
"""Orders, at most: small batches cost more than a slightly worse order."""


class Divide(Operator):
    """Divides tuples of the relation that is not kept, when all that they join is there.

    Short runs do not repay it, so a full batch has to come before a sample is taken.

    Attributes:
        sampled: Tuples that probed a SteM for a sample.
    """

    kind = Kind.DIVIDE

    def __init__(self, relation: int, context: RunContext, state: JoinState) -> None:
        self._alias = context.spec.aliases[relation]
        super().__init__(relation, f"Divide({self._alias})", self._alias)
        self._neighbours = [state.stems[other] for other in context.graph.neighbours(1 << relation)]
        self._joins, self._accounts = state.joins, context.statistics.accounts
        self._seen = 0
        self._due = max(context.options.batch_size + 1, _LEAST_OF_BATCH)
        self._division: Division | None = None
        self.sampled = 0

    def divides(self, batch: TupleBatch) -> bool:
        """Take note of tuples that have arrived; tell whether they are to be divided."""
        self._seen += batch.size
        if self._seen >= self._due and batch.size >= _LEAST_OF_BATCH:
            self._due = min(4 * self._seen, self._seen + _AGAIN)
            self._look(batch)
        return self._division is not None

    def _look(self, batch: TupleBatch) -> None:
        """Find an attribute in a sample of the batch."""
        if not all(stem.complete and stem.rows for stem in self._neighbours):
            return
        sample = batch.take(np.linspace(0, batch.size - 1, min(batch.size, _SAMPLE)).astype(np.int64))
        counts = np.stack([self._counted(sample, stem) for stem in self._neighbours], axis=1)
        store, rows = sample.stores[self.target], sample.rows[self.target]
        found = division({name: store.gather(name, rows) for name in store.schema.names}, counts)
        self._division = found
        if found is None:
            return
        self.name = f"Divide({self._alias}.{found.column})"
        order_of = found.of(store.gather(found.column, rows))
        for number, order in enumerate(found.orders):
            signature, mine = batch.signature.having(order=order), counts[order_of == number]
            joins = self._joins(signature)
            for stem, matches in zip(self._neighbours, mine.sum(axis=0).tolist(), strict=True):
                believe(self._accounts, signature, joins, stem.number, len(mine), matches)

    def _counted(self, sample: TupleBatch, stem: SteM) -> Array:
        """Return the matches of each tuple; of many, as many as are counted for all."""
        self.sampled += sample.size
        rows = sample.rows[self.target]
        found = np.zeros(int(rows[-1]) + 1, np.int64)
        probe, most = stem.start(sample), _MATCHES * sample.size
        while not probe.is_done and most > 0:
            met = stem.probe(probe, most)
            most -= met.size
            found += np.bincount(met.rows[self.target], minlength=len(found))
        return found[rows]

    def step(self, work: TupleBatch, limit: int) -> Step:
        assert self._division is not None, "divides() has been asked"
        column, orders = self._division.column, self._division.orders
        store, rows = work.stores[self.target], work.rows[self.target]
        order_of = self._division.of(store.gather(column, rows))
        pieces, missing = [], work.origin - work.size
        for number, order in enumerate(orders):
            positions = np.flatnonzero(order_of == number)
            if len(positions):
                signature = work.signature.having(order=order)
                origin = len(positions) + missing
                pieces.append(work.take(positions, signature=signature, origin=origin))
                missing = 0
        return Step(pieces, work.size)


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

    ``counts`` are the matches of each tuple in each of several relations, shape ``(tuples, relations)``.
    """
    known, unseen = counts[::2], counts[1::2]
    single = _order(known)
    without = _works(unseen, single)
    least = _WORTH * without.sum()
    if _works(np.sort(unseen, axis=1), tuple(range(counts.shape[1]))).sum() > least:
        return None  # not even if the best order of every tuple were known
    best = None
    for column, values in columns.items():
        bounds = _bounds(values)
        if bounds is None:
            continue
        buckets = _bucketed(values, bounds)
        orders, order_of = _orders(buckets[::2], len(bounds) + 2, known, single)
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


def _works(counts: Array, order: Order) -> Array:
    """Return how many tuples are sent to a join, for each of these; the last makes the same in any order."""
    made = np.cumprod(counts[:, list(order[:-1])], axis=1, dtype=np.float64)
    works: Array = 1 + made.sum(axis=1)
    return works


def _is_certain(saved: Array) -> bool:
    """Tell whether savings of single tuples are no matter of chance."""
    return float(saved.mean()) > _ERRORS * float(saved.std()) / math.sqrt(len(saved))


def _orders(buckets: Array, size: int, counts: Array, single: Order) -> tuple[tuple[Order, ...], Array]:
    """Return the orders, the single best one first, and the number of that of each bucket."""
    wanted: dict[int, Order] = {}
    votes: dict[Order, int] = {}
    for bucket in range(size - 1):  # the last one is for what is unknown
        mine = counts[buckets == bucket]
        if len(mine) >= _LEAST_OF_BUCKET:
            own = _order(mine)
            if _works(mine, own).sum() < _WORTH * _works(mine, single).sum():
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
    ranges = min(BUCKETS, len(values) // (4 * _LEAST_OF_BUCKET))
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
