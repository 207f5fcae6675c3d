"""A join of streams whose driver is killed; see :mod:`lab.benchmarks.crashing`.

A child works through the files that are there, one of each stream a micro-batch, to Spark's file sink.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import millrace
from lab.benchmarks.crashing import child
from lab.benchmarks.stream_cases import SCHEMA, Case

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

CASE = Case(3, 600)
BATCHES = 1 << 20
"""More than there will be: only feeds that drift ask."""


class JoinWork:
    """The join, and what it has written; a :class:`lab.benchmarks.crashing.Work`.

    Args:
        spark: Reads what was written, and runs the query to its end.
        folder: Where everything goes.
    """

    module = __name__

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark, self.folder, self.checkpoint = spark, folder, folder / "checkpoint"

    def write(self, batch: int) -> None:
        """Write the files of a micro-batch."""
        CASE.write([self.folder], batch, BATCHES)

    def ask(self) -> None:
        """Nothing is asked of a join."""

    def is_sound(self) -> bool:
        """Whether the sink has committed a part of the batch answer, and nothing twice."""
        return not self._written() - self._answer()

    def finish(self, architecture: str) -> tuple[int, bool]:
        """Work through the rest; returns the rows of the batch answer, and whether the sink has them."""
        run(self._spark, self.folder, architecture).awaitTermination()
        want = self._answer()
        return want.total(), self._written() == want

    def _written(self) -> Counter[tuple[object, ...]]:
        """Return the rows that the sink has committed; files that it has not are left out by Spark."""
        if not any((self.folder / "out" / "_spark_metadata").glob("[0-9]*")):
            return Counter()
        return _rows(self._spark.read.parquet(str(self.folder / "out")))

    def _answer(self) -> Counter[tuple[object, ...]]:
        """Return the rows of Spark's own join over all files."""
        spark = self._spark
        for name in CASE.names:
            spark.read.schema(SCHEMA).parquet(str(self.folder / name)).createOrReplaceTempView(name)
        try:
            return _rows(spark.sql(CASE.text))
        finally:
            for name in CASE.names:
                spark.catalog.dropTempView(name)


def streams(spark: SparkSession, folder: Path) -> dict[str, DataFrame]:
    """Return the streams, one file of each a micro-batch."""
    return {
        name: spark.readStream.schema(SCHEMA)
        .option("maxFilesPerTrigger", 1)
        .parquet(str(folder / name))
        .withWatermark("t", "5 seconds")
        for name in CASE.names
    }


def run(spark: SparkSession, folder: Path, architecture: str) -> StreamingQuery:
    """Start the query over the files that are there; it ends by itself."""
    joined = millrace.sql(CASE.text, spark, streams(spark, folder), {"architecture": architecture})
    return (
        joined.writeStream.format("parquet")
        .option("path", str(folder / "out"))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )


def _rows(df: DataFrame) -> Counter[tuple[object, ...]]:
    table = df.toArrow()
    columns = [table[name].to_pylist() for name in ("k", "t", "total")]
    return Counter((k, t, round(total, 6)) for k, t, total in zip(*columns, strict=True))


if __name__ == "__main__":
    child(lambda *given: run(*given).awaitTermination)
