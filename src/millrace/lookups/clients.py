"""HTTP requests of one session over aiohttp: each is sent once, and its answer unpacked a step at a time.

A few kilobytes of a compressed answer can stand for gigabytes; see :func:`read`.
"""

from __future__ import annotations

import base64
import re
import ssl
import zlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from functools import cache
from urllib.parse import quote, urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
from multidict import CIMultiDict
from yarl import URL

_IDLE_SECONDS = 5.0
"""That a connection is kept open for another request."""

_LONGEST_HEADER = 1 << 16
"""Bytes: some services send tokens of more than aiohttp's eight kilobytes."""

_ACCEPTED = "gzip"
"""What requests ask for; others are refused, and so are several at once."""

_STEP = 1 << 16
"""Bytes that are unpacked at once."""

_GZIP = 16 + zlib.MAX_WBITS
_STRAY = re.compile("%(?![0-9A-Fa-f]{2})")
_PLAIN = "!$%&'()*+,/:;=?@~"
"""What stands in paths and queries as it is; letters and digits do as well."""


class Undecodable(Exception):
    """The body of an answer is compressed in another way than was asked for, or damaged."""


@dataclass(frozen=True)
class Request:
    """What is sent; the URL has no credentials in it, they are a header."""

    method: str
    url: URL
    headers: CIMultiDict[str]
    body: bytes | None = None


def request_of(method: str, url: str, headers: Mapping[str, str], body: str | None = None) -> Request:
    """Return a request of texts that is to be answered in JSON; the body is JSON, the headers win over ours.

    Raises:
        ValueError: It is no URL.
    """
    found = url_of(url)
    ours = {"Accept": "application/json", "Accept-Encoding": _ACCEPTED, "User-Agent": "millrace"}
    whole: CIMultiDict[str] = CIMultiDict(ours)
    if body is not None:
        whole["Content-Type"] = "application/json"
    whole.update(headers)
    if found.user is not None or found.password is not None:
        credentials = f"{found.user or ''}:{found.password or ''}".encode()
        whole["Authorization"] = f"Basic {base64.b64encode(credentials).decode()}"
    return Request(method, found.with_user(None), whole, None if body is None else body.encode())


def url_of(text: str) -> URL:
    """Return a URL with its escapes as they are: yarl would write some of them in other ways.

    Raises:
        ValueError: It is none, or has no host.
    """
    given, pieces = URL(text), urlsplit(text)
    if given.scheme not in ("http", "https") or not given.host:
        raise ValueError("it has no host to ask: expected one such as https://host/path/{key}")
    path, query = (quote(_STRAY.sub("%25", each), safe=_PLAIN) for each in (pieces.path, pieces.query))
    return URL.build(
        scheme=given.scheme, authority=given.raw_authority, path=path or "/", query_string=query, encoded=True
    )


@cache
def _certificates() -> ssl.SSLContext:
    """Return the certificates that are trusted; they take a while to read."""
    return ssl.create_default_context()


class Client:
    """Sends requests in one event loop; at most ``width`` are under way at once, others wait."""

    def __init__(self, width: int) -> None:
        self._width = width
        self._certificates = _certificates()  # now, for later it would be within some request's time
        self._proxies = getproxies()  # of the environment
        self._session: aiohttp.ClientSession | None = None

    async def send(self, request: Request) -> aiohttp.ClientResponse:
        """Send a request as it is and return the answer, of which the body is to be read or released.

        Raises:
            aiohttp.ClientError: There is no answer.
            ValueError: It cannot be sent.
        """
        if self._session is None:
            self._session = self._opened()
        return await self._session.request(
            request.method,
            request.url,
            headers=request.headers,
            data=request.body,
            allow_redirects=False,
            proxy=self._proxy_of(request.url),
        )

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    def _proxy_of(self, url: URL) -> str | None:
        proxy = self._proxies.get(url.scheme) or self._proxies.get("all")
        return None if not proxy or proxy_bypass(url.host or "") else proxy

    def _opened(self) -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(
            limit=self._width, keepalive_timeout=_IDLE_SECONDS, ssl=self._certificates
        )
        return aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.CookieJar(unsafe=True),  # hosts without a name have cookies as well
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),  # who asks has a deadline
            auto_decompress=False,
            middlewares=(_once,),
            max_line_size=_LONGEST_HEADER,
            max_field_size=_LONGEST_HEADER,
        )


async def _once(request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    """Keep aiohttp from sending a request again by itself: each takes a permit, and counts."""
    try:
        return await handler(request)
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        raise aiohttp.ClientConnectionError(str(error)) from error


async def read(response: aiohttp.ClientResponse, most: int) -> bytes:
    """Return the body of an answer; of one of more than ``most`` bytes its beginning, which is longer.

    What is beyond that is not even unpacked.

    Raises:
        Undecodable: It is compressed in another way than was asked for, or damaged.
        aiohttp.ClientError: It broke off.
    """
    pieces, size = [], 0
    async for piece in _unpacked(response):
        pieces.append(piece)
        size += len(piece)
        if size > most:
            break
    return b"".join(pieces)


async def _unpacked(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """Yield the body of an answer, in pieces that are no larger than what was received or a step."""
    coding = ", ".join(response.headers.getall("Content-Encoding", ())).strip().lower()
    if coding in ("", "identity"):
        async for received in response.content.iter_any():
            yield received
        return
    if coding not in ("gzip", "x-gzip"):
        raise Undecodable(f"it is encoded as {coding!r}, expected {_ACCEPTED} or plain text")
    unpacker, begun = zlib.decompressobj(_GZIP), False
    async for received in response.content.iter_any():
        left = received
        while left:
            if unpacker.eof:  # several members, one after the other, are one body
                unpacker = zlib.decompressobj(_GZIP)
            try:
                piece = unpacker.decompress(left, _STEP)
            except zlib.error as error:
                raise Undecodable(f"it is no gzip: {error}") from None
            begun = True
            left = unpacker.unused_data if unpacker.eof else unpacker.unconsumed_tail
            if piece:
                yield piece
    if begun and not unpacker.eof:
        raise Undecodable("it ends in the middle of its gzip")
