"""A web service that can misbehave."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

from aiohttp import web

import millrace
from tests.limits.service import Served

KEYS = 40


class Shop(Served):
    """Answers ``GET /{k}`` with ``[{"k": k, "v": "value {k}"}]``, 404 for keys it does not have.

    ``/all`` has every row.

    ``behave`` tells from a key, and how often it was asked before, what is wrong with the answer, or "ok": an
    HTTP status, "reset" or "wrong type".
    """

    def __init__(self) -> None:
        self.behave: Callable[[int, int], str] = lambda key, before: "ok"
        self.latency = 0.0  # in seconds, of a key's answer
        self.stalls = False  # nothing comes of ``/all``
        self.scans = 0
        self.asked: Counter[int] = Counter()
        self.headers: set[str] = set()  # values of Authorization
        self.queries: set[str] = set()  # values of the parameter ``key``

    def table(self, **how):
        """Return what it has as a lookup table, with settings of tables and of services."""
        own = {name: how.pop(name) for name in ("on_error", "cache", "scan") if name in how}
        how = {"max_in_flight": 4, "timeout": 5.0, "retries": 3, **how}
        source = millrace.http(f"{self.url}/{{k}}", **how)
        return millrace.lookup("p", "k bigint, v string", bind=["k"], via=source, **own)

    def routes(self) -> list[web.AbstractRouteDef]:
        return [web.get("/all", self._answer_all), web.get("/{k}", self._answer)]

    async def _answer_all(self, _: web.Request) -> web.StreamResponse:
        self.scans += 1
        if self.stalls:
            await asyncio.Event().wait()
        return web.json_response([{"k": key, "v": f"value {key}"} for key in range(KEYS)])

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        key = int(request.match_info["k"])
        before = self.asked[key]
        self.asked[key] += 1
        self.headers.add(request.headers.get("Authorization", ""))
        self.queries.add(request.query.get("key", ""))
        await asyncio.sleep(self.latency)
        how = self.behave(key, before)
        if how == "reset":
            assert request.transport is not None
            request.transport.abort()
        elif how.isdigit() or not 0 <= key < KEYS:
            return web.Response(status=int(how) if how.isdigit() else 404, headers={"Retry-After": "0"})
        value = {"not": "a string"} if how == "wrong type" else f"value {key}"
        return web.json_response([{"k": key, "v": value}])
