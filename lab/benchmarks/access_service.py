"""A web service to look things up in, in a process of its own, that counts what it is asked.

It knows rows ``{"k": k, "v": …}`` for the whole numbers below ``keys``: one at ``/item/{k}``, after a fixed
latency, and all of them at ``/table``, page by page after a first delay.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from millrace.errors import SetupError

if TYPE_CHECKING:
    from aiohttp import web

PAGE = 10


@dataclass(frozen=True)
class Manners:
    """How the service behaves.

    Attributes:
        keys: Rows that it has.
        latency: Seconds from a request for an item to its answer.
        refuses: Every so many requests for an item one is refused (429), 0 for none.
        delay: Seconds before the first page of the table.
        page: Seconds before each page after it.
    """

    keys: int
    latency: float = 0.05
    refuses: int = 0
    delay: float = 0.0
    page: float = 0.0


@dataclass(frozen=True)
class Seen:
    """What the service was asked since it was told its manners.

    Attributes:
        requests: For items.
        refused: Of these, the ones that it refused.
        distinct: Different items that were asked for.
        most: Requests for items under way at once, at most.
        first: When the first request of any kind came, in seconds since 1970.
    """

    requests: int
    refused: int
    distinct: int
    most: int
    first: float


@dataclass(frozen=True)
class Service:
    """The service, as the benchmark sees it; ``url`` has no slash at its end."""

    url: str

    def behave(self, manners: Manners) -> None:
        """Tell it how to behave from now on, and to count from 0."""
        self._call("/behave", asdict(manners))

    def seen(self) -> Seen:
        """Return what it was asked."""
        return Seen(**self._call("/seen"))

    def _call(self, path: str, data: dict[str, Any] | None = None) -> dict[str, Any]:
        body = None if data is None else json.dumps(data).encode()
        with urllib.request.urlopen(self.url + path, body, timeout=10) as answer:  # noqa: S310  # our own
            return dict(json.load(answer))


@contextmanager
def serving() -> Iterator[Service]:
    """Run the service until the block ends.

    Raises:
        SetupError: aiohttp is missing.
    """
    try:
        import aiohttp  # noqa: F401  # it is told before a process is started
    except ImportError:
        raise SetupError("the benchmark needs aiohttp: pip install 'millrace[bench]'") from None
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
    asyncio.run(_run(ready))


async def _run(ready: Connection) -> None:
    from aiohttp import web

    room = _Room()
    application = web.Application()
    application.router.add_get("/item/{k}", room.item)
    application.router.add_get("/table", room.table)
    application.router.add_post("/v1/chat/completions", room.complete)
    application.router.add_post("/behave", room.behave)
    application.router.add_get("/seen", room.seen)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    ready.send(runner.addresses[0][1])
    await asyncio.Event().wait()


class _Room:
    def __init__(self) -> None:
        self._manners = Manners(0)
        self._asked: Counter[int] = Counter()
        self._seen = Seen(0, 0, 0, 0, 0.0)
        self._now = 0

    async def item(self, request: web.Request) -> web.Response:
        from aiohttp import web

        key = int(request.match_info["k"])
        self._came()
        self._asked[key] += 1
        self._now += 1
        self._seen = replace(
            self._seen,
            requests=self._seen.requests + 1,
            distinct=len(self._asked),
            most=max(self._seen.most, self._now),
        )
        try:
            if self._manners.refuses and self._seen.requests % self._manners.refuses == 0:
                self._seen = replace(self._seen, refused=self._seen.refused + 1)
                return web.Response(status=429, headers={"Retry-After": "0"})
            await asyncio.sleep(self._manners.latency)
            if not 0 <= key < self._manners.keys:
                return web.Response(status=404)
            return web.json_response([_row(key)])
        finally:
            self._now -= 1

    async def table(self, request: web.Request) -> web.Response:
        from aiohttp import web

        self._came()
        low = int(request.query.get("from", "0"))
        await asyncio.sleep(self._manners.page if low else self._manners.delay)
        high = min(low + PAGE, self._manners.keys)
        more = f"/table?from={high}" if high < self._manners.keys else None
        return web.json_response({"rows": [_row(key) for key in range(low, high)], "next": more})

    async def complete(self, request: web.Request) -> web.Response:
        """Answer as a language model does: whether the number at each question's end is even."""
        from aiohttp import web

        self._came()
        questions = json.loads((await request.json())["messages"][1]["content"])
        self._asked.update(int(question.rpartition(" ")[2]) for question in questions)
        self._seen = replace(self._seen, requests=self._seen.requests + 1, distinct=len(self._asked))
        await asyncio.sleep(self._manners.latency)
        even = [int(each.rpartition(" ")[2]) % 2 == 0 for each in questions]
        text = json.dumps({"answers": [{"number": n, "answer": each} for n, each in enumerate(even, 1)]})
        choice = {"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        usage = {"prompt_tokens": 10 * len(questions), "completion_tokens": 2 * len(questions)}
        return web.json_response({"choices": [choice], "usage": usage})

    async def behave(self, request: web.Request) -> web.Response:
        from aiohttp import web

        self._manners = Manners(**await request.json())
        self._asked.clear()
        self._seen = Seen(0, 0, 0, 0, 0.0)
        return web.json_response({})

    async def seen(self, request: web.Request) -> web.Response:
        from aiohttp import web

        return web.json_response(asdict(self._seen))

    def _came(self) -> None:
        if not self._seen.first:
            self._seen = replace(self._seen, first=time.time())


def _row(key: int) -> dict[str, Any]:
    return {"k": key, "v": value(key)}


def value(key: int) -> str:
    """Return what the service knows of a key."""
    return f"value {key * 7919 % 10_007}"
