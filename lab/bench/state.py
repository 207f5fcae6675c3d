"""Join state: static plans, EddyJoins, SteMs and STAIRs on the same files and the same order of arrival.

Deshpande & Hellerstein 2004, section 5. What each makes, probes and holds is counted, and timed with the
reading of the files, one thread each; where there is something to win in a plain query, Spark runs beside.
Every result is compared with DuckDB's. The A/A control is the best static plan a second time in each round.
"""

from __future__ import annotations

import datetime as dt
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import permutations
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import millrace
from lab.bench import state_data, state_migrate
from lab.bench.harness import CONTROL, Bench, Outcome, Ran, Run, Target, Times, duckdb_counts, geomean, race
from millrace.engine.architectures.choice import architecture_of
from millrace.engine.arrivals.schedule import Schedule
from millrace.engine.expressions import ColumnRef
from millrace.engine.figures import CellFigures
from millrace.engine.migration import default_migration
from millrace.engine.runs.run_of import run_of
from millrace.engine.spec import Equality, JoinSpec, RelationSpec
from millrace.options import ALGORITHMS, ARCHITECTURES, MIGRATIONS, Options
from tests.engine.spill import budget

BEST, AGAIN, WORST = "static best", "static best again", "static worst"
JOINS, STEMS, STAIRS, DUCKDB = "joins", "stems", "stairs", "duckdb"
SPARK, ON_SPARK = "spark", "on spark"
MIGRATE, BUDGET = "migrate", "budget"
"""Cases that are no race of whole joins."""

_LEAST_CHUNK = 100
_COUNTS = ("made", "intermediate", "migrated", "recomputed", "probes", "peak_state")
Order = tuple[str, ...]


@dataclass(frozen=True)
class Join:
    """A join that is counted.

    Attributes:
        name: Of the case.
        about: What it is, in a few words.
        relations: The columns that are joined, by alias.
        joins: Each the text of an equality.
        files: Returns the paths of the tables by alias, for a scale.
        chunk: Rows of a table that arrive at a time.
        every: Tuples after which routing is decided anew.
        conditions: ``(column, "=" or ">", value)`` by alias, applied to what has arrived.
        by_size: Tables arrive at rates in proportion to their sizes, else all at the same rate.
        on_spark: Also run by Spark, and by Millrace on Spark.
        policies: Also run with the migration policies that are not the default.
        repeats: Runs in each round, more than one where a run is short.
        rounds: Take part in no more than so many rounds, where a run is long and for information only.
        paths: The tables' files.
    """

    name: str
    about: str
    relations: Mapping[str, tuple[str, ...]]
    joins: tuple[str, ...]
    files: Callable[[float], dict[str, str]]
    chunk: int = 16_384
    every: int = 16_384
    conditions: Mapping[str, tuple[tuple[str, str, Any], ...]] = ()  # type: ignore[assignment]
    by_size: bool = False
    on_spark: bool = False
    policies: bool = False
    repeats: int = 1
    rounds: int | None = None
    paths: Mapping[str, str] = ()  # type: ignore[assignment]

    def at(self, scale: float) -> Join:
        """Return the join with its files, in chunks as small as smaller tables need to change as often."""
        chunk, every = (max(_LEAST_CHUNK, round(n * min(1.0, scale))) for n in (self.chunk, self.every))
        return replace(self, chunk=chunk, every=every, paths=self.files(scale))

    def sql(self, joins: Iterable[str] | None = None) -> str:
        """Return the query, or that of the relations that some of the joins tie together."""
        texts = self.joins if joins is None else tuple(joins)
        taken = [alias for alias in self.relations if any(alias in self.edges[text] for text in texts)]
        conditions = [
            f"{column} {op} " + (f"DATE '{value}'" if isinstance(value, dt.date) else str(value))
            for alias in taken
            for column, op, value in dict(self.conditions).get(alias, ())
        ]
        return f"SELECT count(*) FROM {', '.join(taken)} WHERE {' AND '.join([*texts, *conditions])}"

    @cached_property
    def edges(self) -> dict[str, frozenset[str]]:
        """The two aliases of each join."""
        return {text: frozenset(side.relation for side in _sides(text)) for text in self.joins}

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Rows of each table."""
        return {alias: pq.read_metadata(path).num_rows for alias, path in self.paths.items()}

    @cached_property
    def spec(self) -> JoinSpec:
        """The block; its estimates are the files' rows, as in a query on the files."""
        kinds = {alias: pq.read_schema(path) for alias, path in self.paths.items()}
        relations = [
            RelationSpec(alias, pa.schema([kinds[alias].field(c) for c in columns]), rows=self.sizes[alias])
            for alias, columns in self.relations.items()
        ]
        pairs = map(_sides, self.joins)
        equalities = [Equality(a, b, kinds[a.relation].field(a.column).type) for a, b in pairs]
        return JoinSpec(tuple(relations), tuple(equalities), count_only=True)

    @property
    def schedule(self) -> Schedule:
        """How the tables arrive."""
        weights = tuple(map(float, self.sizes.values())) if self.by_size else None
        return Schedule(None, interleaved=True, order=tuple(range(len(self.sizes))), weights=weights)

    def scan(self, alias: str) -> Iterator[pa.RecordBatch]:
        """Yield a record batch for each chunk of a table, an empty one where no row is left of it."""
        columns, conditions = list(self.relations[alias]), dict(self.conditions).get(alias, ())
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
        sizes = {query: count(query) for order in self.left_deep() for query in self._steps(order)}
        costs = {order: sum(sizes[query] for query in self._steps(order)) for order in self.left_deep()}
        return min(costs, key=lambda o: (costs[o], o)), max(costs, key=lambda o: (costs[o], o))

    def left_deep(self) -> Iterator[Order]:
        """Yield the orders without a cross product; which of the first two comes first does not matter."""
        edges = set(self.edges.values())
        for order in permutations(self.relations):
            joined = all(
                any(frozenset((alias, earlier)) in edges for earlier in order[:place])
                for place, alias in enumerate(order)
                if place
            )
            if joined and order[0] < order[1]:
                yield order

    def _steps(self, order: Order) -> Iterator[str]:
        """Yield for each join of a plan the query that counts what it makes before anything is verified."""
        numbers = {alias: number for number, alias in enumerate(self.relations)}
        for place in range(1, len(order)):
            inside = {text for text, ends in self.edges.items() if ends <= {*order[:place]}}
            crossing = [
                text
                for text, ends in self.edges.items()
                if order[place] in ends and ends <= {*order[: place + 1]}
            ]
            # Of several edges a plan takes that of the smallest numbers.
            along = min(crossing, key=lambda text: sorted(numbers[alias] for alias in self.edges[text]))
            yield self.sql(text for text in self.joins if text in inside | {along})


def _sides(text: str) -> tuple[ColumnRef, ColumnRef]:
    left, right = (ColumnRef(*side.split(".")) for side in text.split(" = "))
    return left, right


def measure(run: Run) -> Outcome:
    """Run the benchmark."""
    outcome, worst, chosen, controls = Outcome(), [], [], []
    for name in run.names:
        if name in JOINED:
            join = JOINED[name].at(run.scale)
            times = _race(run, join)
            outcome.rows += _rows(join, times)
            outcome.figures |= _figures(join, times)
            worst.append(times.ratio(STAIRS, JOINS))
            default = architecture_of(join.spec, Options(), side_by_side=True).name
            chosen.append(max(times.ratio(default, each) for each in (STEMS, STAIRS)))
            controls.append(times.ratio(BEST, AGAIN))
    if controls:
        outcome.figures["eddyjoins_worst_ratio"] = max(worst)
        outcome.figures["auto_worst_ratio"] = max(chosen)
        outcome.figures["aa_ratio"] = geomean(controls)
    if MIGRATE in run.names:
        outcome.add(MIGRATE, state_migrate.measure(run))
    if BUDGET in run.names:
        outcome.add(BUDGET, _budget(run))
    outcome.targets = {name: target for name, target in TARGETS.items() if name in outcome.figures}
    outcome.notes += [
        "made: intermediate tuples and those recomputed while state was moved; peak state: most tuples held",
        f"stairs move state by the policy {default_migration()}",
        "the best and the worst static plan are those of the exact sizes of what their joins make",
        "what is timed is count(*), the reading of the files included",
        "the targets are for scale 1: fixed costs weigh more on less",
    ]
    return outcome


def _race(run: Run, join: Join) -> Times:
    """Measure a case; its sides are joined tuples' numbers, with :data:`_COUNTS` as notes."""
    with duckdb_counts(join.paths) as count:
        run.says(f"{join.name}: the best and the worst plan")
        best, worst = join.plans(count)
        static = _by_millrace(join, architecture="static", order=best)
        sides: dict[str, Callable[[], Any]] = {
            BEST: static,
            AGAIN: static,
            JOINS: _by_millrace(join, architecture="joins"),
            STAIRS: _by_millrace(join, architecture="stairs"),
            WORST: _by_millrace(join, architecture="static", order=worst),
            STEMS: _by_millrace(join, architecture="stems"),
            DUCKDB: lambda: count(join.sql()),
        }
        few = [WORST, STEMS]
        if join.on_spark:
            for alias, path in join.paths.items():
                run.spark.read.parquet(path).createOrReplaceTempView(alias)
            sides[SPARK] = lambda: int(run.spark.sql(join.sql()).collect()[0][0])
            sides[ON_SPARK] = _by_millrace_on_spark(run, join)
        else:
            few.append(DUCKDB)
        for name in MIGRATIONS if join.policies and not run.quick else ():
            if name != default_migration():
                sides[f"{STAIRS} {name}"] = _by_millrace(join, architecture="stairs", migration=name)
                few.append(f"{STAIRS} {name}")
        rounds = run.rounds if join.rounds is None else min(run.rounds, join.rounds)
        answer, title = count(join.sql()), f"{join.name}, {join.about}"
        return race(run, title, sides, answer=answer, few=few, rounds=rounds, repeats=join.repeats)


def _by_millrace(join: Join, **options: Any) -> Callable[[], Ran]:
    given = Options(batch_size=join.chunk, reoptimize_every=join.every, **options)

    def call() -> Ran:
        sources = {alias: join.scan(alias) for alias in join.paths}
        eddy = run_of(join.spec, sources, given, schedule=join.schedule)
        rows = sum(batch.column(0)[0].as_py() for batch in eddy.run())
        return Ran(rows, _work([eddy.figures()]))

    return call


def _by_millrace_on_spark(run: Run, join: Join) -> Callable[[], Ran]:
    """Return the side of Millrace's queries, with what join state it chooses; it plans anew in each run."""
    # Online, so that the tables arrive side by side.
    options = Options(online=True, batch_size=join.chunk, reoptimize_every=join.every)

    def call() -> Ran:
        query = millrace.query(join.sql(), spark=run.spark, tables=join.paths, options=options)
        rows = int(query.df.collect()[0][0])
        return Ran(rows, _work([cell for _, cell in query.report().cells()]))

    return call


def _work(cells: Sequence[CellFigures]) -> dict[str, int]:
    """Add up the figures of eddies that worked for the same query."""
    found = {
        "intermediate": sum(cell.intermediate_tuples for cell in cells),
        "migrated": sum(cell.migrated_tuples for cell in cells),
        "recomputed": sum(cell.recomputed_tuples for cell in cells),
        "probes": sum(m.tuples_in for cell in cells for m in cell.modules if m.action in ("probe", "join")),
        "peak_state": sum(cell.peak_state for cell in cells),
    }
    return {"made": found["intermediate"] + found["recomputed"]} | found


def _rows(join: Join, times: Times) -> list[dict[str, Any]]:
    rows = times.rows(case=join.name)
    for row in rows:
        if times.notes[row["side"]][0] is not None:
            row |= {count: round(_count(times, row["side"], count)) for count in _COUNTS}
    return rows


def _count(times: Times, side: str, count: str) -> float:
    return float(statistics.median(note[count] for note in times.notes[side]))


def _figures(join: Join, times: Times) -> dict[str, float]:
    """Return what the case has figures of its own for."""
    static = times.ratio(STAIRS, BEST, AGAIN)
    if not join.on_spark:
        return {f"{join.name}_static_ratio": static}
    found = {
        "worst_ratio": times.ratio(STAIRS, WORST),
        "eddyjoins_ratio": times.ratio(STAIRS, JOINS),
        "spark_ratio": times.ratio(ON_SPARK, SPARK),
        "spark_inprocess_ratio": times.ratio(STAIRS, SPARK),
        "duckdb_ratio": times.ratio(STAIRS, DUCKDB),
    }
    if not join.name.startswith("drift"):
        return {f"{join.name}_{name}": value for name, value in ({"static_ratio": static} | found).items()}
    made = _count(times, STAIRS, "made") / max(1, _count(times, BEST, "made"))
    found |= {"time_ratio": static, "tuples_ratio": made}
    ending = join.name.removeprefix("drift").removesuffix("_5m")
    return {f"drift_{name}{ending}": value for name, value in found.items()}


def _budget(run: Run) -> Outcome:
    """Run each algorithm and each architecture once under a budget that the scale sets, 128 MB at most."""
    size = round(128 * budget.MEGABYTE * min(1.0, max(0.03, run.scale)))
    others = [("hybrid", architecture) for architecture in ARCHITECTURES if architecture != "stems"]
    outcome = Outcome()
    for algorithm, architecture in [*((algorithm, "stems") for algorithm in ALGORITHMS), *others]:
        run.says(f"budget: four times the memory, {algorithm}, {architecture}")
        found = budget.run(algorithm, size, architecture=architecture)
        row = {"case": BUDGET, "side": f"{algorithm}, {architecture}", "runs": 1, "median_s": found.seconds}
        outcome.rows.append(row | {"rows": found.rows, "peak_ratio": found.ratio})
    outcome.figures["budget_peak_ratio"] = max(row["peak_ratio"] for row in outcome.rows)
    return outcome


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
    "aa_ratio": CONTROL,
}


def _generated(
    name: str,
    about: str,
    rows: int,
    make: Callable[[int], state_data.Tables],
    relations: Mapping[str, tuple[str, ...]],
    joins: tuple[str, ...],
    **settings: Any,
) -> Join:
    """Return a join of random data, with ``rows`` tuples a table at scale 1."""

    def files(scale: float) -> dict[str, str]:
        size = max(10, round(rows * scale))
        return state_data.files(f"{make.__name__}-{size}", tuple(relations), lambda: make(size))

    return Join(name, about, relations, joins, files, **settings)


def _drift(name: str, rows: int, chunk: int, every: int, repeats: int) -> Join:
    return _generated(
        name,
        "each S joins 5 R and no T, from half-way on no R and 5 T",
        rows,
        state_data.drift,
        {"r": ("a",), "s": ("a", "b"), "t": ("b",)},
        ("r.a = s.a", "s.b = t.b"),
        chunk=chunk,
        every=every,
        on_spark=True,
        policies=True,
        repeats=repeats,
    )


def _fig7(name: str, chunk: int, **settings: Any) -> Join:
    return Join(
        name,
        f"TPC-H, lineitem by ship date, {chunk:,} rows at a time",
        # An eddy that knows nothing takes what comes first, here what the worst plan does.
        {"lineitem": ("l_orderkey",), "orders": ("o_orderkey", "o_custkey"), "customer": ("c_custkey",)},
        ("customer.c_custkey = orders.o_custkey", "orders.o_orderkey = lineitem.l_orderkey"),
        state_data.fig7,
        chunk,
        chunk,
        {
            "customer": (("c_nationkey", "=", 1), ("c_acctbal", ">", 9000)),
            "lineitem": (("l_shipdate", ">", dt.date(1996, 1, 1)),),
        },
        by_size=True,
        **settings,
    )


JOINED: Mapping[str, Join] = {
    join.name: join
    for join in (
        _drift("drift_5m", 5_000_000, 65_536, 50_000, 1),
        _drift("drift_50k", 50_000, 1000, 1000, 3),
        _fig7("fig7", 16_384, policies=True, on_spark=True),
        _fig7("fig7_1k", 1000, rounds=3),
        _generated(
            "star5",
            "a hub and four others, of which a hub's tuple joins 0.2 to 3",
            200_000,
            state_data.star,
            {"h": ("k1", "k2", "k3", "k4"), **{f"d{i}": (f"k{i}",) for i in range(1, 5)}},
            tuple(f"h.k{i} = d{i}.k{i}" for i in range(1, 5)),
        ),
        _generated(
            "path5",
            "five in a row, of which a tuple joins 0.2 to 3 of each neighbour",
            200_000,
            state_data.path,
            {"p1": ("k1",), "p2": ("k1", "k2"), "p3": ("k2", "k3"), "p4": ("k3", "k4"), "p5": ("k4",)},
            tuple(f"p{i}.k{i} = p{i + 1}.k{i}" for i in range(1, 5)),
        ),
        _generated(
            "triangle",
            "tuples agree with many others along one edge, from half-way on along the other two",
            100_000,
            state_data.triangle,
            {"r": ("a", "b"), "s": ("b", "c"), "t": ("c", "a")},
            ("r.b = s.b", "s.c = t.c", "t.a = r.a"),
            chunk=4096,
            every=4096,
            repeats=2,
        ),
    )
}
"""The races by name."""

BENCH = Bench(measure, (*JOINED, MIGRATE, BUDGET), quick=("drift_5m", "fig7", "triangle", MIGRATE))
