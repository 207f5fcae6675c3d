"""A web service to ask, which fails as told and counts what it sees."""

import asyncio
import threading
from collections import Counter
from collections.abc import Coroutine
from typing import Any, Self

from aiohttp import web
from aiohttp.typedefs import Handler


class Served:
    """Serves the ``routes()`` of a subclass over HTTP, in a thread of its own, within a ``with`` block."""

    url = ""
    now = most = 0  # requests under way, and at most

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._within(self._open())
        return self

    def __exit__(self, *_: object) -> None:
        self._within(self._runner.cleanup())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _within(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something in the thread that serves."""
        asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    async def _open(self) -> None:
        application = web.Application(middlewares=[self._counted])
        application.add_routes(self.routes())
        how = {"access_log": None, "handler_cancellation": True, "shutdown_timeout": 0.1}
        self._runner = web.AppRunner(application, **how)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}{self.url}"

    @web.middleware
    async def _counted(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            return await handler(request)
        finally:
            self.now -= 1


class Service(Served):
    """Answers ``GET /?x=…``, where there is a gate, once it is open.

    ``behaviour`` tells ``yes``, ``no`` or an HTTP status from the argument and how often it has been asked.
    The service knows how often each was asked.
    """

    def __init__(self, behaviour, gate: threading.Event | None = None) -> None:
        self._gate = gate
        self._behaviour = behaviour
        self.asked: Counter[int] = Counter()

    url = "/"

    def routes(self) -> list[web.AbstractRouteDef]:
        return [web.get("/", self._answer)]

    def __exit__(self, *error: object) -> None:
        if self._gate is not None:
            self._gate.set()  # a thread waits for it
        super().__exit__(*error)

    async def _answer(self, request: web.Request) -> web.Response:
        x = int(request.query["x"])
        self.asked[x] += 1
        behaviour = self._behaviour(x, self.asked[x])
        if self._gate is not None:
            await asyncio.to_thread(self._gate.wait)
        await asyncio.sleep(0.002)  # long enough for others to come meanwhile
        if behaviour.isdigit():
            return web.Response(status=int(behaviour))
        return web.json_response(behaviour == "yes")
