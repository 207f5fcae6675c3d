"""The joins of streams that are measured: made-up feeds, and the same query for Millrace and for Spark.

Spark joins more than two streams in a chain. Its second join takes one event-time column only, so the others
lose their watermark on the way, as Spark's message asks for.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

SCHEMA = "k bigint, t timestamp, v double"
_FIRST = 1_600_000_000_000_000
_SPAN = 33_000_000
_DISORDER = 5_000_000


@dataclass(frozen=True)
class Case:
    """A join of streams on a key, with ranges of event time between all pairs.

    Attributes:
        streams: Their number.
        rows: Of all streams together, in a micro-batch, which spans 33 s of event time.
        drifts: In the second half the second stream finds 8 matches for a row instead of one in 8, and the
            third one in 8 instead of 8.
        window: Seconds that rows of a result may be apart.
    """

    streams: int
    rows: int
    drifts: bool = False
    window: int = 20

    def scaled(self, scale: float) -> Case:
        """Return the same with other sizes of micro-batches: times ``scale``, and some rows at least."""
        return replace(self, rows=max(60, round(self.rows * scale)))

    @property
    def names(self) -> tuple[str, ...]:
        """The streams' names."""
        return tuple(f"feed_{letter}" for letter in "abcdefgh"[: self.streams])

    @property
    def text(self) -> str:
        """The query, in one FROM."""
        a, tables = self.names[0], ", ".join(self.names)
        sums = " + ".join(f"{name}.v" for name in self.names)
        return f"SELECT {a}.k, {a}.t, {sums} AS total FROM {tables} WHERE {self.condition}"

    @property
    def condition(self) -> str:
        """What joins the streams."""
        a, *others = self.names
        keys = " AND ".join(f"{a}.k = {name}.k" for name in others)
        pairs = [(x, y) for n, x in enumerate(self.names) for y in self.names[n + 1 :]]
        return f"{keys} AND {' AND '.join(self._near(f'{x}.t', f'{y}.t') for x, y in pairs)}"

    @property
    def chain(self) -> str:
        """The same as Spark takes it: two-way joins, with one event time each."""
        a, *others = self.names
        text, before = f"SELECT k, t, v AS total FROM {a}", list[str]()
        for name in others:
            near = [
                self._near("l.t", f"{name}.t"),
                *(self._near(f"l.t_{each}", f"{name}.t") for each in before),
            ]
            kept = "".join(f", l.t_{each}" for each in before)
            text = (
                f"SELECT l.k, l.t, l.total + {name}.v AS total{kept}, "
                f"timestamp_micros(unix_micros({name}.t)) AS t_{name} "
                f"FROM ({text}) l JOIN {name} ON l.k = {name}.k AND {' AND '.join(near)}"
            )
            before.append(name)
        return f"SELECT k, t, total FROM ({text})"

    def _near(self, one: str, other: str) -> str:
        length = f"INTERVAL {self.window} SECONDS"
        return f"{other} >= {one} - {length} AND {other} <= {one} + {length}"

    def write(self, folders: Sequence[Path], batch: int, batches: int) -> None:
        """Put a micro-batch's file of each stream into each of the folders.

        Args:
            folders: One for each side.
            batch: Number of the micro-batch.
            batches: How many there will be.
        """
        random = np.random.default_rng([self.streams, self.rows, batch])
        each = self.rows // self.streams
        for number, name in enumerate(self.names):
            keys = random.integers(0, self._keys(number, later=batch >= batches // 2), each)
            times = _FIRST + batch * _SPAN + random.integers(0, _SPAN + _DISORDER, each) - _DISORDER
            columns = {"k": keys, "t": pa.array(times, pa.timestamp("us", "UTC")), "v": random.random(each)}
            for folder in folders:
                path = folder / name / f"{batch:05}.parquet"
                path.parent.mkdir(parents=True, exist_ok=True)
                part = path.with_name(f".{path.name}")
                pq.write_table(pa.table(columns), part)
                os.utime(part, (1e9 + batch, 1e9 + batch))
                part.rename(path)

    def _keys(self, number: int, *, later: bool) -> int:
        """Return how many keys a stream's rows are spread over: as many as rows meet in a window."""
        usual = max(1, round(self.rows / self.streams * 2 * self.window * 1e6 / _SPAN))
        if not self.drifts or number == 0:
            return usual
        return usual * 8 if (number == 1) != later else max(1, usual // 8)


CASES = {
    "three_way": Case(3, 100_000),
    "five_way": Case(5, 100_000),
    "drift": Case(3, 60_000, drifts=True),
    "small_batch": Case(3, 5_000),
    "two_way": Case(2, 100_000),
}
