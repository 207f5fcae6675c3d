"""Lookups over HTTP: a request for each key, or for several, that is answered in JSON.

A next page is of the same scheme, host and port: the headers may carry credentials.
"""

from __future__ import annotations

import json
import re
import socket
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Unpack
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import pyarrow as pa

from millrace.engine.arrays import joined
from millrace.errors import InputError, OptionError, UnsupportedType, near, require
from millrace.limits.policy import LookupOptions, check_options, settings_of
from millrace.limits.secrets import Secrets, names_in
from millrace.lookups import credentials, paths
from millrace.lookups.rows import RowReader, check_columns, check_schema
from millrace.lookups.source import Refused, check_mentions, shortened
from millrace.lookups.template import base_parts, columns_of, fill_body, fill_url, parts, text_of, texts_of
from millrace.lookups.terms import Terms
from millrace.lookups.values import ABSENT, IfAbsent, Rules, Unfit, has_decimals

if TYPE_CHECKING:
    from millrace.lookups.clients import Request

METHODS = ("GET", "POST", "PUT", "PATCH", "QUERY")
MEBIBYTE = 1 << 20
PATIENCE = 2.0
"""Seconds for a connection, before a job of many tasks finds out that there is none."""

_UNTRIED = "With check=False it is not tried before the query runs"

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(r"[\x20-\x7e\t]*")
_OURS = ("content-length", "transfer-encoding", "connection")


@dataclass(frozen=True)
class HttpSource:
    """A service that is asked over HTTP; made by :func:`http`, where the arguments are explained."""

    kind: ClassVar[str] = "http"

    url: str
    terms: Terms = field(repr=False)
    method: str = "GET"
    body: str | None = None
    rows: str = "$"
    columns: tuple[tuple[str, str], ...] = ()
    headers: tuple[tuple[str, str], ...] = ()
    missing: tuple[int, ...] = (404,)
    separator: str = ","
    next: str | None = None
    max_bytes: int = 64 * MEBIBYTE
    absent: IfAbsent = "error"
    connects: bool = True

    def __post_init__(self) -> None:
        if not self.url or not isinstance(self.url, str):
            raise InputError(f"the URL of a lookup is {self.url!r}, expected a text")
        credentials.check_url(self.url, "the URL of a lookup")
        pieces = parts(self.url, "the URL of a lookup")
        if pieces[0].kind == "text" and not pieces[0].text.lower().startswith(("http://", "https://")):
            raise InputError(
                f"the URL {self.url!r} of a lookup has no host to ask: expected one such as "
                "https://host/path/{key}"
            )
        for piece in pieces[: base_parts(pieces)]:
            if piece.kind == "column":
                raise InputError(
                    f"the URL {self.url!r} has {{{piece.text}}} in its host: a key cannot choose whom to ask"
                )
        if self.method not in METHODS:
            raise OptionError(f"method is {self.method!r}: {near(str(self.method), METHODS)}")
        credentials.check_fields(self.template, "the body's field")
        for text in texts_of(self.template):
            parts(text, "the body")
        for name, value in self.headers:
            _check_header(name, value)
        credentials.check_headers(dict(self.headers))
        for status in self.missing:
            if type(status) is not int or not 200 <= status <= 599:
                raise OptionError(f"missing has {status!r}, expected HTTP statuses such as 404")
        if not self.separator or not isinstance(self.separator, str):
            raise OptionError(f"separator is {self.separator!r}, expected a text such as ','")
        if type(self.max_bytes) is not int or self.max_bytes < 1:
            raise OptionError(f"max_bytes is {self.max_bytes!r}, expected a whole number above 0")
        if self.absent not in ("error", "null"):
            raise OptionError(f"absent is {self.absent!r}: {near(str(self.absent), ('error', 'null'))}")
        paths.path(self.rows, "rows")
        if self.next is not None and paths.path(self.next, "next").steps is None:
            raise InputError(
                f"next is {self.next!r}, which can find several values; expected a path to one URL"
            )
        for column, where in self.columns:
            paths.relative(where, f"the path of column {column!r}")

    @property
    def template(self) -> Any:
        """The body as a JSON value; None if there is none."""
        return None if self.body is None else json.loads(self.body)

    @property
    def secrets(self) -> tuple[str, ...]:
        return names_in(self.url, *(value for _, value in self.headers), *texts_of(self.template))

    @property
    def placeholders(self) -> tuple[str, ...]:
        """The bind columns that the URL and the body mention."""
        found = list(columns_of(parts(self.url, "the URL")))
        for text in texts_of(self.template):
            found.extend(columns_of(parts(text, "the body")))
        return tuple(dict.fromkeys(found))

    @property
    def can_scan(self) -> bool:
        """Whether the request is the same for all: then its answer is everything."""
        return not self.placeholders

    @property
    def identity(self) -> str:
        """What decides the answers; how fast and how patiently they are asked for does not."""
        return f"{self.terms.batch} {replace(self, connects=True, max_bytes=1)}"

    def describe(self) -> str:
        return f"http {self.method} {self.url}"

    def check_names(self, columns: tuple[str, ...]) -> None:
        """Compare the bind columns with those that the URL and the body mention."""
        check_mentions(self.describe(), self.placeholders, columns, "the URL or the body")

    def check(self, schema: pa.Schema, columns: tuple[str, ...], secrets: Secrets) -> None:
        """Find what is wrong without sending a request; see :meth:`millrace.lookups.source.Source.check`."""
        check_schema(schema, columns)
        for column in schema:
            _check_maps(column.name, column.type)
        self.check_names(columns)
        check_columns(dict(self.columns), schema, "columns")
        self.reader(schema, columns, str)
        for name, value in self.headers:
            if not _VALUE.fullmatch(secrets.fill(value)):
                raise InputError(
                    f"header {name!r} ({value!r}) has a character that headers cannot have, within its "
                    "secrets: is there a line break at their end?"
                )
        require("lookups", self.describe(), "aiohttp")
        from millrace.lookups.clients import parse_url

        pieces = parts(self.url, "the URL")
        values = {column: ["x"] for column in columns_of(pieces)}
        try:
            url = parse_url(fill_url(pieces, values, self.separator, secrets, many=False))
        except ValueError as error:
            said = f"the URL {self.url!r} of a lookup cannot be used: {error}"
            raise InputError(secrets.scrub(said)) from None
        if self.connects:
            check_reachable(url.scheme, url.host or "", url.port or 0, self.describe(), secrets)

    def reader(self, schema: pa.Schema, columns: tuple[str, ...], scrub: Any) -> RowReader:
        """Return what makes batches of rows; InputError if a path finds several values for one column."""
        getters = {}
        for column, where in self.columns:
            found = paths.relative(where, f"the path of column {column!r}")
            if found.steps is None and not pa.types.is_list(schema.field(column).type):
                raise InputError(
                    f"the path {where!r} of column {column!r} can find several values; it is no array"
                )
            getters[column] = paths.getter(found)
        return RowReader(schema, columns, Rules(absent=self.absent, scrub=scrub), getters)

    def open(self, schema: pa.Schema, columns: tuple[str, ...], secrets: Secrets) -> HttpSession:
        """Return a session; it connects with its first request."""
        return HttpSession(self, schema, columns, secrets)


def http(
    url: str,
    *,
    method: str = "GET",
    body: Any = None,
    rows: str = "$",
    columns: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
    missing: Sequence[int] = (404,),
    separator: str = ",",
    next: str | None = None,  # noqa: A002  # what it is, in the user's words
    max_bytes: int = 64 * MEBIBYTE,
    absent: IfAbsent = "error",
    check: bool = True,
    max_retry_after: float = 60.0,
    **limits: Unpack[LookupOptions],
) -> HttpSource:
    """Return a source that asks a service over HTTP and takes rows out of its JSON answers.

    Values are taken strictly: one that is not of its column's declared type fails the request. Decimals keep
    every digit; dates and times are ISO 8601, binary is base64. NaN and Infinity may stand where floats do.

    Args:
        url: With ``{column}`` for each bind column, percent-encoded in path and query, and ``${NAME}`` for
            secrets. With ``batch`` above 1 the keys of a request are joined by ``separator``; those of
            several bind columns stand in the same order.
        method: ``"GET"``, ``"POST"``, ``"PUT"``, ``"PATCH"`` or ``"QUERY"``.
        body: A JSON value to send. A text in it that is exactly ``"{column}"`` becomes the key itself (a
            number for a number), or with ``batch`` above 1 the list of keys.
        rows: JSON path (RFC 9535) to the rows in an answer: to one object, to an array of them, or to each.
        columns: Where columns are in a row, by relative path (``"price.amount"``); the others are under
            their names. With ``batch`` 1, rows may lack the bind columns.
        headers: Sent with each request; ``${NAME}`` stands for a secret.
        missing: Statuses that mean that there are no rows.
        separator: Stands between several keys in the URL. A key that contains it fails.
        next: JSON path to the URL of an answer's next page, on the same host.
        max_bytes: Of one answer with all its pages (of one page in a scan), unpacked; longer ones fail.
        absent: ``"error"`` fails a request if a row lacks a column; ``"null"`` takes it as null, and rows
            that are not there as none.
        check: Whether to try to connect to the host before anything runs.
        max_retry_after: Seconds for which the service can make all tasks wait by ``Retry-After``, at most.
        limits: See :class:`millrace.LookupOptions`.

    Raises:
        InputError: The URL, a path, a header or the body cannot be used, or has credentials written out.
        OptionError: A setting is out of its range.
    """
    try:
        text = None if body is None else json.dumps(body, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InputError(f"the body of a lookup is no JSON value: {error}") from None
    check_options("millrace.http", limits, settings_of(http, LookupOptions))
    return HttpSource(
        url,
        Terms(max_retry_after=max_retry_after, **limits),
        method,
        text,
        rows,
        tuple((columns or {}).items()),
        tuple((headers or {}).items()),
        tuple(missing),
        separator,
        next,
        max_bytes,
        absent,
        check,
    )


class HttpSession:
    """An open :class:`HttpSource`."""

    def __init__(
        self, source: HttpSource, schema: pa.Schema, columns: tuple[str, ...], secrets: Secrets
    ) -> None:
        from millrace.lookups.clients import Client

        self._source = source
        self._columns = columns
        self._secrets = secrets
        self._reader = source.reader(schema, columns, secrets.scrub)
        self._rows = paths.path(source.rows, "rows")
        self._next = None if source.next is None else paths.path(source.next, "next")
        self._pieces = parts(source.url, "the URL")
        self._template = source.template
        self._headers = {name: secrets.fill(value) for name, value in source.headers}
        self._client = Client(
            source.terms.max_in_flight,
            secrets,
            f"max_bytes={source.max_bytes:,}",
            exact=any(map(has_decimals, schema.types)),
        )

    async def fetch(self, keys: pa.RecordBatch) -> pa.RecordBatch:
        """Ask for some keys; see :meth:`millrace.lookups.source.Session.fetch`."""
        key = None
        if self._source.terms.batch == 1:
            key = {name: keys.column(name)[0] for name in self._columns}
        return joined([batch async for batch in self._read_pages(keys, key)])

    def scan(self) -> AsyncGenerator[pa.RecordBatch, None]:
        """Return everything, a batch a page; see :meth:`millrace.lookups.source.Session.scan`."""
        return self._read_pages(None, None)

    async def close(self) -> None:
        await self._client.close()

    async def _read_pages(
        self, keys: pa.RecordBatch | None, key: dict[str, Any] | None
    ) -> AsyncGenerator[pa.RecordBatch, None]:
        """Yield the rows of each page; those of keys share ``max_bytes``, and there may be none of them."""
        request: Request | None = self._make_request(keys)
        assert request is not None
        left, seen = self._source.max_bytes, {str(request.url)}
        missing = () if keys is None else self._source.missing
        while request is not None:
            answer, size = await self._client.ask(request, left, missing)
            batch = self._read_rows(answer, key, request)
            request = self._find_next(answer, request, seen)
            if keys is not None:
                left, missing = left - size, ()
            yield batch

    def _make_request(self, keys: pa.RecordBatch | None) -> Request:
        """Return the request for some keys, or for everything."""
        many = self._source.terms.batch > 1
        keys = pa.record_batch({}) if keys is None else keys
        values = {
            name: [text_of(v, column.type) for v in column.to_pylist()]
            for name, column in zip(keys.schema.names, keys.columns, strict=True)
        }
        separator, secrets = self._source.separator, self._secrets
        try:
            url = fill_url(self._pieces, values, separator, secrets, many=many)
            body = None
            if self._template is not None:
                body = fill_body(self._template, keys, many=many, joined=separator, secrets=secrets)
            return self._client.make_request(self._source.method, url, self._headers, body)
        except ValueError as error:
            said = self._secrets.scrub(f"{self._source.describe()}: {error}")
            raise Refused("unsendable key", shortened(said)) from None

    def _read_rows(self, answer: Any, key: dict[str, Any] | None, request: Request) -> pa.RecordBatch:
        try:
            return self._reader.batch(self._find_rows(answer), key)
        except Unfit as error:
            raise self._client.refuse(request, "unfit answer", str(error)) from None

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
        if not isinstance(found, str):
            said = f"the next page is no text but a {type(found).__name__}"
            raise self._client.refuse(request, "next page", said)
        following = self._client.lead(request, found, "next page")
        if str(following.url) in seen:
            said = f"the next page is one that came before, {following.url}"
            raise self._client.refuse(request, "next page", said)
        seen.add(str(following.url))
        return following


def _check_header(name: object, value: object) -> None:
    if not isinstance(name, str) or not _TOKEN.fullmatch(name):
        raise InputError(f"{name!r} is no name of a header: letters, digits and hyphens are")
    if name.lower() in _OURS:
        raise InputError(f"header {name!r} is set by the connection itself; leave it out")
    if not isinstance(value, str) or not _VALUE.fullmatch(value):
        raise InputError(
            f"header {name!r} has a value that headers cannot have: expected visible ASCII characters"
        )


def _check_maps(name: str, kind: pa.DataType) -> None:
    if pa.types.is_map(kind) and not pa.types.is_string(kind.key_type):
        raise UnsupportedType(
            f"column {name!r} has a map with keys of type {kind.key_type}; keys of JSON objects are strings"
        )
    for i in range(kind.num_fields):
        _check_maps(name, kind.field(i).type)


def check_reachable(scheme: str, host: str, port: int, what: str, secrets: Secrets) -> None:
    """Open a TCP connection and close it; to the proxy, where one leads to the host.

    Raises:
        InputError: The host has no address, or nobody accepts the connection.
    """
    proxies = getproxies()
    proxy = proxies.get(scheme) or proxies.get("all")
    if proxy and not proxy_bypass(host):
        pieces = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
        if pieces.hostname is None:
            return
        host, port = pieces.hostname, pieces.port or (443 if pieces.scheme == "https" else 80)
        what = f"{what}, through a proxy"
    shown = secrets.scrub(f"{host}:{port}")
    try:
        socket.create_connection((host, port), PATIENCE).close()
    except socket.gaierror as error:
        raise InputError(
            f"{what}: the host {secrets.scrub(host)!r} has no address ({error.strerror}): is its name right? "
            f"{_UNTRIED}"
        ) from None
    except (OSError, UnicodeError) as error:
        raise InputError(
            f"{what}: nobody accepts a connection at {shown} within {PATIENCE:g} s ({type(error).__name__}): "
            f"is the service up, and can this process reach it? {_UNTRIED}"
        ) from None
