"""SQL queries with Millrace and with Spark, in one session on the same files.

Each side plans and runs the query anew and collects its rows. *tpch* are the 22 queries of TPC-H, *frames*
the same with DataFrames as inputs as well. *shapes* are queries of many small blocks, and of what stands
beside joins, where an engine that takes only joins may lose to one that sees the whole query. *growth* is
TPC-H at one scale and at ten times that. *routing* are the queries with joins again, against themselves in
orders that do not change: what routing costs over the best of these (the measure of POLAR, Justen et al.,
VLDB 2024, section 6). With ``--peer sc://HOST:PORT`` a Spark Connect server of any kind
answers the same texts over the same files; it is read by path, so it has to run on this machine.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException

import millrace
from lab.bench.harness import Bench, Ran, Run, Target, Times, geomean
from lab.bench.tpch_data import ensure, query_texts, shape_texts
from lab.bench.trips import Trips, count_trips
from lab.joins import draw_orders
from millrace.cli.demo import difference
from millrace.errors import ExecutionError, first_line
from millrace.options import Options
from millrace.reports.run_report import Totals

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from millrace.api.query import Query as Planned

MILLRACE, FRAMES, SPARK, AGAIN = "millrace", "millrace on DataFrames", "spark", "spark again"
PEER = "peer"
ORDERS = 6
"""Orders that are drawn, beside those that most tuples took."""
TPCH = tuple(name for name in query_texts() if name != "stairs")
SHAPES = tuple(shape_texts())
TEN_TIMES = 10
GROWING = ("q03", "q05", "q09", "q18", "q21")
"""Joins of several large relations, with aggregates, semi- and anti-joins above or beside them."""


@dataclass
class Query:
    """A query and what was measured of it.

    Attributes:
        blocks: How many joins Millrace took.
        unequal: How its rows differ from Spark's, None when they are equal.
        peer_fails: How the peer's rows differ, or its error; None when they are equal.
        planning: Seconds of planning beyond Spark's own analysis: first, and each time after.
        trips: What planning asks of Spark: first, and each time after.
        totals: What the eddies did.
        peak_bytes: The largest worker.
    """

    name: str
    text: str
    blocks: int = 0
    unequal: str | None = None
    peer_fails: str | None = None
    planning: list[float] = field(default_factory=list)
    trips: list[Trips] = field(default_factory=list)
    totals: Totals = field(default_factory=Totals)
    peak_bytes: int = 0
    times: Times = field(default_factory=lambda: Times("", {}, {}))

    @property
    def spark_seconds(self) -> float:
        """Spark's median; both of its sides count."""
        return self.times.median(*(side for side in (SPARK, AGAIN) if side in self.times.seconds))

    def ratio(self, side: str = MILLRACE) -> float:
        return self.times.median(side) / self.spark_seconds

    def row(self) -> dict[str, Any]:
        row = {
            "query": self.name,
            "blocks": self.blocks,
            "millrace_s": self.times.median(MILLRACE),
            "spark_s": self.spark_seconds,
            "ratio": self.ratio(),
            "control": self.times.control(SPARK),
            "planning_ms": 1000 * statistics.median(self.planning[1:]),
            "trips": self.trips[0].calls,
            "equal": self.unequal is None,
            "intermediate_tuples": self.totals.intermediate_tuples,
        }
        row |= {"frames_ratio": self.ratio(FRAMES)} if FRAMES in self.times.seconds else {}
        return row | ({"peer_ratio": self.ratio(PEER)} if PEER in self.times.seconds else {})


def measure(run: Run) -> None:
    """Run the benchmark."""
    whole = {"tpch", "frames", "growth", "routing"} & {*run.names}
    queries = [name for name in run.names if name in (*TPCH, "stairs")]
    if "growth" in whole:
        _growth(run, queries or GROWING)
    elif "routing" in whole:
        _routing(run, queries or TPCH)
    elif queries or whole:
        _compare(run, queries or TPCH, "", frames="frames" in whole)
    if shapes := SHAPES if "shapes" in run.names else [name for name in run.names if name in SHAPES]:
        _compare(run, shapes, "shapes_", frames=False)


def _compare(run: Run, names: Sequence[str], prefix: str, *, frames: bool) -> None:
    """Measure queries at one scale; ratios are over those with a block."""
    queries = _measured(run, run.scale, names, frames=frames)
    taken = [query for query in queries if query.blocks]
    first = [query.trips[0] for query in queries]
    figures = {
        f"{prefix}geomean_ratio": geomean([query.ratio() for query in taken]),
        f"{prefix}worst_ratio": max((query.ratio() for query in taken), default=float("nan")),
        f"{prefix or 'queries_'}equal": sum(query.unequal is None for query in queries),
        "queries_taken": len(taken),
        "planning_first_ms": 1000 * statistics.median([query.planning[0] for query in queries]),
        "planning_again_ms": 1000 * statistics.median([statistics.median(q.planning[1:]) for q in queries]),
        **{
            f"planning_{s}_ms": 1000 * statistics.median(t.seconds[s] for t in first)
            for s in first[0].seconds
        },
        "planning_trips": statistics.median([trips.calls for trips in first]),
        "planning_frames": statistics.median([trips.frames for trips in first]),
        "planning_again_trips": statistics.median([query.trips[-1].calls for query in queries]),
        "peak_worker_mb": max(query.peak_bytes for query in queries) / 1e6,
        "intermediate_tuples": sum(query.totals.intermediate_tuples for query in queries),
        "tuples_routed": sum(query.totals.tuples_routed for query in queries),
        "blocks_sent": sum(query.totals.blocks_exchanged for query in queries),
        "bytes_sent": sum(query.totals.bytes_exchanged for query in queries),
    }
    if frames:
        figures["frames_geomean_ratio"] = geomean([query.ratio(FRAMES) for query in taken])
    if peers := [query.ratio(PEER) for query in taken if PEER in query.times.seconds]:
        figures[f"{prefix}peer_geomean_ratio"] = geomean(peers)
        figures[f"{prefix}peer_worst_ratio"] = max(peers)
        figures[f"{prefix}peer_equal"] = sum(query.peer_fails is None for query in queries)
    # What both kinds of queries have is told apart by a name in front.
    run.figures |= {f"shapes_{name}" if name in run.figures else name: x for name, x in figures.items()}
    run.targets[f"{prefix or 'queries_'}equal"] = Target(len(queries), len(queries))
    run.rows += [query.row() for query in queries]
    if untaken := [query.name for query in queries if not query.blocks]:
        run.notes.append(f"no join taken in {', '.join(untaken)}: left to Spark, not in the geometric mean")


def _growth(run: Run, names: Sequence[str]) -> None:
    small = _measured(run, run.scale, names)
    large = _measured(run, TEN_TIMES * run.scale, names, control="")
    rows: list[dict[str, Any]] = []
    for one, ten in zip(small, large, strict=True):
        mine = ten.times.median(MILLRACE) / one.times.median(MILLRACE)
        theirs = ten.spark_seconds / one.spark_seconds
        rows.append(
            {
                "query": one.name,
                "growth_ratio": mine / theirs,
                "growth": mine,
                "spark_growth": theirs,
                "ratio": one.ratio(),
                "larger_ratio": ten.ratio(),
                "worker_mb": one.peak_bytes / 1e6,
                "larger_mb": ten.peak_bytes / 1e6,
                "equal": one.unequal is None and ten.unequal is None,
            }
        )
    smaller, larger = (max(row[name] for row in rows) for name in ("worker_mb", "larger_mb"))
    run.figures |= {
        "growth_ratio": geomean([row["growth_ratio"] for row in rows]),
        "growth_worst_ratio": max(row["growth_ratio"] for row in rows),
        "memory_ratio": larger / smaller if smaller else 0.0,  # small queries may all be left to Spark
        "larger_ratio": geomean([row["larger_ratio"] for row in rows]),
        "queries_equal": sum(row["equal"] for row in rows),
    }
    run.targets["queries_equal"] = Target(len(rows), len(rows))
    run.rows += rows


def _routing(run: Run, names: Sequence[str]) -> None:
    """Measure what routing costs. The least of several medians is a low guess of the best order's time."""
    tables, texts = ensure(run.scale), query_texts()
    for name in names:

        def rows_of(options: Options, query: str = texts[name]) -> Any:
            return millrace.sql(query, spark=run.spark, tables=tables, options=options).collect()

        planned = millrace.query(texts[name], spark=run.spark, tables=tables)
        if not planned.blocks:
            continue
        rows = planned.df.collect()
        sides: dict[str, Callable[[], Any]] = {MILLRACE: partial(rows_of, Options())}
        for number, order in enumerate(_orders(planned)):
            sides[f"order {number}"] = partial(rows_of, Options(policy="fixed", order=order))

        def check(side: str, found: Any, wanted: Any, name: str = name) -> None:
            if unequal := difference(found, wanted):
                raise ExecutionError(f"{name}, {side}: {unequal}")

        times = run.race(name, sides, control=MILLRACE, answer=rows, check=check)
        fixed = [times.median(side) for side in sides if side != MILLRACE]
        mine = times.median(MILLRACE)
        run.rows.append(
            {
                "query": name,
                "routing_ratio": mine / min(fixed),
                "millrace_s": mine,
                "best_s": min(fixed),
                "worst_s": max(fixed),
                "orders": len(fixed),
                "control": times.control(MILLRACE),
            }
        )
    ratios = [row["routing_ratio"] for row in run.rows]
    run.figures |= {"routing_ratio": geomean(ratios), "routing_worst_ratio": max(ratios, default=0.0)}


def _orders(planned: Planned) -> list[tuple[str, ...]]:
    """Return orders for all blocks of a query: the most travelled ones, and some that are drawn."""
    try:
        shares = planned.report().orders()
    except ExecutionError:  # Spark saw that no block need run
        shares = []
    main, drawn = list[str](), list[list[tuple[str, ...]]]()
    for block in planned.blocks:
        main += next((share.order.split(" → ") for share in shares if share.block == block.name), [])
        edges = [frozenset(e.relations) for e in block.join.equalities]
        drawn.append(draw_orders(block.join.aliases, edges, ORDERS, block.name))
    most = max(map(len, drawn))
    others = (sum((each[i % len(each)] for each in drawn), ()) for i in range(most))
    return list(dict.fromkeys([tuple(main), *others]))


def _measured(
    run: Run, scale: float, names: Sequence[str], *, frames: bool = False, control: str = SPARK
) -> list[Query]:
    tables, texts, queries = ensure(scale), query_texts() | shape_texts(), []
    read = {name: run.spark.read.parquet(path) for name, path in tables.items()}
    for name, frame in read.items():
        frame.createOrReplaceTempView(name)
    peer = _peer(run, tables)
    for name in names:
        queries.append(query := Query(name, texts[name]))
        _analysis(run, query.text)  # of a text that is new to it, Spark's analysis takes longer too

        answers = dict[str, Any]()

        def check(side: str, rows: Any, _: Any, query: Query = query, found: Any = answers) -> None:
            found[side] = rows
            for ours in {MILLRACE, FRAMES} & found.keys():
                if SPARK in found and query.unequal is None:
                    query.unequal = difference(found[ours], found[SPARK])
            if {PEER, SPARK} <= found.keys() and query.peer_fails is None:
                query.peer_fails = difference(found[PEER], found[SPARK])

        sides = {MILLRACE: _by_millrace(run, query, tables), SPARK: _by_spark(run.spark, query)}
        sides |= {FRAMES: _by_millrace(run, query, read)} if frames else {}
        sides |= {PEER: _by_spark(peer, query)} if peer is not None and _answers(peer, query) else {}
        query.times = run.race(name, sides, control=control, check=check)
        run.notes += [f"{name} differs: {query.unequal}"] if query.unequal else []
        run.notes += [f"{name}, the peer: {query.peer_fails}"] if query.peer_fails else []
    return queries


def _by_spark(spark: SparkSession, query: Query) -> Callable[[], Any]:
    return lambda: spark.sql(query.text).collect()


def _peer(run: Run, tables: Mapping[str, str]) -> Any:
    """Return a session of the peer that knows the tables; None without a peer."""
    if run.peer is None:
        return None
    from pyspark.sql.connect.session import SparkSession as RemoteSession  # beside a classic session

    session: Any = RemoteSession.builder.remote(run.peer).create()
    for name, path in tables.items():
        session.read.parquet(path).createOrReplaceTempView(name)
    return session


def _answers(peer: SparkSession, query: Query) -> bool:
    """Tell whether the peer can answer a query, and note its error where it cannot."""
    try:
        _by_spark(peer, query)()
    except PySparkException as error:
        query.peer_fails = first_line(error)
    return query.peer_fails is None


def _by_millrace(run: Run, query: Query, tables: Mapping[str, Any]) -> Callable[[], Ran]:
    from_files = all(isinstance(table, str) for table in tables.values())

    def call() -> Ran:
        analysis = _analysis(run, query.text)
        gc.collect()
        start = time.perf_counter()
        with count_trips() as trips:
            planned = millrace.query(query.text, spark=run.spark, tables=tables)
        planning = time.perf_counter() - start
        rows = planned.df.collect()
        seconds = time.perf_counter() - start
        if from_files:
            query.planning.append(planning - analysis)
            query.trips.append(trips)
            query.blocks, query.totals = len(planned.blocks), _totals(planned)
            query.peak_bytes = max(query.peak_bytes, query.totals.peak_bytes)
        return Ran(rows, seconds=seconds)

    return call


def _analysis(run: Run, text: str) -> float:
    """Return how long Spark needs to read and analyse a query, in seconds."""
    start = time.perf_counter()
    run.spark.sql(text).schema  # noqa: B018  # Spark Connect analyses only now
    return time.perf_counter() - start


def _totals(planned: Planned) -> Totals:
    """Return what the eddies did; nothing where Spark saw that a block need not run at all."""
    try:
        return planned.report().totals
    except ExecutionError:
        return Totals()


TARGETS = {
    "geomean_ratio": Target(high=0.45),
    "worst_ratio": Target(high=1.0),
    "frames_geomean_ratio": Target(high=0.9),
    "planning_first_ms": Target(high=40),
    "planning_again_ms": Target(high=5),
    "planning_trips": Target(high=55),
    "planning_frames": Target(high=5),
    "peak_worker_mb": Target(high=1000),
    "shapes_geomean_ratio": Target(high=0.7),
    "shapes_worst_ratio": Target(high=1.15),
    "growth_ratio": Target(high=1.0),
    "memory_ratio": Target(high=2.0),
    "routing_ratio": Target(high=1.02),
    "routing_worst_ratio": Target(high=1.07),
}
BENCH = Bench(
    measure,
    ("tpch", "frames", "shapes", "growth", "routing", *TPCH, "stairs", *SHAPES),
    TARGETS,
    usual=("tpch", "shapes"),
    quick=("q03", "q05", "q10", "cte_read_three_times", "exists_beside_joins", "tiny_tables"),
)
