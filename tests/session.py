"""The Spark session of the tests."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

os.environ.setdefault("SPARK_CONF_DIR", str(Path(__file__).parent / "conf"))
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
STREAMING = {"spark.sql.streaming.stateStore.providerClass": ROCKSDB, "spark.sql.shuffle.partitions": "2"}
"""What joins of streams need, and few tasks."""


def session():
    """Return a classic Spark session with two cores and a fixed time zone; `conf` has what all sessions have.

    From then on joins are taken as if starting Python took no time, however small they are.
    """
    from pyspark.sql import SparkSession

    from millrace.spark import daemon
    from millrace.sql.blocks import cost_model

    cost_model.start_seconds = lambda spark, saved: 0.0
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    # They print every error that Spark raises, with its stack, beside raising it.
    for logger in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        logging.getLogger(logger).setLevel(logging.CRITICAL)
    return (
        SparkSession.builder.master("local[2]")
        .appName("millrace tests")
        .config("spark.driver.memory", "2g")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.sql.session.timeZone", "UTC")
        .config(daemon.SETTING, daemon.MODULE)
        .getOrCreate()
    )


def wait_for(find, seconds: float = 60.0):
    """Return what a function returns, once that is something."""
    deadline = time.monotonic() + seconds
    while not (found := find()):
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.05)
    return found


def write_stream(stream, folder: Path, name: str = "out", title: str | None = None):
    """Write all that a stream has to a folder of that name, from where an earlier call has stopped."""
    writer = stream.writeStream if title is None else stream.writeStream.queryName(title)
    query = (
        writer.format("parquet")
        .option("path", str(folder / name))
        .option("checkpointLocation", str(folder / f"{name}_checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return query


@contextmanager
def changed(spark, settings: Mapping[str, str]) -> Iterator[None]:
    before = {name: spark.conf.get(name, None) for name in settings}
    try:
        for name, value in settings.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, value in before.items():
            spark.conf.unset(name) if value is None else spark.conf.set(name, value)
