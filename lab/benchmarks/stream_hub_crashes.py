"""A hub whose driver is killed, while queries come and go; see :mod:`lab.benchmarks.crashing`.

A child runs a hub over the files that are there, one of each stream a micro-batch, and does what is asked of
it through the hub's folder, as ``millrace hub add`` asks. What each query should have is DuckDB's answer to
the query alone over all files, as far as Spark's own offsets say that it stood: they tell which files and
which changes of queries a micro-batch had, and its watermark.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import numpy as np
import pyarrow as pa

import millrace
from lab.benchmarks.crashing import child
from lab.benchmarks.stream_crashes import BATCHES, CASE, streams
from millrace.errors import ExecutionError
from millrace.streams.hub.folder import Folder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from millrace.api.hub import Hub

_MOST_STANDING = 6
_LOOK = 0.05
"""Seconds between two looks of a child at what is asked."""

Rows = Counter[tuple[object, ...]]


@dataclass
class Record:
    """What Spark's checkpoint has said so far; it forgets old micro-batches.

    Attributes:
        watermarks: By micro-batch, microseconds; 0 while there is none.
        batches: The micro-batch of each file.
        comes: Of each query by its name, the micro-batch and whether it asks for the window; and its number.
        goes: The micro-batch that each query went with, by its number.
    """

    watermarks: dict[int, int] = field(default_factory=dict)
    batches: dict[str, int] = field(default_factory=dict)
    comes: dict[str, tuple[int, bool, int]] = field(default_factory=dict)
    goes: dict[int, int] = field(default_factory=dict)

    def read(self, checkpoint: Path) -> None:
        """Take note of what is there now."""
        ends: list[list[int]] = []
        numbers = sorted(int(p.name) for p in (checkpoint / "offsets").glob("*") if p.name.isdigit())
        for number in numbers:
            _, metadata, *offsets = (checkpoint / "offsets" / str(number)).read_text().splitlines()
            self.watermarks[number] = json.loads(metadata)["batchWatermarkMs"] * 1000
            ends.append([-1 if each == "-" else json.loads(each)["logOffset"] for each in offsets])
        for source in (checkpoint / "sources").glob("[0-9]*"):
            for path, log in _files(source):
                batch = next(
                    (n for n, e in zip(numbers, ends, strict=True) if e[int(source.name)] >= log), None
                )
                if batch is not None and path not in self.batches:
                    self.batches[path] = batch
                    if path.endswith(".json"):
                        self._change(Path(path), batch)

    def _change(self, path: Path, batch: int) -> None:
        change = json.loads(path.read_text())
        if change["query"] is None:
            self.goes[change["gone"]] = batch
        else:
            query = change["query"]
            self.comes[query["name"]] = batch, query["since"] == "window", change["number"]


def _files(source: Path) -> Iterator[tuple[str, int]]:
    """Yield the files that a source has listed, with the number of the listing."""
    for log in source.glob("[0-9]*"):
        for line in log.read_text().splitlines()[1:]:
            entry = json.loads(line)
            yield entry["path"].removeprefix("file://"), entry["batchId"]


@dataclass(frozen=True)
class _Asked:
    """A query that was asked for."""

    select: str
    where: str
    streams: tuple[str, ...]
    since: str
    sink: Path


class HubWork:
    """The hub, and what its queries have written; a :class:`lab.benchmarks.crashing.Work`.

    Args:
        spark: Runs the hub to its end.
        folder: Where everything goes.
        seed: Of the queries.
    """

    module = __name__

    def __init__(self, spark: SparkSession, folder: Path, seed: int) -> None:
        self._spark, self.folder = spark, folder
        self._hub = Folder(folder / "hub")
        self.checkpoint = self._hub.spark
        self._random = np.random.default_rng(seed)
        self._asked: dict[str, _Asked] = {}
        self._standing: list[str] = []
        self._record = Record()

    def write(self, batch: int) -> None:
        """Write the files of a micro-batch."""
        CASE.write([self.folder], batch, BATCHES)

    def ask(self) -> None:
        """Ask for a query more; and for one less where there are many, or now and then."""
        if not self._asked:
            _hub(self._spark, self.folder, "stems")  # makes the folder, where requests go
        random = self._random
        if len(self._standing) >= _MOST_STANDING or (self._standing and random.random() < 0.3):
            gone = self._standing.pop(int(random.integers(len(self._standing))))
            self._hub.request({"what": "remove", "name": gone})
        name, chosen = f"q{len(self._asked)}", tuple(CASE.names[: 2 + int(random.random() < 0.7)])
        one, other = (str(each) for each in random.permutation(chosen)[:2])
        low, most = random.random(2).round(3)
        where = f"{one}.v >= {low / 2} AND ({other}.v < {most} OR {one}.v < {other}.v)"
        values = ", ".join(f"{each}.v AS v_{each}, {each}.t AS t_{each}" for each in chosen)
        since = "window" if random.random() < 0.5 else "now"
        asked = _Asked(f"{chosen[0]}.k, {values}", where, chosen, since, self.folder / "queries" / name)
        told = vars(asked) | {"sink": str(asked.sink), "streams": list(chosen)}
        self._hub.request({"what": "add", "name": name, **told})
        self._asked[name] = asked
        self._standing.append(name)

    def is_sound(self) -> bool:
        """Whether each query has written a part of what it should, and nothing twice."""
        self._record.read(self.checkpoint)
        return all(not written - want for _, written, want in self._queries())

    def finish(self, architecture: str) -> tuple[int, bool]:
        """Work through the rest; returns the rows of all queries, and whether these are what is written."""
        hub = _hub(self._spark, self.folder, architecture)
        hub.answer()
        hub.start(availableNow=True).awaitTermination()
        self._record.read(self.checkpoint)
        found = list(self._queries())
        told = {each.name: each.state for each in hub.list()}
        if told != dict.fromkeys(self._standing, "running"):
            raise ExecutionError(f"expected that {self._standing} stand, and the hub lists {told}")
        return sum(want.total() for *_, want in found), all(written == want for _, written, want in found)

    def _queries(self) -> Iterator[tuple[str, Rows, Rows]]:
        """Yield each query with what it has written and what it should."""
        with duckdb.connect() as base:
            base.execute("SET TimeZone = 'UTC'")
            batches = self._record.batches
            files = pa.table({"path": list(batches), "batch": pa.array(batches.values(), pa.int64())})
            base.register("files", files)
            for name in CASE.names:
                base.execute(
                    f"CREATE TABLE {name} AS SELECT * FROM read_parquet('{self.folder / name}/*.parquet', "
                    "filename=true) JOIN files ON path = filename"
                )
            for name, asked in self._asked.items():
                written = _rows(base, f"FROM '{asked.sink}/*.parquet'") if asked.sink.exists() else Counter()
                yield name, written, self._answer(base, name, asked)

    def _answer(self, base: duckdb.DuckDBPyConnection, name: str, asked: _Asked) -> Rows:
        if name not in self._record.comes:
            return Counter()
        first, window, number = self._record.comes[name]
        ends = self._record.goes.get(number, BATCHES)
        since = f"batch >= {first}"
        if window:
            # A row of this join is kept until the watermark is further than the window.
            since += f" OR epoch_us(t) + {CASE.window} * 1000000 >= {self._record.watermarks[first]}"
        sources = ", ".join(
            f"(SELECT * FROM {each} WHERE batch < {ends} AND ({since})) {each}" for each in asked.streams
        )
        condition = replace(CASE, streams=len(asked.streams)).condition
        return _rows(base, f"SELECT {asked.select} FROM {sources} WHERE {condition} AND {asked.where}")


def _rows(base: duckdb.DuckDBPyConnection, text: str) -> Rows:
    return Counter(base.execute(text).fetchall())


def _hub(spark: SparkSession, folder: Path, architecture: str) -> Hub:
    a, b, c = CASE.names
    on = f"{a} CROSS JOIN {b} JOIN {c} ON {CASE.condition}"
    return millrace.hub(
        spark, streams(spark, folder), on, folder / "hub", options={"architecture": architecture}
    )


def _start(spark: SparkSession, folder: Path, architecture: str) -> Callable[[], object]:
    hub = _hub(spark, folder, architecture)
    hub.answer()
    query = hub.start()

    def wait() -> None:
        while not query.awaitTermination(_LOOK):  # type: ignore[arg-type]  # seconds, of any kind
            hub.answer()

    return wait


if __name__ == "__main__":
    child(_start)
