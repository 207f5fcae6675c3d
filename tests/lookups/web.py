"""A service over HTTP that answers any path as told, and counts what it is asked."""

from __future__ import annotations

import asyncio
import json

from aiohttp import web

from tests.limits.service import Served


class Web(Served):
    """Answers with one handler; what was asked are raw paths with queries, and JSON values in bodies."""

    def __init__(self, handler) -> None:
        self._handler = handler
        self.asked: list[str] = []
        self.bodies: list[object] = []
        self.headers: list[dict[str, str]] = []
        self.connections: set[object] = set()

    def routes(self) -> list[web.AbstractRouteDef]:
        return [web.route("*", "/{path:.*}", self._answer)]

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(request.raw_path)
        self.headers.append(dict(request.headers))
        self.connections.add(request.transport.get_extra_info("peername"))
        body = await request.read()
        self.bodies.append(json.loads(body) if body else None)
        return await self._handler(request)


def answering(value: object, status: int = 200, headers: dict[str, str] | None = None):
    """Answer every request with one JSON value."""
    text = value if isinstance(value, str) else json.dumps(value)

    async def handler(request: web.Request) -> web.Response:
        return web.Response(text=text, status=status, headers=headers, content_type="application/json")

    return handler


async def stalls(request: web.Request) -> web.StreamResponse:
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
