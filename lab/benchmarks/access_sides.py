"""The sides of the access benchmark: Millrace's lookups, and what users of PySpark write without them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pandas as pd

import millrace
from lab.benchmarks.access_service import Seen, Service, value
from millrace.errors import ExecutionError
from millrace.options import Options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

QUERY = "SELECT r.id, r.k, p.v FROM r JOIN p ON r.k = p.k"
SCHEMA = "k bigint, v string"


@dataclass
class Side:
    """One way to run a case.

    Attributes:
        run: Runs it and checks its rows; returns when the first of them was there, a quarter, a half, three
            quarters and all, in seconds from the first request on; or nothing.
        seconds: Of each round.
        shares: What ``run`` returned in each round.
        seen: What the service was asked in each round.
    """

    run: Callable[[], tuple[float, ...]]
    seconds: list[float] = field(default_factory=list)
    shares: list[tuple[float, ...]] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)


@dataclass(frozen=True)
class Rows:
    """The rows that are to be enriched: ``copies`` of each of ``keys`` keys, in an order that mixes them."""

    keys: int
    copies: int

    @property
    def count(self) -> int:
        """Number of rows."""
        return self.keys * self.copies

    def frame(self, spark: SparkSession, partitions: int = 2) -> DataFrame:
        """Return them as ``(id, k)``."""
        ids = spark.range(0, self.count, 1, numPartitions=partitions)
        return ids.selectExpr("id", f"(id * 7907 + id div {self.keys}) % {self.keys} AS k")

    def check(self, side: str, found: Sequence[tuple[int, int, str]]) -> None:
        """Raise unless these are the right rows."""
        expected = {n: (n * 7907 + n // self.keys) % self.keys for n in range(self.count)}
        if len(found) != self.count or any(expected[n] != k or v != value(k) for n, k, v in found):
            raise ExecutionError(f"{side}: {len(found)} rows, not all of them right; expected {self.count}")


def by_millrace(
    spark: SparkSession,
    rows: Rows,
    service: Service,
    side: str,
    *,
    in_flight: int,
    index: bool = True,
    scan: bool = False,
    stream: bool = False,
    options: Options | None = None,
) -> Callable[[], tuple[float, ...]]:
    """Return what joins the rows with the service by an index, a scan or both.

    With ``stream`` results are taken as they come, and it returns when shares of them were there.
    """
    table: Any = millrace.http(f"{service.url}/table", rows="$.rows[*]", next="$.next")
    column = "k" if index else "v"  # which nothing binds
    item = millrace.http(f"{service.url}/item/{{{column}}}", max_in_flight=in_flight)
    prices = millrace.lookup("p", SCHEMA, bind=[column], via=item, scan=table if scan else None)

    def run() -> tuple[float, ...]:
        query = millrace.query(QUERY, spark, {"r": rows.frame(spark), "p": prices}, options)
        if not stream:
            rows.check(side, [tuple(row) for row in query.df.collect()])
            return ()
        found: list[tuple[Any, ...]] = []
        came: list[float] = []
        for batch in query.stream_results():
            found += zip(*(column.to_pylist() for column in batch.columns), strict=True)
            came += [time.time()] * batch.num_rows
        rows.check(side, found)
        first = service.seen().first
        return tuple(came[max(0, round(share * rows.count) - 1)] - first for share in (0, 0.25, 0.5, 0.75, 1))

    return run


def by_model(
    spark: SparkSession, rows: Rows, service: Service, *, batch: int, in_flight: int
) -> Callable[[], tuple[float, ...]]:
    """Return what filters the rows by a language model, which is asked for several in one request."""
    even = millrace.llm_filter(
        "Is it even: {k}", model="m", base_url=f"{service.url}/v1", batch=batch, max_in_flight=in_flight
    )

    def run() -> tuple[float, ...]:
        found = [row.k for row in millrace.where(rows.frame(spark), even).collect()]
        if sorted(set(found)) != list(range(0, rows.keys, 2)) or len(found) != rows.copies * len(set(found)):
            raise ExecutionError(f"llm: {len(found)} rows, not all of them right")
        return ()

    return run


def by_udf(
    spark: SparkSession, rows: Rows, service: Service, side: str, *, cached: bool
) -> Callable[[], tuple[float, ...]]:
    """Return what asks for each row in a pandas UDF, with or without a cache in each partition."""
    from pyspark.sql.pandas.functions import pandas_udf

    url = service.url

    def look_up(keys: pd.Series) -> pd.Series:
        import functools

        import httpx

        with httpx.Client() as client:

            def one(key: int) -> str:
                return str(client.get(f"{url}/item/{key}").json()[0]["v"])

            known = functools.cache(one) if cached else one
            return keys.map(known)

    of_pandas: Any = pandas_udf  # its stubs do not know a Series in, a Series out

    def run() -> tuple[float, ...]:
        frame = rows.frame(spark)
        found = frame.withColumn("v", of_pandas(look_up, "string")("k")).collect()
        rows.check(side, [tuple(row) for row in found])
        return ()

    return run
