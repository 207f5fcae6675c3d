"""HTTP clients: httpx's requests and answers, over aiohttp's connections, unpacked a step at a time.

httpx's own connections are all Python, and its pool looks at each of them for every request. Over aiohttp's,
whose parser is C, a task spends a third less on a request.

A few kilobytes of a compressed answer can stand for gigabytes; see :func:`unpacked`.
"""

from __future__ import annotations

import logging
import ssl
import zlib
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from urllib.request import getproxies, proxy_bypass

import aiohttp
import httpx
from yarl import URL

_IDLE_SECONDS = 5.0
"""That a connection is kept open for another request."""

_LONGEST_HEADER = 1 << 16
"""Bytes: some services send tokens of more than aiohttp's eight kilobytes."""

ACCEPTED = "gzip"
"""What requests ask for; others are refused, and so are several at once."""

_STEP = 1 << 16
"""Bytes that are unpacked at once."""

_GZIP = 16 + zlib.MAX_WBITS

_ours: ContextVar[bool] = ContextVar("millrace_lookup", default=False)

_LOGGERS = ("httpx", "aiohttp.client", "aiohttp.internal")
"""They log URLs and headers of requests as they are sent."""


def client_of(headers: httpx.Headers, width: int) -> httpx.AsyncClient:
    """Return a client for the requests of one session; to be used in one event loop.

    ``headers`` are of each request. At most ``width`` requests are under way at once; others wait.
    """
    return httpx.AsyncClient(
        headers=headers,
        transport=_Transport(width),
        timeout=None,  # noqa: S113  # the deadline is the whole request's
        follow_redirects=False,
    )


@cache
def _certificates() -> ssl.SSLContext:
    """Return the certificates that are trusted; they take a while to read."""
    return httpx.create_ssl_context()


class _Transport(httpx.AsyncBaseTransport):
    """Sends httpx's requests by aiohttp, as they are: URLs are not quoted anew, answers not unpacked."""

    def __init__(self, width: int) -> None:
        self._width = width
        self._certificates = _certificates()  # now, for later it would be within some request's time
        self._proxies = getproxies()  # of the environment
        self._session: aiohttp.ClientSession | None = None

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request, whose body is short."""
        if self._session is None:
            self._session = self._opened()
        # httpx has made a header of what stands before the host.
        url = str(request.url.copy_with(userinfo=b""))
        body = await request.aread()
        with _as_httpx():
            response = await self._session.request(
                request.method,
                URL(url, encoded=True),
                headers=[(name.decode(), value.decode()) for name, value in request.headers.raw],
                data=body or None,
                allow_redirects=False,
                proxy=self._proxy_of(request.url),
            )
        return httpx.Response(
            response.status,
            headers=response.raw_headers,
            stream=_Body(response),
            extensions={"reason_phrase": (response.reason or "").encode()},
        )

    async def aclose(self) -> None:
        if self._session is not None:
            await self._session.close()

    def _proxy_of(self, url: httpx.URL) -> str | None:
        proxy = self._proxies.get(url.scheme) or self._proxies.get("all")
        return None if not proxy or proxy_bypass(url.host) else proxy

    def _opened(self) -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(
            limit=self._width, keepalive_timeout=_IDLE_SECONDS, ssl=self._certificates
        )
        return aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),  # httpx has one
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),
            auto_decompress=False,
            middlewares=(_once,),
            max_line_size=_LONGEST_HEADER,
            max_field_size=_LONGEST_HEADER,
        )


async def _once(request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    """Keep aiohttp from sending a request again by itself: each takes a permit, and counts."""
    with _as_httpx():
        return await handler(request)


class _Body(httpx.AsyncByteStream):
    """The body of an answer, as it comes."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response

    async def __aiter__(self) -> AsyncIterator[bytes]:
        with _as_httpx():
            async for part in self._response.content.iter_any():
                yield part

    async def aclose(self) -> None:
        """Let the connection go: for the next request if all was read, else for good."""
        self._response.release()


@contextmanager
def _as_httpx() -> Iterator[None]:
    """Raise errors of aiohttp as httpx does."""
    try:
        yield
    except (aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError) as error:
        raise httpx.UnsupportedProtocol(str(error)) from error
    except aiohttp.ClientConnectorError as error:
        raise httpx.ConnectError(str(error)) from error
    except (aiohttp.ClientPayloadError, aiohttp.ClientConnectionError) as error:
        raise httpx.ReadError(str(error)) from error
    except aiohttp.ClientError as error:
        raise httpx.RemoteProtocolError(str(error)) from error
    except ValueError as error:
        raise httpx.LocalProtocolError(str(error)) from error


def _is_others(_: logging.LogRecord) -> bool:
    return not _ours.get()


@contextmanager
def unlogged() -> Iterator[None]:
    """Keep what happens within out of the library's logs; the user's own requests stay in them."""
    token = _ours.set(True)
    try:
        yield
    finally:
        _ours.reset(token)


async def unpacked(response: httpx.Response) -> AsyncIterator[bytes]:
    """Yield the body of an answer, in pieces that are no larger than what was received or a step.

    Who has enough of it may stop: what was not asked for is not unpacked.

    Raises:
        httpx.DecodingError: It is compressed in another way than was asked for, or damaged.
    """
    coding = response.headers.get("Content-Encoding", "").strip().lower()
    if coding in ("", "identity"):
        async for received in response.aiter_raw():
            yield received
        return
    if coding not in ("gzip", "x-gzip"):
        raise httpx.DecodingError(f"it is encoded as {coding!r}, expected {ACCEPTED} or plain text")
    unpacker, begun = zlib.decompressobj(_GZIP), False
    async for received in response.aiter_raw():
        left = received
        while left:
            if unpacker.eof:  # several members, one after the other, are one body
                unpacker = zlib.decompressobj(_GZIP)
            try:
                piece = unpacker.decompress(left, _STEP)
            except zlib.error as error:
                raise httpx.DecodingError(f"it is no gzip: {error}") from None
            begun = True
            left = unpacker.unused_data if unpacker.eof else unpacker.unconsumed_tail
            if piece:
                yield piece
    if begun and not unpacker.eof:
        raise httpx.DecodingError("it ends in the middle of its gzip")


for _name in _LOGGERS:
    logging.getLogger(_name).addFilter(_is_others)
