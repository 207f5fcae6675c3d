"""Literal credentials are refused: a plan, a log or a report would show them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from millrace.errors import InputError
from millrace.limits.secrets import NAME

_HEADER = re.compile(
    r"^(proxy-)?authori[sz]ation$|^cookie2?$|(api|subscription|functions)-?key|token|secret|password",
    re.IGNORECASE,
)
_FIELD = re.compile(
    r"(password|passwd|pwd|secret|token|(api|access|account|subscription)[-_]?key|signature)$", re.IGNORECASE
)
_SHORT_FIELD = re.compile(r"^(key|sig|code|auth)$", re.IGNORECASE)
_LONG = 16
"""Characters from which a parameter with so general a name holds a credential rather than a word."""

_IN_CONNECTION = re.compile(r"(?:^|[;?&])\s*(?:password|pwd)\s*=\s*([^;&]+)", re.IGNORECASE)
_IN_TEXT = re.compile(r"\{[^{}]*\}")


def check_url(url: str, what: str) -> None:
    """Raise an InputError for a URL with a password, or a parameter that looks like one, written out."""
    marked = _marked(url)
    try:
        pieces = urlsplit(marked)
    except ValueError as error:
        raise InputError(f"{what} cannot be read: {error}") from None
    credentials, at, _ = pieces.netloc.rpartition("@")
    _, colon, password = credentials.partition(":")
    if at and colon and password and not _is_secret(password):
        raise InputError(
            f"{what} has a password written out: put it into an environment variable and write ${{NAME}} in "
            "its place, such as https://user:${PASSWORD}@host"
        )
    check_fields(dict(parse_qsl(pieces.query)), f"{what}, parameter")


def check_headers(headers: Mapping[str, str]) -> None:
    """Raise an InputError for a header that carries credentials and has them written out."""
    for name, value in headers.items():
        if _HEADER.search(name) and not NAME.search(value):
            raise InputError(
                f"header {name!r} carries credentials, and they are written out: put them into an "
                f"environment variable and write ${{NAME}} in their place, as in {{{name!r}: '${{TOKEN}}'}}"
            )


def check_fields(fields: Any, what: str) -> None:
    """Raise an InputError for a field, at any depth, that looks like a literal credential."""
    if isinstance(fields, list):
        for each in fields:
            check_fields(each, what)
    if not isinstance(fields, Mapping):
        return
    for name, value in fields.items():
        if isinstance(value, str) and (_holds_password(value) or _is_credential(str(name), value)):
            raise InputError(
                f"{what} {name!r} looks like a credential that is written out: put it into an environment "
                "variable and write ${NAME} in its place"
            )
        check_fields(value, what)


def _is_credential(name: str, value: str) -> bool:
    """Tell whether the name of a field says that its value, which is written out, is a credential."""
    if not value or _is_secret(value) or _IN_TEXT.search(value):
        return False
    return bool(_FIELD.search(name) or (_SHORT_FIELD.search(name) and len(value) >= _LONG))


def _holds_password(value: str) -> bool:
    """Tell whether a text is a connection string, as for ``odbc_connect``, with a password written out."""
    return any(not _is_secret(found) for found in _IN_CONNECTION.findall(value))


def _marked(text: str) -> str:
    """Put a text that parsers of URLs leave alone in the place of secrets."""
    return NAME.sub("_secret_of_a_lookup_", text)


def _is_secret(text: str) -> bool:
    return "_secret_of_a_lookup_" in text or NAME.search(text) is not None
