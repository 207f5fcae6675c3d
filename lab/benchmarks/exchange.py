"""The block exchange against Spark's exchange of rows, both from Parquet files into Python tasks.

The same rows go both ways: two random ``int64`` columns, partitioned by the first, counted by
Python where they arrive. Millrace's tasks read the files themselves and send Arrow blocks through
the shuffle; Spark reads the files, shuffles rows and hands them to Python. The A/A control is
Spark's way a second time in each round.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lab.benchmarks import harness
from lab.benchmarks.harness import Outcome, Target
from lab.benchmarks.show import Ticker
from millrace.errors import ExecutionError
from millrace.options import Options
from millrace.parquet.parquet import open_table, splits
from millrace.spark.dealt_scan import Scan
from millrace.spark.exchange import BLOCK_SCHEMA, BlockReader, Cut
from millrace.spark.hypercube import Axis, Cube
from millrace.spark.parallelism import default_parallelism
from millrace.spark.reports import Sink
from millrace.spark.tasks import ScanTask
from millrace.spark.types import spark_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BLOCKS, ROWS, AGAIN = "blocks", "rows", "rows again"
SIDES = (BLOCKS, ROWS, AGAIN)
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])
_COUNTS = "rows long, blocks long, bytes long"
_ROW_GROUP = 1 << 20
_SEED = 7


@dataclass(frozen=True)
class Arrived:
    """What arrived in all tasks together."""

    rows: int
    blocks: int
    bytes: int


@dataclass(frozen=True)
class CountBlocks:
    """Reads the blocks of one cell and counts what is in them; travels to the tasks."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield one row of counts."""
        from pyspark import TaskContext

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


def by_blocks(spark: SparkSession, path: str, tasks: int) -> DataFrame:
    """Return the counts after a block exchange of the file's rows."""
    names = tuple(SCHEMA.names)
    own = splits(open_table(path), (), names)
    scan = Scan.of(SCHEMA, (), [own[task::tasks] for task in range(tasks)])
    cube = Cube((Axis(tasks, pa.int64(), ((0, "k"),)),))
    options = Options()
    silent = Sink("bench", None, hidden=False)
    task = ScanTask(("t",), (scan,), (Cut(0, cube, options.block_bytes),), options.batch_size, silent)
    blocks = spark.range(0, tasks, 1, numPartitions=tasks).mapInArrow(task, spark_schema(BLOCK_SCHEMA))
    return blocks.repartitionById(tasks, "cell").mapInArrow(CountBlocks(), _COUNTS)


def by_rows(spark: SparkSession, path: str, tasks: int) -> DataFrame:
    """Return the counts after Spark's exchange of the file's rows."""
    return spark.read.parquet(path).repartition(tasks, "k").mapInArrow(count_rows, _COUNTS)


def make_data(folder: Path, rows: int) -> str:
    """Write ``rows`` random rows to a Parquet file in ``folder`` and return its path."""
    random = np.random.default_rng(_SEED)
    path = folder / "rows.parquet"
    with pq.ParquetWriter(path, SCHEMA) as writer:
        for first in range(0, rows, _ROW_GROUP):
            count = min(_ROW_GROUP, rows - first)
            columns = [pa.array(random.integers(0, 1 << 62, count)) for _ in SCHEMA]
            writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=SCHEMA))
    return str(path)


def bench(spark: SparkSession, rows: int, rounds: int, ticker: Ticker) -> Outcome:
    """Run the benchmark.

    Raises:
        OptionError: Too few rounds.
        ExecutionError: Rows were lost or made on the way.
    """
    harness.check_rounds(rounds)
    tasks = default_parallelism(spark)
    with tempfile.TemporaryDirectory(prefix="millrace-") as folder:
        path = make_data(Path(folder), rows)

        def way(make: Callable[[SparkSession, str, int], DataFrame]) -> Callable[[], Arrived]:
            return lambda: _arrived(make(spark, path, tasks))

        sides = {BLOCKS: way(by_blocks), ROWS: way(by_rows), AGAIN: way(by_rows)}
        ticker.says("warm-up")
        arrived = {name: run() for name, run in sides.items()}
        for name, counts in arrived.items():
            if counts.rows != rows:
                raise ExecutionError(f"{name}: {counts.rows} rows arrived, {rows} were sent")
        ticker.says(f"{rows:,} rows")
        seconds = harness.interleave(sides, rounds, ticker.tick)
    medians = {name: harness.median(times) for name, times in seconds.items()}
    figures = {
        "rows_per_s": rows / medians[BLOCKS],
        "bytes_per_row": arrived[BLOCKS].bytes / rows,
        "row_exchange_ratio": medians[BLOCKS] / medians[ROWS],
        "aa_ratio": medians[ROWS] / medians[AGAIN],
        "blocks_sent": arrived[BLOCKS].blocks,
    }
    targets = {"row_exchange_ratio": Target(high=1.0), "aa_ratio": Target(0.9, 1.1, informational=True)}
    table = [
        {
            "exchange": name,
            "median_s": medians[name],
            "spread": harness.spread(times),
            "rows_per_s": round(rows / medians[name]),
        }
        for name, times in seconds.items()
    ]
    return Outcome("exchange", rows, rounds, figures, table, targets)


def _arrived(counts: DataFrame) -> Arrived:
    rows = counts.collect()
    return Arrived(*(sum(row[place] for row in rows) for place in range(3)))
