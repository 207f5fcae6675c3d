"""Loses an executor in the middle of a join, so that map tasks run again; prints what came of it.

The join spreads a DataFrame that comes out of a shuffle: Spark gives its rows in another order when it
computes them again. While the third of four cells runs, the other executor is killed, with its share of all
map output. Cells that are done by then have read what the map tasks wrote at first, and others read what
they write the second time.

Spark 4.3 would notice that the map tasks' output is another: it compares checksums, and does the whole join
again or gives up. Here it is told not to, for rows have to be right also where it does not.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import psutil
import pyarrow as pa

ROWS = 20_000
CELLS = 4


def is_executor(process: psutil.Process) -> bool:
    """Return whether a process is the JVM of an executor."""
    try:
        return any("CoarseGrainedExecutorBackend" in word for word in process.cmdline())
    except psutil.Error:  # it has ended
        return False


def asking(port: int) -> Callable[[int], bool]:
    """Return a predicate that tells this process which cell is running where, and waits for its word."""

    def tell(_: int) -> bool:
        from pyspark import TaskContext

        executors = [each.pid for each in psutil.Process().parents() if is_executor(each)]
        told = [TaskContext.get().partitionId(), executors[0]]
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(json.dumps(told).encode() + b"\n")
            connection.recv(1)
        return True

    return tell


class Killer:
    """Hears which cells run, and kills an executor when the third does."""

    def __init__(self) -> None:
        self.killed: list[int] = []
        self.cells: list[int] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            with connection, connection.makefile() as lines:
                cell, executor = json.loads(lines.readline())
                self.cells.append(cell)
                if len(set(self.cells)) == 3 and not self.killed:
                    self._kill_other(executor)
                connection.sendall(b".")

    def _kill_other(self, executor: int) -> None:
        started = psutil.Process().children(recursive=True)
        others = [each for each in started if is_executor(each) and each.pid != executor]
        self.killed = [each.pid for each in others]
        for each in others:
            each.kill()
        psutil.wait_procs(others)


def main() -> None:
    import pyspark
    from pyspark.sql import SparkSession, functions as sf

    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_HOME", str(Path(pyspark.__file__).parent))
    checksums = "spark.sql.shuffle.orderIndependentChecksum"
    spark = (
        SparkSession.builder.master("local-cluster[2,1,1024]")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.executor.memory", "600m")
        .config("spark.ui.enabled", "false")
        .config("spark.log.level", "OFF")
        .config(f"{checksums}.enabled", "false")
        .config(f"{checksums}.enableFullRetryOnMismatch", "false")
        .getOrCreate()
    )
    from millrace.engine.expressions import Call, Column, ColumnRef
    from millrace.engine.spec import JoinSpec, OutputColumn, RelationSpec
    from millrace.options import Options
    from millrace.predicates import PredicateSpec
    from millrace.spark.block import Block, FrameInput
    from millrace.spark.execute import execute

    killer = Killer()
    big = spark.range(0, ROWS, 1, 6).select(sf.col("id").alias("x"), (sf.col("id") % 97).alias("k"))
    inputs = {
        "big": FrameInput(big.repartition(5), 1 << 30),
        "small": FrameInput(spark.range(1).toDF("s"), 8),
    }
    schema = pa.schema([("x", pa.int64()), ("k", pa.int64())])
    join = JoinSpec(
        (RelationSpec("big", schema), RelationSpec("small", pa.schema([("s", pa.int64())]))),
        residuals=(Call(PredicateSpec("tell", asking(killer.port)), (Column(ColumnRef("small", "s")),)),),
        output=tuple(OutputColumn(name, ColumnRef("big", name)) for name in schema.names),
    )
    run = execute(spark, Block("b", join, inputs), Options(placement="hypercube", cells=CELLS))
    try:
        found = Counter(row.x for row in run.frame.collect())
        outcome = {"wrong": sum(found[n] != 1 for n in range(ROWS)), "rows": found.total()}
    except Exception as error:  # noqa: BLE001  # Spark may give up, but say so
        outcome = {"error": str(error)}
    outcome |= {"killed": len(killer.killed), "ran": len(killer.cells), "plan": run.plan}
    sys.stdout.write(json.dumps(outcome) + "\n")
    spark.stop()


if __name__ == "__main__":
    main()
