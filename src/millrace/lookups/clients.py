"""Requests to one service over aiohttp, and what its answers mean: each is sent once, and unpacked in steps.

A few kilobytes of a compressed answer can stand for gigabytes; see :func:`read`.
"""

from __future__ import annotations

import base64
import datetime as dt
import re
import ssl
import zlib
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from functools import cache
from typing import Any
from urllib.parse import quote, urljoin, urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from millrace.limits.secrets import Secrets
from millrace.lookups.source import Refused, shortened
from millrace.lookups.values import ABSENT, parse

MAX_REDIRECTS = 5
MAY_PASS = (408, 425, 429)
"""Statuses below 500 after which another attempt may succeed."""

_ERROR_BYTES = 2048
_ERROR_SHOWN = 200
_EMPTY = (204, 205)
_REDIRECTS = (301, 302, 303, 307, 308)

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


def parse_url(text: str) -> URL:
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
    """Asks one service in one event loop; every failure is a :class:`Refused`, without values of secrets.

    A redirect leads nowhere but to the same scheme, host and port: the headers may carry credentials.

    Args:
        width: Requests under way at once, at most; others wait.
        secrets: Taken out of what errors say.
        bound: What bounds an answer, in errors.
        where: What errors call a request; its method and URL by default.
        may_pass: Statuses below 500 after which another attempt may succeed.
        exact: Whether fractions keep their digits, for decimals.
    """

    def __init__(
        self,
        width: int,
        secrets: Secrets,
        bound: str,
        *,
        where: str = "",
        may_pass: Collection[int] = MAY_PASS,
        exact: bool = False,
    ) -> None:
        self._width = width
        self._secrets = secrets
        self._bound = bound
        self._where = where
        self._may_pass = may_pass
        self._exact = exact
        self._certificates = _certificates()  # now, for later it would be within some request's time
        self._proxies = getproxies()  # of the environment
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def ask(self, request: Request, most: int, missing: Collection[int] = ()) -> tuple[Any, int]:
        """Send a request; return the JSON value of the answer (``ABSENT`` for none) and its size in bytes.

        The answer may have so many bytes at ``most``; ``missing`` are statuses that mean that there is none.

        Raises:
            Refused: It was not answered, or not in JSON of so many bytes.
        """
        try:
            text = await self._read(request, most, missing)
        except (aiohttp.ClientError, Undecodable, ValueError) as error:
            raise self._break(error, request) from None
        if text is None:
            return ABSENT, 0
        try:
            return parse(text, exact=self._exact), len(text)
        except ValueError as error:
            said = f"the answer is no JSON ({error}): {self._excerpt(text)}"
            raise self.refuse(request, "malformed answer", said, again=True) from None
        except RecursionError:
            raise self.refuse(request, "malformed answer", "the answer is nested too deeply") from None

    def make_request(
        self, method: str, url: str, headers: Mapping[str, str], body: str | None = None
    ) -> Request:
        """Return a request of texts, to be answered in JSON; the body is JSON, the headers win over ours.

        Raises:
            ValueError: It is no URL.
        """
        found = parse_url(url)
        ours = {"Accept": "application/json", "Accept-Encoding": _ACCEPTED, "User-Agent": "millrace"}
        whole: CIMultiDict[str] = CIMultiDict(ours)
        if body is not None:
            whole["Content-Type"] = "application/json"
        whole.update(headers)
        if found.user is not None or found.password is not None:
            credentials = f"{found.user or ''}:{found.password or ''}".encode()
            whole["Authorization"] = f"Basic {base64.b64encode(credentials).decode()}"
        return Request(method, found.with_user(None), whole, None if body is None else body.encode())

    def lead(self, request: Request, to: str, kind: str) -> Request:
        """Return a request to where an answer leads, such as its next page.

        Raises:
            Refused: That is no URL, or not of the same scheme, host and port.
        """
        try:
            url = parse_url(urljoin(str(request.url), to)).with_user(None)
        except ValueError as error:
            raise self.refuse(request, kind, f"the {kind} leads to no URL: {error}") from None
        if not is_same_host(request.url, url):
            said = f"the {kind} leads to another host, {url.with_query(None)}, which is not followed"
            raise self.refuse(request, kind, f"{said}: requests may carry credentials")
        return replace(request, url=url)

    def refuse(self, request: Request | None, kind: str, message: str, **how: Any) -> Refused:
        """Return what a failure is to whoever asked; ``how`` it is dealt with is as in :class:`Refused`."""
        where = self._where or (request and f"{request.method} {request.url}")
        return Refused(kind, shortened(self._secrets.scrub(f"{where}: {message}")), **how)

    async def _read(self, request: Request, most: int, missing: Collection[int]) -> bytes | None:
        """Send a request; return the text of the answer, or None if that is that there is nothing."""
        response, request = await self._follow(request)
        try:
            if response.status in (*missing, *_EMPTY):
                return None
            await self._check_status(response, request)
            text = await read(response, most)
        finally:
            response.release()
        if len(text) > most:
            said = f"the answer has more bytes than {most:,}, what is left of {self._bound}"
            raise self.refuse(request, "too large", said)
        return text

    async def _follow(self, request: Request) -> tuple[aiohttp.ClientResponse, Request]:
        """Send a request, and follow where it leads on its host; return the one that was answered, too."""
        first = request
        for _ in range(MAX_REDIRECTS + 1):
            response = await self._request(request)
            where = response.headers.get("Location")
            if response.status not in _REDIRECTS or where is None:
                return response, request
            response.release()
            request = self.lead(request, where, "redirect")
            if response.status == 303 or (response.status in (301, 302) and request.method == "POST"):
                request = replace(request, method="GET", body=None)
        raise self.refuse(first, "redirect", f"more than {MAX_REDIRECTS} redirects")

    async def _check_status(self, response: aiohttp.ClientResponse, request: Request) -> None:
        status, begin = response.status, b""
        if 200 <= status < 300:
            return
        with suppress(Undecodable):  # the status says more than how its page is packed
            begin = await read(response, _ERROR_BYTES)
        said = self._excerpt(begin)
        again = status in self._may_pass or status >= 500
        raise self.refuse(
            request,
            f"HTTP {status}",
            f"HTTP {status} {response.reason}{said and ': '}{said}",
            again=again,
            wait=_read_wait(response) if again else None,
        )

    def _break(self, error: Exception, request: Request) -> Refused:
        """Return what a failure of the connection means."""
        kind = "malformed answer" if isinstance(error, Undecodable) else "connection"
        lasting = isinstance(error, ValueError) or _is_of_certificate(error)
        said = str(error) or type(error).__name__
        return self.refuse(request, kind, f"{type(error).__name__}: {said}", again=not lasting)

    def _excerpt(self, answer: bytes) -> str:
        begin = answer[:_ERROR_BYTES].decode(errors="replace")
        whole = len(answer) <= _ERROR_BYTES
        scrubbed = self._secrets.scrub(begin) if whole else self._secrets.scrub_beginning(begin)
        return shortened(scrubbed, _ERROR_SHOWN)

    async def _request(self, request: Request) -> aiohttp.ClientResponse:
        """Send a request as it is; the body of the answer is to be read or released."""
        if self._session is None:
            self._session = self._open()
        return await self._session.request(
            request.method,
            request.url,
            headers=request.headers,
            data=request.body,
            allow_redirects=False,
            proxy=self._find_proxy(request.url),
        )

    def _find_proxy(self, url: URL) -> str | None:
        proxy = self._proxies.get(url.scheme) or self._proxies.get("all")
        return None if not proxy or proxy_bypass(url.host or "") else proxy

    def _open(self) -> aiohttp.ClientSession:
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


def is_same_host(one: URL, other: URL) -> bool:
    """Whether both are of one scheme, host and port; https in place of http is as well."""
    mine, its = ((url.scheme, url.host, url.port) for url in (one, other))
    return mine == its or (mine == ("http", one.host, 80) and its == ("https", one.host, 443))


def _read_wait(response: aiohttp.ClientResponse) -> float | None:
    """Return the seconds for which a service does not want to be asked; None if it does not say."""
    text = response.headers.get("Retry-After", "").strip()
    if text.isascii() and text.isdigit():
        return float(text)
    try:
        until = parsedate_to_datetime(text)
    except ValueError:
        return None
    if until.tzinfo is None:
        until = until.replace(tzinfo=dt.UTC)
    return max(0.0, (until - dt.datetime.now(dt.UTC)).total_seconds())


def _is_of_certificate(error: BaseException | None) -> bool:
    """Whether a certificate was not accepted, which waiting does not change."""
    while error is not None:
        if isinstance(error, ssl.SSLCertVerificationError) or "CERTIFICATE_VERIFY_FAILED" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False
