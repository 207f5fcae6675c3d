"""A service over HTTP in the test's own event loop, which answers as told and counts what it is asked."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager

from aiohttp import web

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Web:
    """What tests see of the service.

    Attributes:
        url: Of the root.
        asked: Raw paths with queries, as they came.
        bodies: Bodies of requests, as JSON values.
        headers: Of each request.
        connections: Connections that were opened.
    """

    def __init__(self) -> None:
        self.url = ""
        self.asked: list[str] = []
        self.bodies: list[object] = []
        self.headers: list[dict[str, str]] = []
        self.connections: set[object] = set()


@asynccontextmanager
async def serving(handler: Handler):
    """Serve any path with one handler, for as long as the block lasts."""
    seen = Web()

    async def handle(request: web.Request) -> web.StreamResponse:
        seen.asked.append(request.raw_path)
        seen.headers.append(dict(request.headers))
        seen.connections.add(request.transport.get_extra_info("peername"))
        body = await request.read()
        seen.bodies.append(json.loads(body) if body else None)
        return await handler(request)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    seen.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield seen
    finally:
        await runner.cleanup()


def answering(value: object, status: int = 200, headers: dict[str, str] | None = None) -> Handler:
    """Answer every request with one JSON value."""
    text = value if isinstance(value, str) else json.dumps(value)

    async def handler(request: web.Request) -> web.Response:
        return web.Response(text=text, status=status, headers=headers, content_type="application/json")

    return handler


async def stalls(request: web.Request) -> web.StreamResponse:
    """Never answer."""
    await asyncio.Event().wait()
    raise AssertionError


async def drips(request: web.Request) -> web.StreamResponse:
    """Send a byte now and then, without end."""
    response = web.StreamResponse()
    await response.prepare(request)
    await response.write(b"[")
    while True:
        await response.write(b" ")
        await asyncio.sleep(0.01)


async def resets(request: web.Request) -> web.StreamResponse:
    """Break the connection off."""
    request.transport.abort()
    return web.Response()


async def truncates(request: web.Request) -> web.StreamResponse:
    """Promise more bytes than are sent."""
    response = web.StreamResponse()
    response.content_length = 1000
    await response.prepare(request)
    await response.write(b'[{"sku": "a"')
    request.transport.close()
    return response
