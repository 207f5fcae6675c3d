"""Lookups over HTTP: requests, time and the flow of results, against what is written without them.

Seconds include Spark's job. The service is a process of its own, which counts what it is asked. It knows
rows ``{"k": k, "v": …}`` for the whole numbers below ``keys``: one at ``/item/{k}``, after a fixed latency,
and all of them at ``/table``, page by page after a first delay.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

import pandas as pd

import millrace
from lab.bench.harness import Bench, Ran, Run, Target, Times, timed
from millrace.errors import ExecutionError

if TYPE_CHECKING:
    from aiohttp import web
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
        """Number of rows."""
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


@dataclass(frozen=True)
class Service:
    """The service, as the benchmark sees it; ``url`` has no slash at its end."""

    url: str

    def behave(self, **manners: float) -> None:
        """Set how it behaves from now on, and have it count from 0.

        Args:
            manners: ``keys`` that it has, the ``latency`` of an item, the ``delay`` before the first page of
                the table, and the seconds before each ``page`` after it.
        """
        self._call("/behave", manners)

    def seen(self) -> dict[str, float]:
        """Return ``requests`` for items, the ``most`` at once, and when the ``first`` of any kind came."""
        return self._call("/seen")

    def _call(self, path: str, data: Mapping[str, float] | None = None) -> dict[str, float]:
        body = None if data is None else json.dumps(data).encode()
        with urllib.request.urlopen(self.url + path, body, timeout=10) as answer:  # noqa: S310  # on loopback
            return dict(json.load(answer))


@contextmanager
def serving() -> Iterator[Service]:
    """Run the service until the block ends."""
    import aiohttp  # noqa: F401  # a missing one is an error here, not in the process

    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs,), daemon=True)
    process.start()
    try:
        yield Service(f"http://127.0.0.1:{ours.recv()}")
    finally:
        process.terminate()
        process.join()


def _serve(ready: Connection) -> None:
    asyncio.run(_Server().run(ready))


class _Server:
    def __init__(self) -> None:
        self._manners: dict[str, float] = {}
        self._seen: dict[str, float] = {}
        self._now = 0

    async def run(self, ready: Connection) -> None:
        from aiohttp import web

        application = web.Application()
        application.router.add_get("/item/{k}", self.item)
        application.router.add_get("/table", self.table)
        application.router.add_post("/behave", self.behave)
        application.router.add_get("/seen", self.seen)
        runner = web.AppRunner(application)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        ready.send(runner.addresses[0][1])
        await asyncio.Event().wait()

    async def item(self, request: web.Request) -> web.Response:
        key, seen = int(request.match_info["k"]), self._seen
        self._now += 1
        seen |= {"requests": seen["requests"] + 1, "most": max(seen["most"], self._now)}
        seen["first"] = seen["first"] or time.time()
        try:
            await asyncio.sleep(self._manners["latency"])
            return _json([_row(key)] if 0 <= key < self._manners["keys"] else [])
        finally:
            self._now -= 1

    async def table(self, request: web.Request) -> web.Response:
        self._seen["first"] = self._seen["first"] or time.time()
        low, keys = int(request.query.get("from", "0")), int(self._manners["keys"])
        await asyncio.sleep(self._manners["page"] if low else self._manners["delay"])
        high = min(low + PAGE, keys)
        following = f"/table?from={high}" if high < keys else None
        return _json({"rows": [_row(key) for key in range(low, high)], "next": following})

    async def behave(self, request: web.Request) -> web.Response:
        self._manners = {"delay": 0.0, "page": 0.0} | await request.json()
        self._seen = {"requests": 0, "most": 0, "first": 0.0}
        return _json({})

    async def seen(self, request: web.Request) -> web.Response:
        return _json(self._seen)


def _json(document: Any) -> web.Response:
    from aiohttp import web

    return web.json_response(document)


def _row(key: int) -> dict[str, Any]:
    return {"k": key, "v": _value(key)}


def _value(key: int) -> str:
    """Return what the service knows of a key."""
    return f"value {key * 7919 % 10_007}"


def measure(run: Run) -> None:
    """Run the benchmark."""
    asked: list[float] = []
    with serving() as service:
        for name in run.names:
            rows, times = CASES[name](run, service)
            run.rows += times.rows(rows=rows.count, keys=rows.keys)
            if name != "hybrid":
                asked += [note["requests"] / rows.keys for note in times.notes["millrace"]]
    if asked:
        run.figures["requests_per_key"] = max(asked, key=lambda each: abs(each - 1))  # farthest from 1


def _limit(run: Run, service: Service) -> tuple[Rows, Times]:
    """Measure how close requests come to what their latency and their limit allow."""
    rows, in_flight = Rows(max(10, round(4_000 * run.scale)), 4), 32
    sides = {"millrace": _by_millrace(run, rows, service, in_flight=in_flight)}
    times = _raced(run, "limit", sides, service, control="millrace", keys=rows.keys)
    best = rows.keys * LATENCY / in_flight
    run.figures["time_limit_ratio"] = (times.median("millrace") - START) / best
    return rows, times


def _naive(run: Run, service: Service) -> tuple[Rows, Times]:
    """Measure against pandas UDFs that ask for each row, with a cache in each partition and without."""
    rows = Rows(max(10, round(200 * run.scale)), 4)
    sides = {
        "millrace": _by_millrace(run, rows, service, in_flight=32),
        "pandas UDF": _by_udf(run, rows, service, cached=False),
        "pandas UDF with a cache": _by_udf(run, rows, service, cached=True),
    }
    times = _raced(run, "naive", sides, service, keys=rows.keys)
    ours, one, other = sides
    run.figures["naive_udf_ratio"] = times.ratio(ours, one)
    run.figures["cached_udf_ratio"] = times.ratio(ours, other)
    return rows, times


def _hybrid(run: Run, service: Service) -> tuple[Rows, Times]:
    """Measure an index and a scan together: the index is ahead at first, the scan begins late and is fast."""
    rows = Rows(max(10, round(1_000 * run.scale)), 1)
    sides = {
        "millrace": _by_millrace(run, rows, service, in_flight=8, scan=True, stream=True),
        "index alone": _by_millrace(run, rows, service, in_flight=8, stream=True),
        "scan alone": _by_millrace(run, rows, service, in_flight=8, scan=True, index=False, stream=True),
    }
    times = _raced(run, "hybrid", sides, service, keys=rows.keys, delay=4.0 * run.scale, page=0.01)
    ours, *alone = sides
    run.figures["hybrid_worst_ratio"] = max(
        times.note(ours, share) / min(times.note(side, share) for side in alone)
        for share in (f"{name}_s" for name in SHARES if name != "first")
    )
    return rows, times


Side = Callable[[], tuple[int, Mapping[str, float]]]
"""Returns rows, and when shares of them came."""


def _raced(
    run: Run, name: str, sides: Mapping[str, Side], service: Service, control: str = "", **manners: float
) -> Times:
    """Measure sides; notes also have what the service has seen."""

    def noting(side: Side) -> Callable[[], Ran]:
        def noted() -> Ran:
            service.behave(latency=LATENCY, **manners)
            done: list[tuple[int, Mapping[str, float]]] = []
            seconds = timed(lambda: done.append(side()))
            seen = service.seen()
            requests = {"requests": seen["requests"], "in_flight": seen["most"]}
            return Ran(done[0][0], {**requests, **done[0][1]}, seconds)

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
        first = service.seen()["first"]
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
CASES: Mapping[str, Callable[[Run, Service], tuple[Rows, Times]]] = {
    "limit": _limit,
    "naive": _naive,
    "hybrid": _hybrid,
}
BENCH = Bench(measure, tuple(CASES), TARGETS, quick=("naive", "hybrid"))
