"""Lookups over HTTP: requests, time and the flow of results, against what is written without them.

Seconds include Spark's job. The service is a process of its own, which counts what it is asked. It knows
rows ``{"k": k, "v": …}`` for the whole numbers below ``keys``: one at ``/item/{k}``, after a fixed latency,
and all of them at ``/table``, page by page after a first delay.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

import pandas as pd

import millrace
from lab.bench.harness import Bench, Ran, Run, Target, Times, timed
from millrace.errors import ExecutionError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

QUERY = "SELECT r.id, r.k, p.v FROM r JOIN p ON r.k = p.k"
START = 2.0
"""Seconds that a job may take beside its requests."""

LATENCY = 0.05
PAGE = 10
SHARES = {"first": 0.0, "quarter": 0.25, "half": 0.5, "three_quarters": 0.75, "all": 1.0}
"""Shares of the results, whose arrival is measured from the first request that the service sees."""


@dataclass(frozen=True)
class Rows:
    """The rows that are to be enriched: ``copies`` of each of ``keys`` keys, in an order that mixes them."""

    keys: int
    copies: int

    @property
    def count(self) -> int:
        return self.keys * self.copies

    def frame(self, run: Run) -> DataFrame:
        """Return them as ``(id, k)``."""
        ids = run.spark.range(0, self.count, 1, numPartitions=2)
        return ids.selectExpr("id", f"(id * 7907 + id div {self.keys}) % {self.keys} AS k")

    def check(self, side: str, found: Sequence[Sequence[Any]]) -> int:
        """Return the number of rows ``(id, k, v)``; raise unless these are the right ones."""
        expected = {n: (n * 7907 + n // self.keys) % self.keys for n in range(self.count)}
        if len(found) != self.count or any(expected[n] != k or v != _value(k) for n, k, v in found):
            raise ExecutionError(f"{side}: {len(found)} rows, not all of them right; expected {self.count}")
        return len(found)


class Service:
    """The service of one race, a process of its own; ``url`` has no slash at its end.

    Args:
        manners: ``keys`` that it has, the ``delay`` before the first page of the table, and the seconds
            before each ``page`` after it.
    """

    def __init__(self, **manners: float) -> None:
        import aiohttp  # noqa: F401  # a missing one is an error here, not in the process

        context = multiprocessing.get_context("spawn")
        self._seen: Any = context.Array("d", 3)
        ours, theirs = context.Pipe()
        arguments = (theirs, self._seen, {"delay": 0.0, "page": 0.0, **manners})
        self._process = context.Process(target=_serve, args=arguments, daemon=True)
        self._process.start()
        self.url = f"http://127.0.0.1:{ours.recv()}"

    def seen(self, *, reset: bool = False) -> tuple[float, float, float]:
        """Return requests for items, the most at once, and when the first of any kind came."""
        requests, most, first = self._seen
        if reset:
            self._seen[:] = [0.0] * 3
        return requests, most, first

    def close(self) -> None:
        self._process.terminate()
        self._process.join()


def _serve(ready: Connection, seen: Any, manners: Mapping[str, float]) -> None:
    asyncio.run(_served(ready, seen, manners))


async def _served(ready: Connection, seen: Any, manners: Mapping[str, float]) -> None:
    from aiohttp import web

    now, keys = 0, int(manners["keys"])

    async def item(request: web.Request) -> web.Response:
        nonlocal now
        key, now = int(request.match_info["k"]), now + 1
        seen[:] = seen[0] + 1, max(seen[1], now), seen[2] or time.time()
        try:
            await asyncio.sleep(LATENCY)
            return web.json_response([_row(key)] if 0 <= key < keys else [])
        finally:
            now -= 1

    async def table(request: web.Request) -> web.Response:
        seen[2] = seen[2] or time.time()
        low = int(request.query.get("from", "0"))
        await asyncio.sleep(manners["page" if low else "delay"])
        high = min(low + PAGE, keys)
        following = f"/table?from={high}" if high < keys else None
        return web.json_response({"rows": [_row(key) for key in range(low, high)], "next": following})

    application = web.Application()
    application.router.add_get("/item/{k}", item)
    application.router.add_get("/table", table)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    ready.send(runner.addresses[0][1])
    await asyncio.Event().wait()


def _row(key: int) -> dict[str, Any]:
    return {"k": key, "v": _value(key)}


def _value(key: int) -> str:
    """Return what the service knows of a key."""
    return f"value {key * 7919 % 10_007}"


def measure(run: Run) -> None:
    """Run the benchmark."""
    asked: list[float] = []
    for name in run.names:
        rows, times = CASES[name](run)
        run.rows += times.rows(rows=rows.count, keys=rows.keys)
        if name != "hybrid":
            asked += [note["requests"] / rows.keys for note in times.notes["millrace"]]
    if asked:
        run.figures["requests_per_key"] = max(asked, key=lambda each: abs(each - 1))  # farthest from 1


def _limit(run: Run) -> tuple[Rows, Times]:
    """Measure how close requests come to what their latency and their limit allow."""
    rows, in_flight = Rows(max(10, round(4_000 * run.scale)), 4), 32
    with closing(Service(keys=rows.keys)) as service:
        sides = {"millrace": _by_millrace(run, rows, service, in_flight=in_flight)}
        times = _raced(run, "limit", sides, service, control="millrace")
    best = rows.keys * LATENCY / in_flight
    run.figures["time_limit_ratio"] = (times.median("millrace") - START) / best
    return rows, times


def _naive(run: Run) -> tuple[Rows, Times]:
    """Measure against pandas UDFs that ask for each row, with a cache in each partition and without."""
    rows = Rows(max(10, round(200 * run.scale)), 4)
    with closing(Service(keys=rows.keys)) as service:
        sides = {
            "millrace": _by_millrace(run, rows, service, in_flight=32),
            "pandas UDF": _by_udf(run, rows, service, cached=False),
            "pandas UDF with a cache": _by_udf(run, rows, service, cached=True),
        }
        times = _raced(run, "naive", sides, service)
    ours, one, other = sides
    run.figures["naive_udf_ratio"] = times.ratio(ours, one)
    run.figures["cached_udf_ratio"] = times.ratio(ours, other)
    return rows, times


def _hybrid(run: Run) -> tuple[Rows, Times]:
    """Measure an index and a scan together: the index is ahead at first, the scan begins late and is fast."""
    rows = Rows(max(10, round(1_000 * run.scale)), 1)
    ways = {"millrace": (True, True), "index alone": (True, False), "scan alone": (False, True)}
    with closing(Service(keys=rows.keys, delay=4.0 * run.scale, page=0.01)) as service:
        sides = {
            name: _by_millrace(run, rows, service, in_flight=8, index=index, scan=scan, stream=True)
            for name, (index, scan) in ways.items()
        }
        times = _raced(run, "hybrid", sides, service)
    ours, *alone = sides
    run.figures["hybrid_worst_ratio"] = max(
        times.note(ours, share) / min(times.note(side, share) for side in alone)
        for share in (f"{name}_s" for name in SHARES if name != "first")
    )
    return rows, times


Side = Callable[[], tuple[int, Mapping[str, float]]]
"""Returns rows, and when shares of them came."""


def _raced(run: Run, name: str, sides: Mapping[str, Side], service: Service, control: str = "") -> Times:
    """Measure sides; notes also have what the service has seen."""

    def noting(side: Side) -> Callable[[], Ran]:
        def noted() -> Ran:
            service.seen(reset=True)
            seconds, (rows, came) = timed(side)
            requests, most, _ = service.seen()
            return Ran(rows, {"requests": int(requests), "in_flight": int(most), **came}, seconds)

        return noted

    return run.race(name, {side: noting(call) for side, call in sides.items()}, control=control)


def _by_millrace(
    run: Run,
    rows: Rows,
    service: Service,
    *,
    in_flight: int,
    index: bool = True,
    scan: bool = False,
    stream: bool = False,
) -> Side:
    """Return what joins the rows with the service by an index, a scan or both.

    With ``stream`` results are taken as they come, and it also returns when shares of them were there.
    """
    table: Any = millrace.http(f"{service.url}/table", rows="$.rows[*]", next="$.next")
    column = "k" if index else "v"  # which nothing binds
    item = millrace.http(f"{service.url}/item/{{{column}}}", max_in_flight=in_flight)
    prices = millrace.lookup("p", "k bigint, v string", bind=[column], via=item, scan=table if scan else None)

    def call() -> tuple[int, Mapping[str, float]]:
        query = millrace.query(QUERY, spark=run.spark, tables={"r": rows.frame(run), "p": prices})
        if not stream:
            return rows.check("millrace", query.df.collect()), {}
        found: list[tuple[Any, ...]] = []
        came: list[float] = []
        for batch in query.to_batches():
            found += zip(*(column.to_pylist() for column in batch.columns), strict=True)
            came += [time.time()] * batch.num_rows
        *_, first = service.seen()
        places = {name: max(0, round(share * rows.count) - 1) for name, share in SHARES.items()}
        return rows.check("millrace", found), {f"{name}_s": came[at] - first for name, at in places.items()}

    return call


def _by_udf(run: Run, rows: Rows, service: Service, *, cached: bool) -> Side:
    from pyspark.sql.pandas.functions import pandas_udf

    url = service.url

    def look_up(keys: pd.Series) -> pd.Series:
        import functools

        import httpx

        with httpx.Client() as client:

            def one(key: int) -> str:
                return str(client.get(f"{url}/item/{key}").json()[0]["v"])

            return keys.map(functools.cache(one) if cached else one)

    of_pandas: Any = pandas_udf  # its stubs do not know a Series in, a Series out

    def call() -> tuple[int, Mapping[str, float]]:
        found = rows.frame(run).withColumn("v", of_pandas(look_up, "string")("k")).collect()
        return rows.check("pandas UDF", found), {}

    return call


TARGETS = {
    "requests_per_key": Target(1, 1),
    "time_limit_ratio": Target(high=1.1),
    "naive_udf_ratio": Target(high=1),
    "hybrid_worst_ratio": Target(high=1.1),
}
CASES = {"limit": _limit, "naive": _naive, "hybrid": _hybrid}
BENCH = Bench(measure, tuple(CASES), TARGETS, quick=("naive", "hybrid"))
