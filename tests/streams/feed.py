"""Streams that are files, one each and micro-batch, and the same rows for DuckDB."""

from __future__ import annotations

import datetime as dt
import os
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from millrace.reports.micro_batch import micro_batch
from tests.session import write_stream

SCHEMA = "k bigint, t timestamp, v double, g string"


class Feed:
    def __init__(self, spark, folder: Path, names: tuple[str, ...]):
        self.spark, self.folder, self.names, self.files = spark, folder, names, 0
        self._random = np.random.default_rng(7)
        for name in names:
            (folder / name).mkdir(parents=True)

    def put(self, rows: int, *late: int) -> None:
        """One more file each, or one for each number of late rows of the first stream.

        Times advance by 10 s a file, and are 4 s out of order at most.
        """
        for behind in late or [0]:
            self._put(rows, behind)

    def _put(self, rows: int, late: int) -> None:
        begin = 1_600_000_000_000_000 + self.files * 10_000_000
        for name in self.names:
            times = begin + self._random.integers(0, 14_000_000, rows)
            if late and name == self.names[0]:
                times[:late] -= 200_000_000
            keys = self._random.integers(0, 60, rows)
            columns = {
                "k": pa.array(keys, mask=keys == 59),
                "t": pa.array(times, pa.timestamp("us", "UTC")),
                "v": self._random.random(rows),
                "g": np.where(keys % 2, "odd", None),
            }
            self.write(name, pa.table(columns))
        self.files += 1

    def write(self, name: str, table: pa.Table) -> None:
        path = self.folder / name / f"{self.files:05}.parquet"
        pq.write_table(table, path)
        os.utime(path, (1e9 + self.files, 1e9 + self.files))

    def tables(self, schema: str = SCHEMA, late: int = 5) -> dict:
        """Return the streams, whose rows are at most so many seconds late."""
        return {
            name: self.spark.readStream.schema(schema)
            .option("maxFilesPerTrigger", 1)
            .parquet(str(self.folder / name))
            .withWatermark("t", f"{late} seconds")
            for name in self.names
        }

    def run(self, df, output: str = "out") -> list:
        """Run a query until nothing is left, and return the progress of its micro-batches."""
        return write_stream(df, self.folder, output).recentProgress

    def batches(self, df, name: str) -> dict[int, list[tuple]]:
        """Run a query until nothing is left, and return the rows of its micro-batches, by their numbers."""
        found: dict[int, list[tuple]] = {}

        def keep(rows, number):
            if taken := _sorted([tuple(row) for row in rows.collect()]):
                found[number] = taken

        writer = df.writeStream.foreachBatch(keep).trigger(availableNow=True)
        writer.option(
            "checkpointLocation", str(self.folder / f"{name}_checkpoint")
        ).start().awaitTermination()
        return found

    def answer(self, text: str, files: slice = slice(None)) -> list[tuple]:
        """The rows of a batch join, over all files or over some."""
        with duckdb.connect() as connection:
            for name in self.names:
                paths = sorted(map(str, (self.folder / name).glob("*.parquet")))[files]
                connection.execute(f"CREATE VIEW {name} AS FROM read_parquet({paths})")
            return _sorted(connection.execute("SET TimeZone = 'UTC'").execute(text).fetchall())

    def rows(self, output: str = "out") -> list[tuple]:
        with duckdb.connect() as connection:
            found = f"FROM '{self.folder / output}/*.parquet'"
            return _sorted(connection.execute("SET TimeZone = 'UTC'").execute(found).fetchall())


def _sorted(rows: list[tuple]) -> list[tuple]:
    return sorted(map(plain, rows), key=repr)


def plain(row: tuple) -> tuple:
    """A row without time zones: all times are UTC."""
    return tuple(value.replace(tzinfo=None) if isinstance(value, dt.datetime) else value for value in row)


def figures(progress) -> list:
    """The join's figures in each micro-batch."""
    return [batch for batch in map(micro_batch, progress) if batch is not None]
