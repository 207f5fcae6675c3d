"""HTTP clients of one connection each, which are used again.

The library's own pool looks at all of its connections for every request, which costs more than the request
does: with 16 connections, three times the processor time of this.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache

import httpx

from millrace.lookups.refused import Refused


@cache
def _certificates() -> ssl.SSLContext:
    """Return the certificates that are trusted; they take a while to read."""
    return httpx.create_ssl_context()


class Clients:
    """Clients for the requests of one session; to be used in one event loop.

    Args:
        headers: Of each request.
        width: Requests under way at once; others wait.
    """

    def __init__(self, headers: httpx.Headers, width: int) -> None:
        self._headers = headers
        self._places = asyncio.Semaphore(width)
        self._certificates = _certificates()  # now, for later it would be within some request's time
        self._idle: list[httpx.AsyncClient] = []
        self._closed = False

    @asynccontextmanager
    async def one(self) -> AsyncIterator[httpx.AsyncClient]:
        """Return a client that nobody else uses within the block: the one that was used last.

        One whose request was broken off is not used again: its only connection may count as taken for ever.
        """
        async with self._places:
            client = self._idle.pop() if self._idle else self._new()
            whole = False
            try:
                yield client
                whole = True
            except Refused:
                whole = True
                raise
            finally:
                if whole and not self._closed:
                    self._idle.append(client)
                else:
                    await asyncio.shield(client.aclose())

    async def close(self) -> None:
        """Close all connections, those in use once they are not."""
        self._closed = True
        while self._idle:
            await self._idle.pop().aclose()

    def _new(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            headers=self._headers,
            verify=self._certificates,
            limits=httpx.Limits(max_connections=1, max_keepalive_connections=1),
            timeout=None,  # noqa: S113  # the deadline is the whole request's
            follow_redirects=False,
        )
