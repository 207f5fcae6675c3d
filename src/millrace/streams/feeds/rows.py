"""The rows of a made-up stream: each is computed from the seed and its number, whoever asks and whenever.

Row ``n`` of a stream arrives ``n / rate`` seconds after the feed's first moment, and its event time is that
moment less a delay of at most ``disorder``. A payment or a shipment is of an order that arrived before it,
within ``within`` seconds; or, for a share that may change at a moment, of an order that nobody placed. So a
join can lose its selective partner, and keys can become skewed, at a known row.

Random numbers are SplitMix64's finaliser of (seed, stream, column, row): no state, so that partitions,
restarts and replays agree (Steele, Lea & Flood 2014, "Fast splittable pseudorandom number generators").
"""

from __future__ import annotations

import datetime as dt
import math
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import pyarrow as pa

from millrace.errors import OptionError, near

Array = np.ndarray[Any, np.dtype[Any]]

STREAMS = ("orders", "payments", "shipments")
_TIME = ("t", pa.timestamp("us", "UTC"))
SCHEMAS: Mapping[str, pa.Schema] = {
    "orders": pa.schema([("order_id", pa.int64()), _TIME, ("customer", pa.int64()), ("total", pa.float64())]),
    "payments": pa.schema([("order_id", pa.int64()), _TIME, ("method", pa.string()), ("paid", pa.float64())]),
    "shipments": pa.schema([("order_id", pa.int64()), _TIME, ("carrier", pa.string()), ("kg", pa.float64())]),
}
_METHODS = pa.array(["card", "cash", "invoice", "wallet"])
_CARRIERS = pa.array(["air", "bike", "rail", "road", "ship"])
_MATCH = {"orders": (1.0, 1.0), "payments": (0.9, 0.2), "shipments": (0.2, 0.9)}
_CUSTOMERS = 10_000
_LATE_BY = 10
"""A late row is up to so many times the disorder, and as many seconds more, older than it may be."""


@dataclass(frozen=True)
class Feed:
    """A made-up stream.

    Attributes:
        stream: ``"orders"``, ``"payments"`` or ``"shipments"``.
        rate: Rows a second.
        disorder: Seconds by which rows may be out of order: by a watermark of that delay none is late.
        within: Seconds between an order and what is done about it, before disorder; see :attr:`reach`.
        match: Share of rows that are of an order; by default 0.9 of payments and 0.2 of shipments.
        match_after: The same after the drift; by default the two change hands.
        skew: Share of rows that are of big orders: of each second, one order is big.
        skew_after: The same after the drift; None for no change.
        drift_at: Seconds from the beginning at which shares change; None for never.
        late: Share of rows that come later than the disorder allows.
        start: Event time of the beginning, ISO 8601; UTC if it does not say.
        seed: Of all that is random.

    Raises:
        OptionError: A setting is out of range.
    """

    stream: str
    rate: float = 1000.0
    disorder: float = 2.0
    within: float = 20.0
    match: float | None = None
    match_after: float | None = None
    skew: float = 0.0
    skew_after: float | None = None
    drift_at: float | None = None
    late: float = 0.0
    start: str = "2025-01-01T00:00:00+00:00"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.stream not in STREAMS:
            raise OptionError(f"no stream {self.stream!r} in the feed: {near(self.stream, STREAMS)}")
        if not 0 < self.rate < math.inf:
            raise OptionError(f"option rate is {self.rate:g}: expected rows a second, more than 0")
        for name in ("disorder", "within", "drift_at"):
            if (value := getattr(self, name)) is not None and not 0 <= value < math.inf:
                raise OptionError(f"option {name} is {value:g}: expected seconds, 0 or more")
        for name in ("match", "match_after", "skew", "skew_after", "late"):
            if (value := getattr(self, name)) is not None and not 0 <= value <= 1:
                raise OptionError(f"option {name} is {value:g}: expected a share, from 0 to 1")
        self._begin()

    @property
    def schema(self) -> pa.Schema:
        """Its columns; ``t`` is the event time."""
        return SCHEMAS[self.stream]

    @property
    def reach(self) -> float:
        """Seconds by which a payment or shipment is at most later than its order, by their event times.

        It is never earlier.
        """
        return self.within + 2 * self.disorder + 1 + 2 / self.rate

    def rows(self, first: int, last: int) -> pa.RecordBatch:
        """Return rows by number, ``first`` included and ``last`` not."""
        numbers: Array = np.arange(first, last, dtype=np.int64)
        order = numbers if self.stream == "orders" else self._order(numbers)
        columns = [pa.array(order), pa.array(self._times(numbers), _TIME[1]), *self._payload(numbers)]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _times(self, numbers: Array) -> Array:
        """Return event times, microseconds since 1970."""
        delay = self._uniform("delay", numbers) * self.disorder
        if self.late:
            by = self.disorder + (1 + self._uniform("later", numbers)) * _LATE_BY / 2 * (self.disorder + 1)
            delay = np.where(self._uniform("late", numbers) < self.late, by, delay)
        begin = int(self._begin().timestamp() * 1_000_000)
        times: Array = begin + ((numbers / self.rate - delay) * 1_000_000).astype(np.int64)
        return times

    def _order(self, numbers: Array) -> Array:
        """Return the orders that payments or shipments are of; a negative number is nobody's."""
        seconds = numbers / self.rate
        back = math.ceil(self.disorder * self.rate) + 1  # so that its event time is before this one's
        order = numbers - back - (self._uniform("order", numbers) * self.within * self.rate).astype(np.int64)
        second = max(1, int(self.rate))
        skewed = self._uniform("skew", numbers) < self._share(self.skew, self.skew_after, seconds)
        order = np.where(skewed, order - order % second, order)
        before, after = _MATCH[self.stream]
        match = self._share(
            before if self.match is None else self.match,
            after if self.match is self.match_after is None else self.match_after,
            seconds,
        )
        unknown = (self._uniform("match", numbers) >= match) | (order < 0)
        orders: Array = np.where(unknown, -1 - numbers, order)
        return orders

    def _payload(self, numbers: Array) -> list[pa.Array]:
        amount = self._uniform("amount", numbers)
        match self.stream:
            case "orders":
                customer = (self._uniform("customer", numbers) ** 2 * _CUSTOMERS).astype(np.int64)
                return [pa.array(customer), pa.array(np.round(5 + 495 * amount, 2))]
            case "payments":
                return [self._word(_METHODS, numbers), pa.array(np.round(5 + 495 * amount, 2))]
        return [self._word(_CARRIERS, numbers), pa.array(np.round(0.1 + 20 * amount, 1))]

    def _word(self, words: pa.Array, numbers: Array) -> pa.Array:
        return words.take(pa.array((self._uniform("word", numbers) * len(words)).astype(np.int64)))

    def _share(self, before: float, after: float | None, seconds: Array) -> Array | float:
        """Return a share that may change at the drift."""
        if self.drift_at is None or after is None:
            return before
        return np.where(seconds < self.drift_at, before, after)

    def _uniform(self, column: str, numbers: Array) -> Array:
        """Return numbers from 0 to 1, 1 excluded, for a column of rows."""
        stream = np.uint64(zlib.crc32(f"{self.stream}.{column}".encode()))
        key = _mixed(np.array([self.seed & 0xFFFFFFFFFFFFFFFF], np.uint64)) ^ (stream << np.uint64(32))
        mixed = _mixed(numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + _mixed(key))
        uniform: Array = (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53
        return uniform

    def _begin(self) -> dt.datetime:
        try:
            begin = dt.datetime.fromisoformat(self.start)
        except ValueError:
            raise OptionError(
                f"option start is {self.start!r}: expected a time such as '2025-01-01T00:00:00+00:00'"
            ) from None
        return begin if begin.tzinfo else begin.replace(tzinfo=dt.UTC)


def _mixed(values: Array) -> Array:
    """Return SplitMix64's finaliser of 64-bit numbers."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: Array = values ^ (values >> np.uint64(31))
    return mixed


def parsed(given: Mapping[str, str], known: type, parsers: Mapping[str, Callable[[str], Any]]) -> Any:
    """Return settings made of text, as options of data sources are.

    They are given by name, whose case does not count; ``known`` is their dataclass. Parsers make values of
    text, by the name of a field; others stay text.

    Raises:
        OptionError: A name is unknown, or a value is not what is expected.
    """
    names = [each.name for each in fields(known)]
    values = {}
    for name, text in given.items():
        if name.lower() not in names:
            raise OptionError(f"the feed has no option {name!r}: {near(name, names)}")
        parse = parsers.get(name.lower(), str)
        try:
            values[name.lower()] = parse(text)
        except ValueError:
            raise OptionError(f"option {name} is {text!r}: expected a number") from None
    return known(**values)
