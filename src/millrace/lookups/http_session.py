"""Asking a service over HTTP: one request, its redirects and pages, and what its answer means.

A redirect or a next page leads nowhere but to the same scheme, host and port: the headers may carry
credentials.
"""

from __future__ import annotations

import datetime as dt
import ssl
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin

import aiohttp
import pyarrow as pa
from yarl import URL

from millrace.errors import InputError
from millrace.limits.secrets import Secrets
from millrace.lookups import paths, template
from millrace.lookups.clients import Client, Request, Undecodable, read, request_of, url_of
from millrace.lookups.json_text import has_decimals, parse
from millrace.lookups.source import Refused, shortened
from millrace.lookups.strict import ABSENT, Unfit

if TYPE_CHECKING:
    from millrace.lookups.http import HttpSource

MAX_REDIRECTS = 5

_MAY_PASS = (408, 425, 429)
_ERROR_BYTES = 2048
_ERROR_SHOWN = 200
_EMPTY = (204, 205)
_REDIRECTS = (301, 302, 303, 307, 308)


def base_url(source: HttpSource, secrets: Secrets) -> tuple[str, str, int]:
    """Return scheme, host and port of a source's URL.

    Raises:
        InputError: It has none, or others than HTTP's.
    """
    pieces = template.parts(source.url, "the URL")
    values = {column: ["x"] for column in template.columns_of(pieces)}
    try:
        url = url_of(template.fill_url(pieces, values, source.separator, secrets, many=False))
    except ValueError as error:
        raise InputError(
            secrets.scrub(f"the URL {source.url!r} of a lookup cannot be used: {error}")
        ) from None
    return url.scheme, url.host or "", url.port or 0


class HttpSession:
    """An open :class:`HttpSource`."""

    def __init__(
        self, source: HttpSource, schema: pa.Schema, columns: tuple[str, ...], secrets: Secrets
    ) -> None:
        self._source = source
        self._schema = schema
        self._columns = columns
        self._secrets = secrets
        self._reader = source.reader(schema, columns, secrets.scrub)
        self._rows = paths.path(source.rows, "rows")
        self._next = None if source.next is None else paths.path(source.next, "next")
        self._pieces = template.parts(source.url, "the URL")
        self._template = source.template
        self._exact = any(map(has_decimals, schema.types))
        self._headers = {name: secrets.fill(value) for name, value in source.headers}
        self._client = Client(source.terms.max_in_flight)

    async def fetch(self, keys: pa.RecordBatch) -> pa.RecordBatch:
        """Ask for some keys; see :meth:`millrace.lookups.source.Session.fetch`."""
        many = self._source.terms.batch > 1
        key = None if many else {name: keys.column(name)[0] for name in self._columns}
        request = self._request(keys)
        batches: list[pa.RecordBatch] = []
        left = self._source.max_bytes
        seen = {str(request.url)}
        while True:
            missing = () if batches else self._source.missing
            answer, size = await self._document(request, left, missing)
            left -= size
            batches.append(self._batch(answer, key, request.url))
            following = self._following(answer, request, seen)
            if following is None:
                return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
            request = following

    async def scan(self) -> AsyncIterator[pa.RecordBatch]:
        """Return everything, a batch a page; see :meth:`millrace.lookups.source.Session.scan`."""
        request: Request | None = self._request(None)
        assert request is not None
        seen = {str(request.url)}
        while request is not None:
            answer, _ = await self._document(request, self._source.max_bytes, ())
            batch = self._batch(answer, None, request.url)
            request = self._following(answer, request, seen)
            yield batch

    async def close(self) -> None:
        await self._client.close()

    def _request(self, keys: pa.RecordBatch | None) -> Request:
        """Return the request for some keys, or for everything."""
        many = self._source.terms.batch > 1
        keys = pa.record_batch({}) if keys is None else keys
        values = {
            name: [template.text_of(v, column.type) for v in column.to_pylist()]
            for name, column in zip(keys.schema.names, keys.columns, strict=True)
        }
        separator, secrets = self._source.separator, self._secrets
        try:
            url = template.fill_url(self._pieces, values, separator, secrets, many=many)
            body = None
            if self._template is not None:
                body = template.fill_body(self._template, keys, many=many, joined=separator, secrets=secrets)
            return request_of(self._source.method, url, self._headers, body)
        except ValueError as error:
            raise self._refused("unsendable key", f"{self._source.describe()}: {error}") from None

    async def _document(self, request: Request, most: int, missing: tuple[int, ...]) -> tuple[Any, int]:
        """Send a request; return the JSON value of the answer (``ABSENT`` for none) and its size in bytes.

        That a key is missing is an answer; that a page is missing, or all there is, is none.
        """
        try:
            text = await self._sent(request, most, missing)
        except (aiohttp.ClientError, Undecodable, ValueError) as error:
            raise self._broken(error, request.url) from None
        if text is None:
            return ABSENT, 0
        try:
            return parse(text, exact=self._exact), len(text)
        except ValueError as error:
            raise self._refused(
                "malformed answer",
                f"{self._shown(request.url)}: the answer is no JSON ({error}): {self._excerpt(text)}",
                again=True,
            ) from None
        except RecursionError:
            raise self._refused(
                "malformed answer", f"{self._shown(request.url)}: the answer is nested too deeply"
            ) from None

    async def _sent(self, request: Request, most: int, missing: tuple[int, ...]) -> bytes | None:
        """Send a request; return the text of the answer, or None if that is that there is nothing."""
        response, request = await self._answer(request)
        try:
            if response.status in (*missing, *_EMPTY):
                return None
            await self._check_status(response, request.url)
            text = await read(response, most)
        finally:
            response.release()
        if len(text) > most:
            raise self._refused(
                "too large",
                f"{self._shown(request.url)}: the answer has more bytes than {most:,}, what is left of "
                f"max_bytes={self._source.max_bytes:,}",
            )
        return text

    async def _answer(self, request: Request) -> tuple[aiohttp.ClientResponse, Request]:
        """Send a request, and follow where it leads on its host; return the one that was answered, too."""
        first = request
        for _ in range(MAX_REDIRECTS + 1):
            response = await self._client.send(request)
            where = response.headers.get("Location")
            if response.status not in _REDIRECTS or where is None:
                return response, request
            response.release()
            url = url_of(urljoin(str(request.url), where))
            if not _is_same_host(first.url, url):
                raise self._refused(
                    "redirect",
                    f"{self._shown(first.url)}: the service redirects to another host, "
                    f"{self._shown(url.with_query(None))}, which is not followed: requests may carry "
                    "credentials",
                )
            if response.status == 303 or (response.status in (301, 302) and request.method == "POST"):
                request = replace(request, method="GET", body=None)
            request = replace(request, url=url.with_user(None))
        raise self._refused("redirect", f"{self._shown(first.url)}: more than {MAX_REDIRECTS} redirects")

    async def _check_status(self, response: aiohttp.ClientResponse, url: URL) -> None:
        status, begin = response.status, b""
        if 200 <= status < 300:
            return
        with suppress(Undecodable):  # the status says more than how its page is packed
            begin = await read(response, _ERROR_BYTES)
        said = self._excerpt(begin)
        again = status in _MAY_PASS or status >= 500
        raise self._refused(
            f"HTTP {status}",
            f"{self._shown(url)}: {status} {response.reason}{said and ': '}{said}",
            again=again,
            wait=retry_after(response) if again else None,
        )

    def _batch(self, answer: Any, key: dict[str, Any] | None, url: URL) -> pa.RecordBatch:
        try:
            return self._reader.batch(self._found(answer), key)
        except Unfit as error:
            raise self._refused("unfit answer", f"{self._shown(url)}: {error}") from None

    def _found(self, answer: Any) -> list[Any]:
        """Return the rows of an answer."""
        if answer is ABSENT:
            return []
        if self._rows.steps is None:
            try:
                return self._rows.all(answer)
            except RecursionError:
                raise Unfit(f"the answer is nested too deeply for the path {self._rows.text}") from None
        found = self._rows.one(answer)
        if found is ABSENT:
            if self._source.absent == "null":
                return []
            raise Unfit(f"the answer has nothing at rows={self._rows.text!r}")
        if found is None:
            return []
        return found if isinstance(found, list) else [found]

    def _following(self, answer: Any, request: Request, seen: set[str]) -> Request | None:
        """Return the request for the next page, or None if this is the last."""
        found = ABSENT if self._next is None or answer is ABSENT else self._next.one(answer)
        if found is ABSENT or found is None or found == "":
            return None
        where = f"{self._shown(request.url)}: the next page"
        if not isinstance(found, str):
            raise self._refused("next page", f"{where} is no text but a {type(found).__name__}")
        try:
            url = url_of(urljoin(str(request.url), found))
        except ValueError as error:
            raise self._refused("next page", f"{where} is no URL: {error}") from None
        if not _is_same_host(request.url, url):
            raise self._refused("next page", f"{where} is on another host, {self._shown(url)}")
        if str(url) in seen:
            raise self._refused("next page", f"{where} is one that came before, {self._shown(url)}")
        seen.add(str(url))
        return replace(request, url=url.with_user(None))

    def _broken(self, error: Exception, url: URL) -> Refused:
        """Return what a failure of the connection means."""
        kind = "malformed answer" if isinstance(error, Undecodable) else "connection"
        lasting = isinstance(error, ValueError) or _is_of_certificate(error)
        said = str(error) or type(error).__name__
        return self._refused(kind, f"{self._shown(url)}: {type(error).__name__}: {said}", again=not lasting)

    def _refused(self, kind: str, message: str, *, again: bool = False, wait: float | None = None) -> Refused:
        return Refused(kind, shortened(self._secrets.scrub(message)), again=again, wait=wait)

    def _excerpt(self, answer: bytes) -> str:
        begin = answer[:_ERROR_BYTES].decode(errors="replace")
        whole = len(answer) <= _ERROR_BYTES
        scrubbed = self._secrets.scrub(begin) if whole else self._secrets.scrub_beginning(begin)
        return shortened(scrubbed, _ERROR_SHOWN)

    def _shown(self, url: URL) -> str:
        return self._secrets.scrub(f"{self._source.method} {url.with_user(None)}")


def _is_same_host(one: URL, other: URL) -> bool:
    """Whether both are of one scheme, host and port; https in place of http is as well."""
    mine, its = ((url.scheme, url.host, url.port) for url in (one, other))
    return mine == its or (mine == ("http", one.host, 80) and its == ("https", one.host, 443))


def retry_after(response: aiohttp.ClientResponse) -> float | None:
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
