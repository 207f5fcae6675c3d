"""Join state: static plans, EddyJoins, SteMs and STAIRs on the same files and the same order of arrival.

Deshpande & Hellerstein 2004, section 5. What each makes, probes and holds is counted, and timed with the
reading of the files, one thread each; where there is something to win in a plain query, Spark runs beside.
Every result is compared with DuckDB's. The A/A control is the best static plan a second time in each round.

Files are made once with fixed seeds and kept in a cache folder, in the order in which tuples arrive.
"""

from __future__ import annotations

import datetime as dt
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import millrace
from lab.bench import budget, moving
from lab.bench.harness import Bench, Ran, Run, Target, Times
from lab.bench.tpch_data import ensure
from lab.joins import DRIFT, block, drift, duckdb_counts, ends, run_block, sql
from millrace.cli.demo import cache_folder
from millrace.engine.access.schedule import Schedule
from millrace.engine.figures import CellFigures
from millrace.engine.plan.spec import JoinSpec
from millrace.engine.stairs import DEFAULT_MIGRATION
from millrace.engine.stairs.choice import architecture_of
from millrace.options import ALGORITHMS, ARCHITECTURES, MIGRATIONS, Options

BEST, AGAIN, WORST = "static best", "static best again", "static worst"
JOINS, STEMS, STAIRS, DUCKDB = "joins", "stems", "stairs", "duckdb"
SPARK, ON_SPARK = "spark", "on spark"
MIGRATE, BUDGET = "migrate", "budget"
"""Cases that are no race of whole joins."""

_LEAST_CHUNK = 100
Order = tuple[str, ...]
Tables = Mapping[str, pa.Table]


@dataclass(frozen=True)
class Join:
    """A join that is counted.

    Attributes:
        relations: The columns that are joined, by alias.
        files: Returns the paths of the tables by alias, for a scale.
        chunk: Rows of a table that arrive at a time.
        every: Tuples after which routing is decided anew.
        conditions: ``(column, "=" or ">", value)`` by alias, applied to what has arrived.
        by_size: Tables arrive at rates in proportion to their sizes, else all at the same rate.
        on_spark: Also run by Spark, and by Millrace on Spark.
        policies: Also run with the migration policies that are not the default.
        repeats: Runs in each round, more than one where a run is short.
        rounds: Take part in no more than so many rounds, where a run is long and for information only.
    """

    about: str
    relations: Mapping[str, tuple[str, ...]]
    joins: tuple[str, ...]
    files: Callable[[float], Mapping[str, str]]
    chunk: int = 16_384
    every: int = 16_384
    conditions: Mapping[str, tuple[tuple[str, str, Any], ...]] = field(default_factory=dict)
    by_size: bool = False
    on_spark: bool = False
    policies: bool = False
    repeats: int = 1
    rounds: int = 1_000
    paths: Mapping[str, str] = field(default_factory=dict)

    def at(self, scale: float) -> Join:
        """Return the join with its files, in chunks as small as smaller tables need to change as often."""
        chunk, every = (max(_LEAST_CHUNK, round(n * min(1.0, scale))) for n in (self.chunk, self.every))
        files = self.files(scale)
        paths = {alias: files[alias] for alias in self.relations}
        return replace(self, chunk=chunk, every=every, paths=paths)

    def sql(self, joins: Iterable[str]) -> str:
        """Return the query of the relations that some of the joins tie together."""
        joins = tuple(joins)
        taken = [alias for alias in self.relations if any(alias in ends(text) for text in joins)]
        conditions = [
            f"{column} {op} " + (f"DATE '{value}'" if isinstance(value, dt.date) else str(value))
            for alias in taken
            for column, op, value in self.conditions.get(alias, ())
        ]
        return sql(taken, [*joins, *conditions])

    @cached_property
    def sizes(self) -> dict[str, int]:
        return {alias: pq.read_metadata(path).num_rows for alias, path in self.paths.items()}

    @cached_property
    def spec(self) -> JoinSpec:
        """The block; its estimates are the files' rows, as in a query on the files."""
        tables = {}
        for alias, columns in self.relations.items():
            schema = pq.read_schema(self.paths[alias])
            tables[alias] = pa.schema([schema.field(column) for column in columns]).empty_table()
        return block(tables, *self.joins, rows=self.sizes)

    @property
    def schedule(self) -> Schedule:
        weights = tuple(map(float, self.sizes.values())) if self.by_size else None
        return Schedule(None, interleaved=True, order=tuple(range(len(self.sizes))), weights=weights)

    def scan(self, alias: str) -> Iterator[pa.RecordBatch]:
        """Yield a record batch for each chunk of a table, an empty one where no row is left of it."""
        columns, conditions = list(self.relations[alias]), self.conditions.get(alias, ())
        read = list(dict.fromkeys([*columns, *(column for column, _, _ in conditions)]))
        with pq.ParquetFile(self.paths[alias]) as file:
            for batch in file.iter_batches(self.chunk, columns=read, use_threads=False):
                kept = batch
                for column, op, value in conditions:
                    compare = pc.equal if op == "=" else pc.greater
                    values = kept.column(column)
                    kept = kept.filter(compare(values, pa.scalar(value, values.type)))
                yield kept.select(columns)

    def plans(self, count: Callable[[str], int]) -> tuple[Order, Order]:
        """Return the left-deep plans whose joins make the fewest and the most tuples.

        A plan of symmetric hash joins makes the tuples of each of its joins once, in whichever order base
        tuples arrive. Conjuncts that close a cycle are verified on what a join has made, so that it makes
        those too that fail.
        """
        steps = {order: list(self._steps(order)) for order in self.left_deep()}
        sizes = {query: count(query) for queries in steps.values() for query in queries}
        costs = {order: sum(sizes[query] for query in queries) for order, queries in steps.items()}
        return min(costs, key=lambda o: (costs[o], o)), max(costs, key=lambda o: (costs[o], o))

    def left_deep(self) -> Iterator[Order]:
        """Yield the orders without a cross product; which of the first two comes first does not matter."""
        tied = set(map(ends, self.joins))
        for order in permutations(self.relations):
            pairs = ([{order[place], early} for early in order[:place]] for place in range(1, len(order)))
            if order[0] < order[1] and all(any(pair in tied for pair in each) for each in pairs):
                yield order

    def _steps(self, order: Order) -> Iterator[str]:
        """Yield for each join of a plan the query that counts what it makes before anything is verified."""
        numbers = {alias: number for number, alias in enumerate(self.relations)}
        for place in range(1, len(order)):
            before, after = {*order[:place]}, {*order[: place + 1]}
            crossing = [text for text in self.joins if order[place] in ends(text) and ends(text) <= after]
            # Of several edges a plan takes that of the smallest numbers.
            along = min(crossing, key=lambda text: sorted(numbers[alias] for alias in ends(text)))
            yield self.sql(text for text in self.joins if ends(text) <= before or text == along)


def measure(run: Run) -> None:
    """Run the benchmark."""
    worst, chosen = [], []
    for name in run.names:
        if name in JOINED:
            join = JOINED[name].at(run.scale)
            times = _race(run, name, join)
            run.rows += times.rows(about=join.about)
            run.figures |= _figures(name, join, times)
            worst.append(times.ratio(STAIRS, JOINS))
            default = architecture_of(join.spec, Options(), side_by_side=True).name
            chosen.append(max(times.ratio(default, each) for each in (STEMS, STAIRS)))
    if worst:
        run.figures |= {"eddyjoins_worst_ratio": max(worst), "auto_worst_ratio": max(chosen)}
    if MIGRATE in run.names:
        moving.measure(run)
    if BUDGET in run.names:
        _budget(run)
    run.notes += [
        "made: intermediate tuples and those recomputed while state was moved; peak state: most tuples held",
        f"stairs move state by the policy {DEFAULT_MIGRATION}",
        "the best and the worst static plan are those of the exact sizes of what their joins make",
        "what is timed is count(*), the reading of the files included",
        "the targets are for scale 1: fixed costs weigh more on less",
    ]


def _race(run: Run, name: str, join: Join) -> Times:
    """Measure a case; its sides are joined tuples' numbers, with what each has worked as notes."""
    query = join.sql(join.joins)
    with duckdb_counts(join.paths) as count:
        run.says(f"{name}: the best and the worst plan")
        best, worst = join.plans(count)
        sides: dict[str, Callable[[], Any]] = {
            BEST: _by_millrace(join, architecture="static", order=best),
            JOINS: _by_millrace(join, architecture="joins"),
            STAIRS: _by_millrace(join, architecture="stairs"),
            WORST: _by_millrace(join, architecture="static", order=worst),
            STEMS: _by_millrace(join, architecture="stems"),
            DUCKDB: lambda: count(query),
        }
        few = [WORST, STEMS]
        if join.on_spark:
            for alias, path in join.paths.items():
                run.spark.read.parquet(path).createOrReplaceTempView(alias)
            sides[SPARK] = lambda: int(run.spark.sql(query).collect()[0][0])
            sides[ON_SPARK] = _by_millrace_on_spark(run, join, query)
        else:
            few.append(DUCKDB)
        for policy in MIGRATIONS if join.policies and not run.quick else ():
            if policy != DEFAULT_MIGRATION:
                sides[f"{STAIRS} {policy}"] = _by_millrace(join, architecture="stairs", migration=policy)
                few.append(f"{STAIRS} {policy}")
        rounds = min(run.rounds, join.rounds)
        return run.race(
            name, sides, control=BEST, answer=count(query), few=few, rounds=rounds, repeats=join.repeats
        )


def _by_millrace(join: Join, **options: Any) -> Callable[[], Ran]:
    given = Options(batch_size=join.chunk, reoptimize_every=join.every, **options)

    def call() -> Ran:
        sources = {alias: join.scan(alias) for alias in join.paths}
        rows, figures = run_block(join.spec, sources, given, schedule=join.schedule)
        return Ran(rows, _work([figures]))

    return call


def _by_millrace_on_spark(run: Run, join: Join, text: str) -> Callable[[], Ran]:
    """Return the side of Millrace's queries, with what join state it chooses; it plans anew in each run."""
    # Online, so that the tables arrive side by side.
    options = Options(online=True, batch_size=join.chunk, reoptimize_every=join.every)

    def call() -> Ran:
        query = millrace.query(text, spark=run.spark, tables=join.paths, options=options)
        rows = int(query.df.collect()[0][0])
        return Ran(rows, _work([cell for _, cell in query.report().cells()]))

    return call


def _work(cells: Sequence[CellFigures]) -> dict[str, int]:
    """Add up the figures of eddies that worked for the same query."""
    modules = [module for cell in cells for module in cell.modules]
    return {
        "made": sum(cell.intermediate_tuples + cell.recomputed_tuples for cell in cells),
        "intermediate": sum(cell.intermediate_tuples for cell in cells),
        "migrated": sum(cell.migrated_tuples for cell in cells),
        "recomputed": sum(cell.recomputed_tuples for cell in cells),
        "probes": sum(m.tuples_in for m in modules if m.action in ("probe", "join")),
        "peak_state": sum(cell.peak_state for cell in cells),
    }


def _figures(name: str, join: Join, times: Times) -> dict[str, float]:
    """Return what the case has figures of its own for."""
    static = times.ratio(STAIRS, BEST, AGAIN)
    if not join.on_spark:
        return {f"{name}_static_ratio": static}
    found = {
        "worst_ratio": times.ratio(STAIRS, WORST),
        "eddyjoins_ratio": times.ratio(STAIRS, JOINS),
        "spark_ratio": times.ratio(ON_SPARK, SPARK),
        "spark_inprocess_ratio": times.ratio(STAIRS, SPARK),
        "duckdb_ratio": times.ratio(STAIRS, DUCKDB),
    }
    if not name.startswith("drift"):
        return {f"{name}_{kind}": value for kind, value in ({"static_ratio": static} | found).items()}
    made = times.note(STAIRS, "made") / max(1, times.note(BEST, "made"))
    ending = name.removeprefix("drift").removesuffix("_5m")
    found |= {"time_ratio": static, "tuples_ratio": made}
    return {f"drift_{kind}{ending}": value for kind, value in found.items()}


def _budget(run: Run) -> None:
    """Run each algorithm and each architecture once under a budget that the scale sets, 128 MB at most."""
    size = round(128 * budget.MEGABYTE * min(1.0, max(0.03, run.scale)))
    others = [("hybrid", architecture) for architecture in ARCHITECTURES if architecture != "stems"]
    for algorithm, architecture in [*((algorithm, "stems") for algorithm in ALGORITHMS), *others]:
        run.says(f"budget: four times the memory, {algorithm}, {architecture}")
        found = budget.run(algorithm, size, architecture=architecture)
        row = {"case": BUDGET, "side": f"{algorithm}, {architecture}", "runs": 1, "median_s": found.seconds}
        run.rows.append(row | {"rows": found.rows, "peak_ratio": found.ratio})
    run.figures["budget_peak_ratio"] = max(row["peak_ratio"] for row in run.rows if row["case"] == BUDGET)


# The data. What joins with what changes half-way where the keys of one half do not occur in the other.

_VERSION = 2
"""To be raised when tables are made differently: folders of an earlier version are not used any more."""

_ROW_GROUP = 262_144
"""Rows; whole numbers of the chunks that tables are read in."""

_SEED = 20_040


def _files(name: str, make: Callable[[], Tables]) -> dict[str, str]:
    """Return the paths of a data set's tables by alias, making all of them first where there are none."""
    folder = cache_folder(f"state-{_VERSION}-{name}")
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        # Made beside and renamed, so that a folder with that name always holds all tables.
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as beside:
            made = Path(beside) / "made"
            made.mkdir()
            for alias, table in make().items():
                pq.write_table(table, made / f"{alias}.parquet", row_group_size=_ROW_GROUP)
            made.rename(folder)
    return {path.stem: str(path) for path in folder.glob("*.parquet")}


def _generated(rows: int, make: Callable[[int], Tables]) -> Callable[[float], Mapping[str, str]]:
    """Return the files of random data, with ``rows`` tuples a table at scale 1."""

    def files(scale: float) -> dict[str, str]:
        size = max(10, round(rows * scale))
        return _files(f"{make.__name__.strip('_')}-{size}", lambda: make(size))

    return files


def _drift(rows: int) -> Tables:
    return drift(rows, _SEED)


def _star(rows: int) -> Tables:
    draw = np.random.default_rng([_SEED, 4])
    keys = {f"k{i}": _domain(rows, fan) for i, fan in enumerate(_fans(draw), 1)}
    tables = {"h": pa.table({key: draw.integers(0, size, rows) for key, size in keys.items()})}
    for number, (key, size) in enumerate(keys.items(), 1):
        tables[f"d{number}"] = pa.table({key: draw.integers(0, size, rows)})
    return tables


def _path(rows: int) -> Tables:
    draw = np.random.default_rng([_SEED, 40])
    sizes = {i: _domain(rows, fan) for i, fan in enumerate(_fans(draw), 1)}
    return {
        f"p{i}": pa.table({f"k{k}": draw.integers(0, sizes[k], rows) for k in (i - 1, i) if k in sizes})
        for i in range(1, 6)
    }


def _triangle(rows: int) -> Tables:
    """Return R(a, b), S(b, c), T(c, a): many tuples agree in ``c``, in the second half in ``a`` and ``b``.

    A spanning tree without ``c`` serves the first half, and none but the two with ``c`` the second. Each
    half is made of triangles, whose corners arrive at different times. Beside its own triangle's, a tuple
    has half a match along a good edge, and 24 along a bad one.
    """
    draw = np.random.default_rng([_SEED, 3])
    halves = []
    for half, n in enumerate((rows // 2, rows - rows // 2)):
        fans = {key: 24.0 if (key == "c") == (half == 0) else 0.5 for key in "abc"}
        keys = {key: 2 * draw.integers(0, _domain(n, fan), n) + half for key, fan in fans.items()}
        turns = {alias: draw.permutation(n) for alias in "rst"}
        halves.append({(alias, key): keys[key][turns[alias]] for alias in turns for key in keys})
    columns = {"r": "ab", "s": "bc", "t": "ca"}
    return {
        alias: pa.table({c: np.concatenate([half[alias, c] for half in halves]) for c in names})
        for alias, names in columns.items()
    }


def _fig7(scale: float) -> Mapping[str, str]:
    """Return the paths of TPC-H's customer and orders, and of a lineitem in the order of its ship dates."""
    tables = ensure(scale)

    def make() -> Tables:
        table = pq.read_table(tables["lineitem"], columns=["l_shipdate", "l_orderkey", "l_linenumber"])
        by = [(name, "ascending") for name in table.column_names]
        return {"lineitem": table.sort_by(by).select(["l_orderkey", "l_shipdate"])}

    return {**tables, **_files(f"fig7-{scale:g}", make)}


def _fans(draw: np.random.Generator) -> Any:
    """Return four fan-outs from 0.2 to 3, one in each quarter of what is possible, in random order."""
    low, high = np.log((0.2, 3.0))
    return np.exp(low + (high - low) * (draw.permutation(4) + draw.random(4)) / 4)


def _domain(rows: int, fan: float) -> int:
    """Return of how many values random keys are taken so that each finds ``fan`` among ``rows`` others."""
    return max(1, round(rows / fan))


_DRIFTING = Join(
    "each S joins 5 R and no T, from half-way on no R and 5 T",
    {"r": ("a",), "s": ("a", "b"), "t": ("b",)},
    DRIFT,
    _generated(5_000_000, _drift),
    chunk=65_536,
    every=50_000,
    on_spark=True,
    policies=True,
)
_BY_DATE = Join(
    "TPC-H, lineitem by ship date",
    # An eddy that knows nothing takes what comes first, here what the worst plan does.
    {"lineitem": ("l_orderkey",), "orders": ("o_orderkey", "o_custkey"), "customer": ("c_custkey",)},
    ("customer.c_custkey = orders.o_custkey", "orders.o_orderkey = lineitem.l_orderkey"),
    _fig7,
    conditions={
        "customer": (("c_nationkey", "=", 1), ("c_acctbal", ">", 9000)),
        "lineitem": (("l_shipdate", ">", dt.date(1996, 1, 1)),),
    },
    by_size=True,
)
JOINED: Mapping[str, Join] = {
    "drift_5m": _DRIFTING,
    "drift_50k": replace(_DRIFTING, files=_generated(50_000, _drift), chunk=1000, every=1000, repeats=3),
    "fig7": replace(_BY_DATE, policies=True, on_spark=True),
    "fig7_1k": replace(_BY_DATE, chunk=1000, every=1000, rounds=3),
    "star5": Join(
        "a hub and four others, of which a hub's tuple joins 0.2 to 3",
        {"h": ("k1", "k2", "k3", "k4"), **{f"d{i}": (f"k{i}",) for i in range(1, 5)}},
        tuple(f"h.k{i} = d{i}.k{i}" for i in range(1, 5)),
        _generated(200_000, _star),
    ),
    "path5": Join(
        "five in a row, of which a tuple joins 0.2 to 3 of each neighbour",
        {"p1": ("k1",), "p2": ("k1", "k2"), "p3": ("k2", "k3"), "p4": ("k3", "k4"), "p5": ("k4",)},
        tuple(f"p{i}.k{i} = p{i + 1}.k{i}" for i in range(1, 5)),
        _generated(200_000, _path),
    ),
    "triangle": Join(
        "tuples agree with many others along one edge, from half-way on along the other two",
        {"r": ("a", "b"), "s": ("b", "c"), "t": ("c", "a")},
        ("r.b = s.b", "s.c = t.c", "t.a = r.a"),
        _generated(100_000, _triangle),
        chunk=4096,
        every=4096,
        repeats=2,
    ),
}
"""The races by name."""

TARGETS = {
    "drift_tuples_ratio": Target(high=0.1),
    "drift_time_ratio": Target(high=0.5),
    "drift_spark_ratio": Target(high=0.2),
    "drift_duckdb_ratio": Target(high=1.0),
    "fig7_static_ratio": Target(high=1.1),
    "star5_static_ratio": Target(high=1.15),
    "path5_static_ratio": Target(high=1.15),
    "eddyjoins_worst_ratio": Target(high=1.15),
    "auto_worst_ratio": Target(high=1.05),
    "migrate_ratio": Target(high=2.0),
    "budget_peak_ratio": Target(high=1.1),
}
BENCH = Bench(measure, (*JOINED, MIGRATE, BUDGET), TARGETS, quick=("drift_5m", "fig7", "triangle", MIGRATE))
