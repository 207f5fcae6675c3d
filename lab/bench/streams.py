"""Joins of streams: one eddy in each cell against Spark's chain of two-way joins, batch by batch.

All sides run in one session, each with a checkpoint and files of its own, and only one has new files at a
time: so each micro-batch is measured side by side. Spark's joins are tuned: state in RocksDB with changelogs,
rows not tracked, the newest format, as many partitions as cores. What a micro-batch takes is what Spark
reports of it, from trigger to commit. The first ones, in which workers start, are not counted.
"""

from __future__ import annotations

import math
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import millrace
from lab.bench.harness import Bench, Ran, Run, Target, Times
from millrace.engine.eddy.continuous import ContinuousRun
from millrace.engine.plan.expressions import Column, ColumnRef, Compare
from millrace.engine.plan.spec import Equality, JoinSpec, RelationSpec
from millrace.errors import ExecutionError
from millrace.options import Options
from millrace.reports.micro_batch import micro_batch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_TRACKED = "spark.sql.streaming.stateStore.rocksdb.trackTotalNumberOfRows"
"""Whether Spark counts the rows that it keeps, which takes it time."""

SETTINGS = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    _TRACKED: "false",
    "spark.sql.streaming.join.stateFormatVersion": "4",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.sql.streaming.numRecentProgressUpdates": "1000",
    "spark.sql.streaming.pollingDelay": "300",
    "spark.sql.shuffle.partitions": "2",
}
SCHEMA = "k bigint, t timestamp, v double"
SKIPPED = 3
"""The first micro-batches, in which workers start, do not count."""

_FIRST = 1_600_000_000_000_000
_SPAN = 33_000_000
_DISORDER = 5_000_000


@dataclass(frozen=True)
class Feeds:
    """Made-up streams, and a join of them on a key, with ranges of event time between all pairs.

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

    def scaled(self, scale: float) -> Feeds:
        """Return the same with other sizes of micro-batches: times ``scale``, and some rows at least."""
        return replace(self, rows=max(60, round(self.rows * scale)))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"feed_{letter}" for letter in "abcdefghij"[: self.streams])

    @property
    def text(self) -> str:
        a, sums = self.names[0], " + ".join(f"{name}.v" for name in self.names)
        return f"SELECT {a}.k, {a}.t, {sums} AS total FROM {', '.join(self.names)} WHERE {self.condition}"

    @property
    def condition(self) -> str:
        a, *others = self.names
        pairs = [(x, y) for n, x in enumerate(self.names) for y in self.names[n + 1 :]]
        near = [self._near(f"{x}.t", f"{y}.t") for x, y in pairs]
        return " AND ".join([*(f"{a}.k = {name}.k" for name in others), *near])

    @property
    def chain(self) -> str:
        """The same as Spark takes it: two-way joins.

        Spark's second join takes one event-time column only, so the others lose their watermark on the way,
        as Spark's message asks for.
        """
        a, *others = self.names
        text, before = f"SELECT k, t, v AS total FROM {a}", list[str]()
        for name in others:
            near = [self._near(each, f"{name}.t") for each in ("l.t", *(f"l.t_{b}" for b in before))]
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

    def write(self, folder: Path, batch: int, batches: int) -> None:
        """Put the files of a micro-batch, of so many, into a folder: one of each stream."""
        random = np.random.default_rng([self.streams, self.rows, batch])
        for number, name in enumerate(self.names):
            columns = self._columns(random, number, batch, batches)
            for each in columns.keys() & {"t", "expires"}:
                columns[each] = pa.array(columns[each], pa.timestamp("us", "UTC"))
            path = folder / name / f"{batch:05}.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            part = path.with_name(f".{path.name}")
            pq.write_table(pa.table(columns), part)
            os.utime(part, (1e9 + batch, 1e9 + batch))
            part.rename(path)

    def _columns(self, random: np.random.Generator, number: int, batch: int, batches: int) -> dict[str, Any]:
        each = self.rows // self.streams
        keys = random.integers(0, self._keys(number, later=batch >= batches // 2), each)
        return {"k": keys, "t": _times(random, batch, each), "v": random.random(each)}

    def _keys(self, number: int, *, later: bool) -> int:
        """Return how many keys a stream's rows are spread over: as many as rows meet in a window."""
        usual = max(1, round(self.rows / self.streams * 2 * self.window * 1e6 / _SPAN))
        if not self.drifts or number == 0:
            return usual
        return usual * 8 if (number == 1) != later else max(1, usual // 8)

    def read(self, spark: SparkSession, folder: Path) -> dict[str, DataFrame]:
        """Return the streams, one file of each a micro-batch."""
        return {
            name: spark.readStream.schema(SCHEMAS.get(name, SCHEMA))
            .option("maxFilesPerTrigger", 1)
            .parquet(str(folder / name))
            .withWatermark("t", "5 seconds")
            for name in self.names
        }


def _times(random: np.random.Generator, batch: int, rows: int) -> Any:
    """Return event times of a micro-batch, microseconds."""
    return _FIRST + batch * _SPAN + random.integers(0, _SPAN + _DISORDER, rows) - _DISORDER


@dataclass(frozen=True)
class Nexmark(Feeds):
    """A join of Nexmark's (Tucker et al. 2002): of 50 events 1 is a person, 3 are auctions and 46 bids.

    Its queries 3 and 8 join persons with their auctions, 9 and 20 auctions with bids. Here all have ranges of
    event time, without which neither side forgets rows; what stands above the join is left out.
    """

    query: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        return ("person", "auction") if self.query in ("q3", "q8") else ("auction", "bid")

    @property
    def text(self) -> str:
        return NEXMARK[self.query]

    chain = text

    def _columns(self, random: np.random.Generator, number: int, batch: int, batches: int) -> dict[str, Any]:
        rows = {name: max(1, self.rows * share // 50) for name, share in _SHARES.items()}
        name = self.names[number]
        each = rows[name]
        times, ids = _times(random, batch, each), batch * each + np.arange(each)

        def recent(owner: str) -> Any:  # of this micro-batch or the one before
            return random.integers(max(0, batch - 1) * rows[owner], (batch + 1) * rows[owner], each)

        if name == "person":
            states = np.array(["or", "id", "ca", "wa", "az", "wy"])
            return {"id": ids, "t": times, "state": states[random.integers(0, 6, each)]}
        if name == "auction":
            category, expires = 10 + random.integers(0, 5, each), times + random.integers(0, 40_000_000, each)
            return {
                "id": ids, "t": times, "seller": recent("person"), "category": category, "expires": expires
            }  # fmt: skip
        return {"auction": recent("auction"), "t": times, "price": random.integers(1, 10_000, each)}


_SHARES = {"person": 1, "auction": 3, "bid": 46}
SCHEMAS = {
    "person": "id bigint, t timestamp, state string",
    "auction": "id bigint, t timestamp, seller bigint, category bigint, expires timestamp",
    "bid": "auction bigint, t timestamp, price bigint",
}
NEXMARK = {
    "q3": """SELECT a.id AS k, p.id AS seller, p.state FROM auction a JOIN person p ON a.seller = p.id
        WHERE a.category = 10 AND p.state IN ('or', 'id', 'ca')
            AND a.t BETWEEN p.t AND p.t + INTERVAL 1 MINUTE""",
    "q8": """SELECT p.id AS k, a.id AS auction FROM person p JOIN auction a ON a.seller = p.id
        WHERE a.t BETWEEN p.t AND p.t + INTERVAL 10 SECONDS""",
    "q9": """SELECT a.id AS k, b.price, a.category FROM auction a JOIN bid b ON b.auction = a.id
        WHERE b.t BETWEEN a.t AND a.t + INTERVAL 40 SECONDS AND b.t <= a.expires""",
    "q20": """SELECT b.auction AS k, b.price, a.seller FROM bid b JOIN auction a ON b.auction = a.id
        WHERE a.category = 10 AND b.t BETWEEN a.t AND a.t + INTERVAL 1 MINUTE""",
}


Queries = Callable[[Mapping[str, "DataFrame"]], Sequence["DataFrame"]]


class Side:
    """Queries that run over files of their own; a call lets them work through one more micro-batch.

    There will be so many ``batches``; ``queries`` returns the queries' results, from the streams by name.
    """

    def __init__(
        self, spark: SparkSession, feeds: Feeds, batches: int, folder: Path, queries: Queries
    ) -> None:
        self.folder = folder
        self.progress: list[Any] = []
        self._spark, self._feeds, self._batches, self._frames = spark, feeds, batches, queries
        self._batch = 0
        self._queries: Sequence[StreamingQuery] = ()

    def __call__(self) -> Ran:
        """Work through a micro-batch; the first call starts the queries, and works through some more."""
        for _ in range(0 if self._queries else SKIPPED - 1):
            self.work()
        return Ran(None, seconds=self.work())

    def work(self) -> float:
        """Work through a micro-batch; return the seconds that Spark reports, of the slowest query."""
        self._feeds.write(self.folder, self._batch, self._batches)
        self._batch += 1
        if not self._queries:
            self._seen: set[tuple[str, int]] = set()
            self._queries = self.start(self._feeds.read(self._spark, self.folder))
        for query in self._queries:
            query.processAllAvailable()
        return max(map(self._taken, self._queries))

    def start(self, streams: Mapping[str, DataFrame]) -> list[StreamingQuery]:
        return [
            frame.writeStream.format("parquet")
            .option("path", str(self.folder / f"out{number}"))
            .option("checkpointLocation", str(self.folder / f"checkpoint{number}"))
            .start()
            for number, frame in enumerate(self._frames(streams))
        ]

    def _taken(self, query: StreamingQuery) -> float:
        until = time.monotonic() + 60
        while time.monotonic() < until:
            # Not by the rows: filters that Spark pushes into files may leave none.
            new = [
                p
                for p in query.recentProgress
                if (query.id, p.batchId) not in self._seen
                and any(each.startOffset != each.endOffset for each in p.sources)
            ]
            if new:
                self._seen |= {(query.id, p.batchId) for p in new}
                self.progress += new
                return sum(p.durationMs["triggerExecution"] for p in new) / 1000
            time.sleep(0.02)
        raise ExecutionError(f"the stream in {self.folder} reports no progress: {query.exception()}")

    def stop(self) -> None:
        """Stop them; the next start finds their checkpoints."""
        for query in self._queries:
            query.stop()
        self._queries = ()

    def sums(self, number: int = 0, folder: Path | None = None) -> tuple[int, int]:
        """Return how many rows a query has written, and the sum of their keys."""
        table = pq.read_table(folder or self.folder / f"out{number}", columns=["k"])
        return table.num_rows, pc.sum(table["k"]).as_py() or 0

    def figure(self, name: str) -> list[float]:
        """Return a figure of Millrace's in each micro-batch."""
        return [float(getattr(batch, name)) for batch in map(micro_batch, self.progress) if batch]


class _Hub(Side):
    """A hub of many queries."""

    def start(self, streams: Mapping[str, DataFrame]) -> list[StreamingQuery]:
        feeds = self._feeds
        a, b, c = feeds.names
        on = f"{a} CROSS JOIN {b} JOIN {c} ON {feeds.condition}"
        hub = millrace.Session(self._spark, streams).hub(on, self.folder / "checkpoint")
        values = ", ".join(f"{name}.v AS v_{name}" for name in feeds.names)
        for number in range(HUB_QUERIES):
            sink = self.folder / "queries" / str(number)
            hub.add(f"q{number}", f"{a}.k, {a}.t, {values}", _where(feeds, number), sink=sink)
        return [hub.start()]


FEEDS = {
    "three_way": Feeds(3, 100_000),
    "five_way": Feeds(5, 100_000),
    "drift": Feeds(3, 60_000, drifts=True),
    "small_batch": Feeds(3, 5_000),
    "two_way": Feeds(2, 100_000),
    "ten_way": Feeds(10, 20_000),
    **{query: Nexmark(2, 100_000, query=query) for query in NEXMARK},
}
FIXED = {"b first": "feed_b", "c first": "feed_c"}
"""Sides of Millrace whose order does not change, by the stream that all others are joined with first."""

_WINDOW, _FILLING = Feeds(3, 100_000, window=600), 20
"""A window of two million rows, and the micro-batches until it has them."""

HUB_QUERIES, BESIDE = 100, 8
TARGETS = {
    "three_way_ratio": Target(high=0.27),
    "five_way_ratio": Target(high=0.25),
    "drift_ratio": Target(high=0.35),
    "drift_fixed_work": Target(high=0.9),
    "small_batch_ratio": Target(high=0.65),
    "two_way_ratio": Target(high=0.35),
    "state_bytes_ratio": Target(high=0.2),
    "ten_way_kept_ratio": Target(high=0.5),
    "recovery_ratio": Target(high=0.45),
    "hub_100_ratio": Target(high=1.1),
    "hub_8_ratio": Target(high=0.01),
    "same_rows": Target(low=1, high=1),
}


def measure(run: Run) -> None:
    """Run the benchmark."""
    same = []
    for name in run.names:
        case = {"recovery": _recovery, "hub": _hub}.get(name, _joined)
        with own_folder() as folder:
            same.append(case(run, name, Path(folder)))
    run.figures["same_rows"] = float(all(same))
    run.notes.append("a micro-batch from trigger to commit, as Spark says")


def _joined(run: Run, name: str, folder: Path) -> bool:
    """Measure a case against Spark's chain of joins, and where feeds drift, against orders that stay.

    Returns whether both write the same rows, as the other cases do.
    """
    feeds = FEEDS[name].scaled(run.scale)
    queries = {
        "millrace": by_millrace(run, feeds),
        "spark": _by_spark(run, feeds),
        "millrace again": by_millrace(run, feeds),
    }
    for label, first in FIXED.items() if feeds.drifts else ():
        others = [each for each in feeds.names if each != first]
        queries[label] = by_millrace(run, feeds, {"policy": "fixed", "order": (first, *others)})
    batches = SKIPPED + run.rounds
    run.spark.conf.set(_TRACKED, str(name == "ten_way").lower())
    sides = {label: Side(run.spark, feeds, batches, folder / label, each) for label, each in queries.items()}
    times = _raced(run, name, sides)
    run.figures |= {
        f"{name}_ratio": times.ratio("millrace", "spark"),
        f"{name}_aa": times.ratio("millrace again", "millrace"),
    }
    if feeds.drifts:
        run.figures["drift_fixed_ratio"] = max(times.ratio("millrace", label) for label in FIXED)
        work = {label: sum(sides[label].figure("worked")[SKIPPED:]) for label in ("millrace", *FIXED)}
        run.figures["drift_fixed_work"] = work["millrace"] / min(work[label] for label in FIXED)
    state = {"three_way": "state_bytes_ratio"} | {query: f"{query}_state_ratio" for query in NEXMARK}
    if name in state:
        run.figures[state[name]] = _state_bytes(sides["millrace"]) / _state_bytes(sides["spark"])
    if name == "ten_way":
        _count_tuples(run, feeds, sides["millrace"], sides["spark"])
    return sides["millrace"].sums() == sides["spark"].sums()


def _count_tuples(run: Run, feeds: Feeds, ours: Side, chain: Side) -> None:
    """Report the tuples that both keep at the end, and those that they made on the way, results included.

    A join of Spark's chain stores both of its inputs: what all joins store and no stream sent was made by the
    joins below. Cells do not say what they found, so the eddy's tuples are those of one cell here. It orders
    them by what it measures, so their number differs between runs.
    """
    operators = [each for progress in chain.progress for each in progress.stateOperators]
    sent, results = sum(progress.numInputRows for progress in chain.progress), chain.sums()[0]
    kept, made = ours.figure("held")[-1], _made(feeds, ours.folder)
    spark_kept = sum(each.numRowsTotal for each in chain.progress[-1].stateOperators)
    spark_made = sum(each.numRowsUpdated for each in operators) - sent + results
    run.figures |= {
        "ten_way_kept": kept,
        "ten_way_kept_ratio": kept / spark_kept,
        "ten_way_made": float(made),
        "ten_way_made_ratio": made / spark_made,
    }


def _made(feeds: Feeds, folder: Path) -> int:
    """Return how many tuples, results included, an eddy makes of files, one of each stream at a time."""
    window, times = feeds.window * 1_000_000, pa.int64()
    schema = pa.schema({"k": pa.int64(), "t": times, "until": times})
    a, *others = feeds.names
    near = [
        Compare("<=", Column(ColumnRef(x, "t")), Column(ColumnRef(y, "until")), times)
        for x, y in permutations(feeds.names, 2)
    ]
    equalities = [Equality(ColumnRef(a, "k"), ColumnRef(name, "k"), pa.int64()) for name in others]
    relations = tuple(RelationSpec(name, schema) for name in feeds.names)
    spec = JoinSpec(relations, tuple(equalities), tuple(near), count_only=True)
    eddy = ContinuousRun(spec, feeds.names, {}, Options(architecture="stems"))  # as joins of streams have
    came: dict[str, list[Any]] = {name: [] for name in feeds.names}
    for files in zip(*(sorted((folder / name).iterdir()) for name in feeds.names), strict=True):
        arrived = {}
        for name, file in zip(feeds.names, files, strict=True):
            rows = pq.read_table(file).sort_by("t")
            t = rows["t"].cast(times).to_numpy()
            came[name].append(t)
            arrived[name] = pa.record_batch([rows["k"].to_numpy(), t, t + window], schema=schema)
        for _ in eddy.extend(arrived):
            pass
        over = min(t[-1][-1] for t in came.values()) - _DISORDER - window
        # In order of arrival, as a cell evicts.
        eddy.evict({name: int((np.concatenate(t) >= over).argmax()) for name, t in came.items()})
    return sum(each.tuples_out for each in eddy.figures().modules if each.action in ("probe", "join"))


def _recovery(run: Run, name: str, folder: Path) -> bool:
    """Measure the first micro-batch after a restart, with a window of two million rows."""
    feeds = _WINDOW.scaled(run.scale)
    queries = {"millrace": by_millrace(run, feeds), "spark": _by_spark(run, feeds)}
    sides = {label: Side(run.spark, feeds, _FILLING, folder / label, each) for label, each in queries.items()}
    seconds: dict[str, list[float]] = {label: [] for label in sides}
    for label, side in sides.items():
        try:
            for batch in range(_FILLING):
                run.says(f"{name}: {label}, micro-batch {batch + 1} of {_FILLING}")
                seconds[label].append(side.work())
        finally:
            side.stop()
        seconds[label].append(side.work())
        side.stop()
    run.figures |= {
        "recovery_ratio": seconds["millrace"][-1] / seconds["spark"][-1],
        "recovery_rows": sides["millrace"].figure("held")[_FILLING - 1],
    }
    return sides["millrace"].sums() == sides["spark"].sums()


def _hub(run: Run, name: str, folder: Path) -> bool:
    """Measure many queries in a hub: against one alone, and against some side by side in Spark."""
    feeds, batches = FEEDS["three_way"].scaled(run.scale), SKIPPED + run.rounds

    def beside(streams: Mapping[str, DataFrame]) -> list[DataFrame]:
        queries = []
        for number in range(BESIDE):
            for each, frame in streams.items():
                wanted = _conditions(feeds, number).get(each, "true")
                frame.where(wanted).createOrReplaceTempView(each)
            queries.append(run.spark.sql(feeds.chain))
        return queries

    alone = by_millrace(run, feeds, text=f"{feeds.text} AND {_where(feeds, 0)}")
    many, some, one, again = f"hub of {HUB_QUERIES}", f"{BESIDE} in Spark", "one alone", "one again"
    sides: dict[str, Side] = {many: _Hub(run.spark, feeds, batches, folder / "hub", lambda _: ())}
    for label, queries in ((some, beside), (one, alone), (again, alone)):
        sides[label] = Side(run.spark, feeds, batches, folder / label, queries)
    times = _raced(run, name, sides)
    run.figures |= {
        "hub_100_ratio": times.ratio(many, one),
        "hub_8_ratio": times.ratio(many, some) / HUB_QUERIES * BESIDE,
        "hub_aa": times.ratio(again, one),
    }
    written = [sides[many].sums(folder=folder / "hub" / "queries" / str(n)) for n in range(BESIDE)]
    return written[0] == sides[one].sums() and written == [sides[some].sums(n) for n in range(BESIDE)]


def _raced(run: Run, name: str, sides: Mapping[str, Side]) -> Times:
    try:
        times = run.race(name, sides)
    finally:
        for side in sides.values():
            side.stop()
    run.rows += times.rows()
    return times


def by_millrace(run: Run, feeds: Feeds, options: Any = None, text: str = "") -> Queries:
    """Return the queries of a side that Millrace joins."""
    query = text or feeds.text
    return lambda streams: [millrace.sql(query, spark=run.spark, tables=streams, options=options)]


def _by_spark(run: Run, feeds: Feeds) -> Queries:
    def queries(streams: Mapping[str, DataFrame]) -> list[DataFrame]:
        for name, frame in streams.items():
            frame.createOrReplaceTempView(name)
        return [run.spark.sql(feeds.chain)]

    return queries


def _conditions(feeds: Feeds, number: int) -> dict[str, str]:
    """Return what a hub's query asks of streams, beside the join: a tenth of one, and some of another."""
    a, b, c = feeds.names
    low, most = number % 90 / 100, 0.3 + number % 7 / 10
    one, other = (a, b) if number % 2 else (b, c)
    return {one: f"v >= {low} AND v < {low + 0.1}", other: f"v <= {most}"}


def _where(feeds: Feeds, number: int) -> str:
    return " AND ".join(
        f"({text.replace('v ', f'{name}.v ')})" for name, text in _conditions(feeds, number).items()
    )


def _state_bytes(side: Side) -> int:
    files = (side.folder / "checkpoint0" / "state").rglob("*")
    return sum(each.stat().st_size for each in files if each.is_file()) or math.nan  # type: ignore[return-value]


def own_folder() -> tempfile.TemporaryDirectory[str]:
    """Return a folder for the body of a ``with``."""
    return tempfile.TemporaryDirectory(prefix="millrace-stream-", ignore_cleanup_errors=True)


CASES = (*FEEDS, "recovery", "hub")
BENCH = Bench(measure, CASES, TARGETS, quick=("three_way",), rounds=12, master="local[2]", conf=SETTINGS)
