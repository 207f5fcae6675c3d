"""Lookups over HTTP: a request for each key, or for several, that is answered in JSON.

The source here is what to ask; :mod:`millrace.lookups.http_session` asks.
"""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Unpack
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import pyarrow as pa

from millrace.errors import InputError, OptionError, UnsupportedType, near, require
from millrace.limits.policy import LookupOptions, check_options, settings_of
from millrace.limits.secrets import Secrets, names_in
from millrace.lookups import credentials, paths
from millrace.lookups.rows import RowReader, check_columns, check_schema
from millrace.lookups.template import base_parts, columns_of, parts, texts_of
from millrace.lookups.terms import Terms
from millrace.lookups.values import IfAbsent, Rules

if TYPE_CHECKING:
    from millrace.lookups.http_session import HttpSession

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
    def kind(self) -> str:
        return "http"

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
        for column in self.placeholders:
            if column not in columns:
                wanted = near(column, columns) if columns else "a scan has none."
                raise InputError(
                    f"{self.describe()} mentions {{{column}}}, which is no bind column: {wanted}"
                )
        for column in columns:
            if column not in self.placeholders:
                raise InputError(
                    f"{self.describe()} lacks the bind column {column!r}: put {{{column}}} into the URL or "
                    "the body"
                )

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
        from millrace.lookups.http_session import find_base

        scheme, host, port = find_base(self, secrets)
        if self.connects:
            check_reachable(scheme, host, port, self.describe(), secrets)

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
        from millrace.lookups.http_session import HttpSession

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
        separator: Between several keys in the URL. A key with it in it fails.
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
