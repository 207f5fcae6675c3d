"""Asking a service over HTTP for rows: one request, its pages, and the rows of its answer.

A next page is of the same scheme, host and port: the headers may carry credentials.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin

import pyarrow as pa
from yarl import URL

from millrace.errors import InputError
from millrace.limits.secrets import Secrets
from millrace.lookups import paths, template
from millrace.lookups.clients import Client, Request, is_same_host, make_request, parse_url
from millrace.lookups.source import Refused, shortened
from millrace.lookups.values import ABSENT, Unfit, has_decimals

if TYPE_CHECKING:
    from millrace.lookups.http import HttpSource


def find_base(source: HttpSource, secrets: Secrets) -> tuple[str, str, int]:
    """Return scheme, host and port of a source's URL.

    Raises:
        InputError: It has none, or others than HTTP's.
    """
    pieces = template.parts(source.url, "the URL")
    values = {column: ["x"] for column in template.columns_of(pieces)}
    try:
        url = parse_url(template.fill_url(pieces, values, source.separator, secrets, many=False))
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
        self._headers = {name: secrets.fill(value) for name, value in source.headers}
        self._client = Client(
            source.terms.max_in_flight,
            secrets,
            lambda url: f"{source.method} {url.with_user(None)}",
            f"max_bytes={source.max_bytes:,}",
            exact=any(map(has_decimals, schema.types)),
        )

    async def fetch(self, keys: pa.RecordBatch) -> pa.RecordBatch:
        """Ask for some keys; see :meth:`millrace.lookups.source.Session.fetch`."""
        many = self._source.terms.batch > 1
        key = None if many else {name: keys.column(name)[0] for name in self._columns}
        request = self._make_request(keys)
        batches: list[pa.RecordBatch] = []
        left = self._source.max_bytes
        seen = {str(request.url)}
        while True:
            missing = () if batches else self._source.missing
            answer, size = await self._client.ask(request, left, missing)
            left -= size
            batches.append(self._read_rows(answer, key, request.url))
            following = self._find_next(answer, request, seen)
            if following is None:
                return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
            request = following

    async def scan(self) -> AsyncIterator[pa.RecordBatch]:
        """Return everything, a batch a page; see :meth:`millrace.lookups.source.Session.scan`."""
        request: Request | None = self._make_request(None)
        assert request is not None
        seen = {str(request.url)}
        while request is not None:
            answer, _ = await self._client.ask(request, self._source.max_bytes)
            batch = self._read_rows(answer, None, request.url)
            request = self._find_next(answer, request, seen)
            yield batch

    async def close(self) -> None:
        await self._client.close()

    def _make_request(self, keys: pa.RecordBatch | None) -> Request:
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
            return make_request(self._source.method, url, self._headers, body)
        except ValueError as error:
            said = self._secrets.scrub(f"{self._source.describe()}: {error}")
            raise Refused("unsendable key", shortened(said)) from None

    def _read_rows(self, answer: Any, key: dict[str, Any] | None, url: URL) -> pa.RecordBatch:
        try:
            return self._reader.batch(self._find_rows(answer), key)
        except Unfit as error:
            raise self._client.refuse(url, "unfit answer", str(error)) from None

    def _find_rows(self, answer: Any) -> list[Any]:
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

    def _find_next(self, answer: Any, request: Request, seen: set[str]) -> Request | None:
        """Return the request for the next page, or None if this is the last."""
        found = ABSENT if self._next is None or answer is ABSENT else self._next.one(answer)
        if found is ABSENT or found is None or found == "":
            return None
        refuse = partial(self._client.refuse, request.url, "next page")
        if not isinstance(found, str):
            raise refuse(f"the next page is no text but a {type(found).__name__}")
        try:
            url = parse_url(urljoin(str(request.url), found))
        except ValueError as error:
            raise refuse(f"the next page is no URL: {error}") from None
        if not is_same_host(request.url, url):
            raise refuse(f"the next page is on another host, {url.with_user(None)}")
        if str(url) in seen:
            raise refuse(f"the next page is one that came before, {url.with_user(None)}")
        seen.add(str(url))
        return replace(request, url=url.with_user(None))
