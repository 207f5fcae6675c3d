"""Parts of the engine by themselves: the join kernel, the exchange of blocks, permits, the start of a worker.

*kernel*: a symmetric hash join of random ``int64`` keys, about one match a row, against DuckDB, one thread
each. Keys lie in the range of the tables' size, as numbers that a database hands out do;
*scattered* ones lie all over ``int64``, as hashes do. *exchange*: rows of two columns from a Parquet file
into Python tasks, as Arrow blocks and as Spark's rows. *skew*: a join of two tables by a key of which one
value is in three of ten rows; what the fullest cell receives, and the time beside Spark's. *coordination*:
permits a second that a coordinator's process gives to tasks of this one. *start*: the first batch of a
process that has loaded what Spark's worker loads by itself.
"""

from __future__ import annotations

import asyncio
import pickle
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import millrace
from lab.bench.harness import Bench, Ran, Run, Target, spread
from lab.joins import block, duckdb_counts
from millrace.engine.kernels import Multimap
from millrace.engine.peak import peak_memory
from millrace.engine.plan.expressions import Column, ColumnRef, Compare, Literal
from millrace.engine.plan.spec import JoinSpec
from millrace.errors import ExecutionError
from millrace.options import Options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from millrace.limits.client import Client
    from millrace.limits.registration import Address

KERNELS = {"5m": 5_000_000, "1m": 1_000_000, "5m_scattered": 5_000_000}
BATCH = 10_000
EXCHANGED = 10_000_000
SKEWED, CELLS, FREQUENT = 10_000_000, 8, 0.3
TASKS, CONNECTIONS = 2000, 500
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])
_COUNTS = "rows long, blocks long, bytes long"


def measure(run: Run) -> None:
    """Run the benchmark."""
    parts = {"exchange": _exchange, "skew": _skew, "coordination": _coordination, "start": _start}
    for name in run.names:
        parts.get(name, _kernel)(run, name)


def _kernel(run: Run, name: str) -> None:
    rows = max(BATCH, round(KERNELS[name] * run.scale))
    left, right = keys(rows, scattered="scattered" in name)
    with duckdb_counts({"l": pa.table({"k": left}), "r": pa.table({"k": right})}) as count:
        sides = {
            "millrace": lambda: symmetric_join(left, right),
            "duckdb": lambda: count("SELECT count(*) FROM l JOIN r ON l.k = r.k"),
        }
        times = run.race(name, sides, control="millrace")
    run.figures[f"duckdb_ratio_{name}"] = times.ratio("millrace", "duckdb")
    run.rows += times.rows()


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
                matches += len(walk.pairs(4 * BATCH)[0])
    return matches


def count_blocks(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Read the blocks of one cell; yield one row of counts."""
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
    from millrace.parquet.discovery import open_table
    from millrace.parquet.tables import splits
    from millrace.spark.exchange import BLOCK_SCHEMA, Cut
    from millrace.spark.hypercube import Axis, Cube
    from millrace.spark.reports import Sink
    from millrace.spark.task_inputs import Scan
    from millrace.spark.tasks import ScanTask
    from millrace.spark.types import spark_schema

    own = splits(open_table(path), (), tuple(SCHEMA.names))
    scan = Scan.of(SCHEMA, (), [own[task::tasks] for task in range(tasks)])
    cube, options = Cube((Axis(tasks, pa.int64(), ((0, "k"),)),)), Options()
    silent = Sink("bench", None, hidden=False)
    task = ScanTask({"t": (scan, Cut(0, cube, options.block_bytes))}, options.batch_size, silent)
    blocks = run.spark.range(0, tasks, 1, numPartitions=tasks).mapInArrow(task, spark_schema(BLOCK_SCHEMA))
    return blocks.repartitionById(tasks, "cell").mapInArrow(count_blocks, _COUNTS)


def _exchange(run: Run, name: str) -> None:
    from millrace.spark.session import default_parallelism

    rows, tasks = round(EXCHANGED * run.scale), default_parallelism(run.spark)
    with tempfile.TemporaryDirectory(prefix="millrace-") as folder:
        path = f"{folder}/rows.parquet"
        random = np.random.default_rng(7)
        columns = [pa.array(random.integers(0, 1 << 62, rows)) for _ in SCHEMA]
        pq.write_table(pa.Table.from_arrays(columns, schema=SCHEMA), path, row_group_size=1 << 20)

        def arrived(counts: DataFrame) -> Ran:
            found = counts.collect()
            sums = {each: sum(row[each] for row in found) for each in ("rows", "blocks", "bytes")}
            return Ran(sums.pop("rows"), sums)

        def by_rows() -> Ran:
            read = run.spark.read.parquet(path)
            return arrived(read.repartition(tasks, "k").mapInArrow(count_rows, _COUNTS))

        sides = {"blocks": lambda: arrived(_blocks(run, path, tasks)), "rows": by_rows}
        times = run.race(name, sides, control="rows", answer=rows)
    run.figures |= {
        "rows_per_s": rows / times.median("blocks"),
        "bytes_per_row": times.note("blocks", "bytes") / rows,
        "row_exchange_ratio": times.ratio("blocks", "rows"),
        "blocks_sent": times.note("blocks", "blocks"),
    }
    run.rows += times.rows()


def _skew(run: Run, name: str) -> None:
    rows, random = round(SKEWED * run.scale), np.random.default_rng(11)
    keys = np.arange(rows // 2)
    drawn = np.where(random.random(rows) < FREQUENT, 0, random.integers(0, len(keys), rows))
    tables = {
        "f": pa.table({"k": drawn, "v": random.integers(0, 100, rows)}),
        "d": pa.table({"k": keys, "w": keys}),
    }
    options = {"placement": "hypercube", "cells": CELLS}
    text = "SELECT count(*), sum(f.v + d.w) FROM f JOIN d ON f.k = d.k"
    with tempfile.TemporaryDirectory(prefix="millrace-") as folder:
        paths = {table: f"{folder}/{table}.parquet" for table in tables}
        for table, path in paths.items():
            pq.write_table(tables[table], path, row_group_size=1 << 18)
            run.spark.read.parquet(path).createOrReplaceTempView(f"skew_{table}")

        def by_millrace() -> Ran:
            query = millrace.query(text, spark=run.spark, tables=paths, options=options)
            [row] = query.df.collect()
            received = [cell.rows_exchanged for _, cell in query.report().cells() if cell.cell >= 0]
            return Ran(tuple(row), {"fullest": max(received), "received": sum(received)})

        of_spark = text.replace("FROM f JOIN d", "FROM skew_f f JOIN skew_d d")
        sides = {"millrace": by_millrace, "spark": lambda: tuple(*run.spark.sql(of_spark).collect())}
        wanted = rows, sum(int(tables["f"][column].to_numpy().sum()) for column in "kv")
        times = run.race(name, sides, control="millrace", answer=wanted)
    fullest, received = (times.note("millrace", each) for each in ("fullest", "received"))
    run.figures |= {
        "skew_fullest_over_mean": fullest * CELLS / received,
        "skew_spark_ratio": times.ratio("millrace", "spark"),
    }
    run.rows += times.rows()


def _coordination(run: Run, name: str) -> None:
    """Measure permits; each round has a coordinator of its own, and everything is encrypted as always."""
    from millrace.limits.event_loop import runner
    from millrace.limits.process import CoordinatorProcess
    from millrace.limits.registration import Registration

    tasks, connections = (40, 20) if run.quick else (TASKS, CONNECTIONS)
    found: dict[str, list[float]] = {"permits_per_s": [], "permit_p99_ms": [], "memory_mb": []}
    for number in range(run.rounds):
        run.says(f"{name}: round {number + 1}")
        with closing(CoordinatorProcess()) as coordinator:
            coordinator.register("load", [Registration("load", max_in_flight=100_000)])
            with runner() as running:
                load = _load(coordinator.address, tasks, connections, 5.0 * min(1.0, run.scale))
                waits, spent = running.run(load)
            found["memory_mb"].append(peak_memory(coordinator.pid) / 1e6)
        found["permits_per_s"].append(len(waits) / spent)
        found["permit_p99_ms"].append(1000 * sorted(waits)[int(0.99 * len(waits))])
    for each, values in found.items():
        run.figures[each] = statistics.median(values)
        run.rows.append({"case": name, "side": each, "median": run.figures[each], "spread": spread(values)})
    run.notes.append(f"{tasks:,} tasks on {connections:,} connections, all beside the coordinator's process")


async def _load(address: Address, tasks: int, connections: int, seconds: float) -> tuple[list[float], float]:
    """Return how long each permit took, and how long all of them did.

    Tasks are loops, several of which follow each other on a connection, as the tasks of a worker do. Each
    asks for a permit, gives it back and asks again.
    """
    from millrace.limits.client import Client

    clients = [await Client.connect(address, "load/0/0") for _ in range(connections)]
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
from millrace.engine.eddy.run import Run
spec, sources, options = pickle.loads(sys.stdin.buffer.read())
found = next(Run(spec, {alias: iter([batch]) for alias, batch in sources.items()}, options).run())
print(found.num_rows, time.perf_counter() - began)
"""


def _start(run: Run, name: str) -> None:
    """Measure a fresh process, up to its first batch; the first of each kind may compile."""
    table = pa.table({"k": pa.array(range(1000), pa.int64())})
    small = Compare("<", Column(ColumnRef("a", "k")), Literal(5, pa.int64()), pa.int64())
    filtering = block({"a": table}, predicates=[small], all_columns=True)
    joining = block({"a": table, "b": table}, "a.k = b.k", all_columns=True)
    for kind, spec, rows in (("filter", filtering, 5), ("join", joining, 1000)):
        sources = dict.fromkeys(spec.aliases, table.to_batches()[0])
        times = run.race(f"{name}, {kind}", {kind: _first_batch(spec, sources)}, answer=rows)
        run.rows += times.rows()
        run.figures[f"first_{kind}_s"] = times.median(kind)


def _first_batch(spec: JoinSpec, sources: dict[str, pa.RecordBatch]) -> Callable[[], Ran]:
    work = pickle.dumps((spec, sources, Options()))

    def call() -> Ran:
        ran = subprocess.run([sys.executable, "-c", _WORKER], input=work, capture_output=True, check=False)
        if ran.returncode:
            raise ExecutionError(f"a fresh process failed: {ran.stderr.decode().strip()[-500:]}")
        rows, seconds = ran.stdout.split()
        return Ran(int(rows), seconds=float(seconds))

    return call


TARGETS = {
    "duckdb_ratio_5m": Target(high=1.2),
    "duckdb_ratio_1m": Target(high=1.2),
    "row_exchange_ratio": Target(high=1.0),
    "skew_fullest_over_mean": Target(high=1.5),
    "permits_per_s": Target(low=25_000),
    "permit_p99_ms": Target(high=40),
    "memory_mb": Target(high=130),
    "first_filter_s": Target(high=0.25),
    "first_join_s": Target(high=0.25),
}
BENCH = Bench(
    measure,
    (*KERNELS, "exchange", "skew", "coordination", "start"),
    TARGETS,
    quick=("1m", "coordination", "start"),
)
