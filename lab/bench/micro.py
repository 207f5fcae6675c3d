"""Parts of the engine by themselves: the join kernel, the exchange of blocks, permits, the start of a worker.

*kernel*: a symmetric hash join of random ``int64`` keys, about one match a row, against DuckDB and Polars,
one thread each. Keys lie in the range of the tables' size, as numbers that a database hands out do;
*scattered* ones lie all over ``int64``, as hashes do. *exchange*: rows of two columns from a Parquet file
into Python tasks, as Arrow blocks and as Spark's rows. *coordination*: permits a second that a coordinator's
process gives to tasks of this one. *start*: the first batch of a process that has loaded what Spark's worker
loads by itself.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lab.bench.harness import CONTROL, Bench, Outcome, Ran, Run, Target, duckdb_counts, geomean, race, spread
from millrace.engine.expressions import Column, ColumnRef, Compare, Literal
from millrace.engine.kernels import Multimap
from millrace.engine.peak import peak_memory
from millrace.engine.spec import Equality, JoinSpec, OutputColumn, RelationSpec
from millrace.errors import ExecutionError
from millrace.options import Options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from millrace.limits.client import Client
    from millrace.limits.registration import Address

KERNELS = {"5m": 5_000_000, "1m": 1_000_000, "5m_scattered": 5_000_000}
BATCH = 10_000
EXCHANGED = 10_000_000
TASKS, CONNECTIONS = 2000, 500
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])
_COUNTS = "rows long, blocks long, bytes long"


def measure(run: Run) -> Outcome:
    """Run the benchmark."""
    outcome = Outcome()
    if sizes := [name for name in run.names if name in KERNELS]:
        outcome.add("kernel", _kernels(run, sizes))
    for name, part in (("exchange", _exchange), ("coordination", _coordination), ("start", _start)):
        if name in run.names:
            outcome.add(name, part(run))
    return outcome


def _kernels(run: Run, sizes: list[str]) -> Outcome:
    outcome, controls = Outcome(), []
    query = "SELECT count(*) FROM l JOIN r ON l.k = r.k"
    for size in sizes:
        rows = max(BATCH, round(KERNELS[size] * run.scale))
        left, right = keys(rows, scattered="scattered" in size)
        tables = {"l": pa.table({"k": left}), "r": pa.table({"k": right})}

        def ours(left: np.ndarray = left, right: np.ndarray = right) -> int:
            return symmetric_join(left, right)

        with duckdb_counts(tables) as count, _polars(left, right) as polars:
            sides = {"millrace": ours, "duckdb": lambda: count(query), "polars": polars}
            times = race(run, size, sides | {"millrace again": ours})
        for rival in ("duckdb", "polars"):
            outcome.figures[f"{rival}_ratio_{size}"] = times.ratio("millrace", rival)
        if size != "5m_scattered":
            outcome.targets[f"duckdb_ratio_{size}"] = Target(high=1.2)
        controls.append(times.ratio("millrace", "millrace again"))
        outcome.rows += times.rows(case=f"{size} ⋈ {size}", matches=times.answers["millrace"])
    outcome.figures["aa_ratio"] = geomean(controls)
    outcome.targets["aa_ratio"] = CONTROL
    return outcome


def keys(rows: int, *, scattered: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Return two columns of ``rows`` random ``int64`` keys with about one match a row."""
    random = np.random.default_rng(20_000)
    columns = random.integers(0, rows, rows), random.integers(0, rows, rows)
    if not scattered:
        return columns
    places = random.integers(-(2**62), 2**62, rows)
    return places[columns[0]], places[columns[1]]


def symmetric_join(left: np.ndarray, right: np.ndarray, batch: int = BATCH) -> int:
    """Return the number of matches, by building and probing batches of both sides in turn."""
    tables = (Multimap(), Multimap())
    matches = 0
    for start in range(0, len(left), batch):
        for side, column in enumerate((left, right)):
            codes = column[start : start + batch]
            tables[side].insert(codes)
            walk = tables[1 - side].probe(codes)
            while not walk.is_done:
                matches += len(tables[1 - side].matches(walk, 4 * BATCH)[0])
    return matches


_POLARS = """
import sys, time
import numpy as np, polars as pl
left, right = (pl.DataFrame({"k": np.load(path)}).lazy() for path in sys.argv[1:3])
query = left.join(right, on="k").select(pl.len())
for _ in sys.stdin:
    start = time.perf_counter()
    count = query.collect().item()
    print(count, time.perf_counter() - start, flush=True)
"""


@contextmanager
def _polars(left: np.ndarray, right: np.ndarray) -> Iterator[Callable[[], Ran]]:
    """Give what counts matches by Polars, in a process of its own: it takes its threads when it is loaded."""
    with tempfile.TemporaryDirectory(prefix="millrace-") as folder:
        paths = [Path(folder) / "left.npy", Path(folder) / "right.npy"]
        for path, column in zip(paths, (left, right), strict=True):
            np.save(path, column)
        process = subprocess.Popen(
            [sys.executable, "-c", _POLARS, *map(str, paths)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "POLARS_MAX_THREADS": "1"},
        )
        assert process.stdin is not None and process.stdout is not None
        requests, answers = process.stdin, process.stdout

        def count() -> Ran:
            requests.write("go\n")
            requests.flush()
            answer = answers.readline().split()
            if len(answer) != 2:
                raise ExecutionError(f"the Polars process ended with exit code {process.wait()}")
            return Ran(int(answer[0]), seconds=float(answer[1]))

        with process:
            try:
                yield count
            finally:
                requests.close()
                process.wait(timeout=60)


@dataclass(frozen=True)
class CountBlocks:
    """Reads the blocks of one cell and counts what is in them; travels to the tasks."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield one row of counts."""
        from pyspark import TaskContext

        from millrace.spark.exchange import BlockReader

        context = TaskContext.get()
        assert context is not None
        reader = BlockReader(batches, [SCHEMA], context.partitionId())
        rows = sum(batch.num_rows for batch in reader.source(0))
        yield _counts(rows, reader.blocks, reader.bytes)


def count_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Count the rows of one partition as Spark hands them over; yield one row of counts."""
    yield _counts(sum(batch.num_rows for batch in batches), 0, 0)


def _counts(*numbers: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([n]) for n in numbers], ["rows", "blocks", "bytes"])


def _blocks(run: Run, path: str, tasks: int) -> DataFrame:
    """Return the counts after an exchange of a file's rows in blocks."""
    from millrace.parquet.parquet import open_table, splits
    from millrace.spark.dealt_scan import Scan
    from millrace.spark.exchange import BLOCK_SCHEMA, Cut
    from millrace.spark.hypercube import Axis, Cube
    from millrace.spark.reports import Sink
    from millrace.spark.tasks import ScanTask
    from millrace.spark.types import spark_schema

    own = splits(open_table(path), (), tuple(SCHEMA.names))
    scan = Scan.of(SCHEMA, (), [own[task::tasks] for task in range(tasks)])
    cube, options = Cube((Axis(tasks, pa.int64(), ((0, "k"),)),)), Options()
    silent = Sink("bench", None, hidden=False)
    task = ScanTask(("t",), (scan,), (Cut(0, cube, options.block_bytes),), options.batch_size, silent)
    blocks = run.spark.range(0, tasks, 1, numPartitions=tasks).mapInArrow(task, spark_schema(BLOCK_SCHEMA))
    return blocks.repartitionById(tasks, "cell").mapInArrow(CountBlocks(), _COUNTS)


def _exchange(run: Run) -> Outcome:
    from millrace.spark.session import default_parallelism

    rows, tasks = round(EXCHANGED * run.scale), default_parallelism(run.spark)
    with tempfile.TemporaryDirectory(prefix="millrace-") as folder:
        path = f"{folder}/rows.parquet"
        random = np.random.default_rng(7)
        columns = [pa.array(random.integers(0, 1 << 62, rows)) for _ in SCHEMA]
        pq.write_table(pa.Table.from_arrays(columns, schema=SCHEMA), path, row_group_size=1 << 20)

        def arrived(counts: DataFrame) -> Ran:
            found = counts.collect()
            return Ran(
                sum(row["rows"] for row in found), {k: sum(r[k] for r in found) for k in ("blocks", "bytes")}
            )

        def by_rows() -> Ran:
            return arrived(
                run.spark.read.parquet(path).repartition(tasks, "k").mapInArrow(count_rows, _COUNTS)
            )

        sides = {"blocks": lambda: arrived(_blocks(run, path, tasks)), "rows": by_rows, "rows again": by_rows}
        times = race(run, "exchange", sides, answer=rows)
    sent = times.notes["blocks"][0]
    figures = {
        "rows_per_s": rows / times.median("blocks"),
        "bytes_per_row": sent["bytes"] / rows,
        "row_exchange_ratio": times.ratio("blocks", "rows"),
        "aa_ratio": times.ratio("rows", "rows again"),
        "blocks_sent": sent["blocks"],
    }
    targets = {"row_exchange_ratio": Target(high=1.0), "aa_ratio": CONTROL}
    return Outcome(figures, times.rows(case="exchange"), targets)


def _coordination(run: Run) -> Outcome:
    """Measure permits; each round has a coordinator of its own, and everything is encrypted as always."""
    from millrace.limits.event_loop import runner
    from millrace.limits.process import CoordinatorProcess

    tasks, connections = (40, 20) if run.quick else (TASKS, CONNECTIONS)
    found: dict[str, list[float]] = {"permits_per_s": [], "permit_p99_ms": [], "memory_mb": []}
    for number in range(run.rounds):
        run.says(f"coordination: round {number + 1}")
        with closing(CoordinatorProcess()) as coordinator:
            with runner() as running:
                load = _load(coordinator.address, tasks, connections, 5.0 * min(1.0, run.scale))
                waits, spent = running.run(load)
            found["memory_mb"].append(peak_memory(coordinator.pid) / 1e6)
        found["permits_per_s"].append(len(waits) / spent)
        found["permit_p99_ms"].append(1000 * sorted(waits)[int(0.99 * len(waits))])
    rows = [
        {"case": "coordination", "side": name, "median": statistics.median(values), "spread": spread(values)}
        for name, values in found.items()
    ]
    targets = {
        "permits_per_s": Target(low=20_000),
        "permit_p99_ms": Target(high=50),
        "memory_mb": Target(high=200),
    }
    notes = [f"{tasks:,} tasks on {connections:,} connections, all in one process beside the coordinator's"]
    return Outcome({name: statistics.median(values) for name, values in found.items()}, rows, targets, notes)


async def _load(address: Address, tasks: int, connections: int, seconds: float) -> tuple[list[float], float]:
    """Return how long each permit took, and how long all of them did.

    Tasks are loops, several of which follow each other on a connection, as the tasks of a worker do. Each
    asks for a permit, gives it back and asks again.
    """
    from millrace.limits.client import Client
    from millrace.limits.registration import Settings

    settings = Settings(max_in_flight=100_000)
    clients = [await Client.limited(address, "load/0", settings) for _ in range(connections)]
    waits: list[float] = []

    async def work(client: Client, count: int) -> None:
        for _ in range(count):
            end = time.perf_counter() + seconds * connections / tasks
            while (began := time.perf_counter()) < end:
                async with client.permit():
                    waits.append(time.perf_counter() - began)

    shares = [tasks // connections + (number < tasks % connections) for number in range(connections)]
    began = time.perf_counter()
    await asyncio.gather(*map(work, clients, shares))
    spent = time.perf_counter() - began
    await asyncio.gather(*(client.close() for client in clients))
    return waits, spent


_WORKER = """
import pickle, sys, time
import pyarrow, pyspark.worker
began = time.perf_counter()
from millrace.engine.runs.run_of import run_of
spec, sources, options = pickle.loads(sys.stdin.buffer.read())
found = next(run_of(spec, {alias: iter([batch]) for alias, batch in sources.items()}, options).run())
print(found.num_rows, time.perf_counter() - began)
"""


def _start(run: Run) -> Outcome:
    """Measure a fresh process, up to its first batch; the first of each kind may compile."""
    batch = pa.record_batch({"k": pa.array(range(1000), pa.int64())})
    left, right = (ColumnRef(alias, "k") for alias in "ab")
    relations = tuple(RelationSpec(key.relation, batch.schema, rows=1000) for key in (left, right))
    small = Compare("<", Column(left), Literal(5, pa.int64()), pa.int64())
    output = (OutputColumn("k", left),)
    specs = {
        "filter": (JoinSpec(relations[:1], (), (small,), output), 5),
        "join": (JoinSpec(relations, (Equality(left, right, pa.int64()),), (), output), 1000),
    }
    outcome = Outcome()
    for kind, (spec, rows) in specs.items():
        side = _first_batch(spec, dict.fromkeys(spec.aliases, batch))
        times = race(run, f"start of a {kind}", {kind: side}, answer=rows)
        outcome.rows += times.rows(case="start")
        outcome.figures[f"first_{kind}_s"] = times.median(kind)
        outcome.targets[f"first_{kind}_s"] = Target(high=0.25)
    return outcome


def _first_batch(spec: JoinSpec, sources: dict[str, Any]) -> Callable[[], Ran]:
    import pickle

    work = pickle.dumps((spec, sources, Options()))

    def call() -> Ran:
        ran = subprocess.run([sys.executable, "-c", _WORKER], input=work, capture_output=True, check=False)
        if ran.returncode:
            raise ExecutionError(f"a fresh process failed: {ran.stderr.decode().strip()[-500:]}")
        rows, seconds = ran.stdout.split()
        return Ran(int(rows), seconds=float(seconds))

    return call


BENCH = Bench(
    measure,
    (*KERNELS, "exchange", "coordination", "start"),
    quick=("1m", "coordination", "start"),
)
