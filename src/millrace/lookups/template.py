"""Templates of requests: keys and secrets put into URLs and JSON bodies without changing their structure.

``{column}`` stands for the value of a bind column and ``${NAME}`` for a secret; ``{{`` and ``}}`` are braces.
What is put into a URL is percent-encoded, and no key can name another host or climb out of its folder.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal
from urllib.parse import quote, unquote, urlsplit

import numpy as np
import pyarrow as pa

from millrace.errors import InputError
from millrace.limits.secrets import NAME, Secrets

_TOKEN = re.compile(rf"{NAME.pattern}|(\{{\{{|\}}\}})|\{{([^{{}}]+)\}}|([{{}}])")


class Unsendable(ValueError):
    """A key cannot be asked for in the way the template says; the text says why."""


@dataclass(frozen=True)
class Part:
    """A piece of a template: literal text, the name of a bind column, or the name of a secret."""

    kind: Literal["text", "column", "secret"]
    text: str


def parts(template: str, what: str) -> tuple[Part, ...]:
    """Cut a template into its parts.

    Raises:
        InputError: A brace has no counterpart.
    """
    return tuple(_parts(template, what))


def _parts(template: str, what: str) -> Iterator[Part]:
    end = 0
    for found in _TOKEN.finditer(template):
        if found.start() > end:
            yield Part("text", template[end : found.start()])
        end = found.end()
        secret, brace, column, stray = found.groups()
        if stray:
            raise InputError(
                f"{what} has a {stray} without its counterpart at position {found.start()}: a bind column is "
                "written {column}, a secret ${NAME}, a brace itself is doubled"
            )
        if secret:
            yield Part("secret", secret)
        elif brace:
            yield Part("text", brace[0])
        else:
            yield Part("column", column)
    if end < len(template):
        yield Part("text", template[end:])


def columns_of(pieces: Sequence[Part]) -> tuple[str, ...]:
    """Return the bind columns that a template mentions, each once."""
    return tuple(dict.fromkeys(piece.text for piece in pieces if piece.kind == "column"))


def base_parts(pieces: Sequence[Part]) -> int:
    """Return how many parts of a URL lie, wholly or partly, in its scheme, credentials and host."""
    before = ""
    for i, piece in enumerate(pieces):
        before += piece.text if piece.kind == "text" else "x"
        if re.search(r"[/?#]", before.partition("://")[2] if "://" in before else before):
            return i + 1
    return len(pieces)


def fill_url(
    pieces: Sequence[Part], values: Mapping[str, Sequence[str]], joined: str, secrets: Secrets, *, many: bool
) -> str:
    """Return the URL for some keys.

    A secret at the very beginning is taken as it is: a whole base URL. So is one within the host.

    ``values`` are the keys' texts, by bind column; ``joined`` stands between several, if the service takes
    ``many`` a request. Secrets have every name that the template mentions.

    Raises:
        Unsendable: A key has the separator in it, would be a step up in the path, or is empty within the
            path, where it would ask for everything.
    """
    base = base_parts(pieces)
    text = ""
    for i, piece in enumerate(pieces):
        if piece.kind == "text":
            text += piece.text
        elif piece.kind == "column":
            if "?" not in text and not all(values[piece.text]):
                raise Unsendable(
                    f"the key of {piece.text!r} is empty, and without it the path is another address"
                )
            text += joined.join(
                quote(value, safe="") for value in _separable(values[piece.text], joined, many)
            )
        else:
            behind = "".join(each.text for each in pieces[i + 1 : base] if each.kind == "text")
            in_host = i < base and "@" not in re.split(r"[/?#]", behind)[0]
            text += secrets.fill(f"${{{piece.text}}}", str if in_host else _quoted)
    if any(unquote(step) in (".", "..") for step in urlsplit(text).path.split("/")):
        raise Unsendable("a step of its path would be '.' or '..', which is another address")
    return text


def _quoted(text: str) -> str:
    return quote(text, safe="")


def _separable(values: Sequence[str], joined: str, many: bool) -> Sequence[str]:  # noqa: FBT001
    if many:
        for value in values:
            if joined in value:
                raise Unsendable(
                    f"the key {value!r} has the separator {joined!r} in it, and would be taken for two keys: "
                    "use another separator, a JSON body, or batch=1"
                )
    return values


def text_of(value: Any, kind: pa.DataType) -> str:
    """Return a key's value as it stands in a URL."""
    match value:
        case bool():
            return "true" if value else "false"
        case float():
            return str(np.float32(value)) if pa.types.is_float32(kind) else repr(value)
        case Decimal():
            return format(value, "f")
        case dt.datetime():
            return value.isoformat().replace("+00:00", "Z")
        case dt.date():
            return value.isoformat()
        case bytes():
            return base64.b64encode(value).decode()
    return str(value)


def fill_body(template: Any, keys: pa.RecordBatch, *, many: bool, joined: str, secrets: Secrets) -> str:
    """Return the JSON text of a body for some keys; the template is a JSON value.

    A text in it that is exactly ``{column}`` becomes the key's value, or with ``many`` the list of the keys'
    values. Within other texts it becomes text, with ``joined`` between several keys. Secrets have every name
    that the template mentions.

    Raises:
        Unsendable: JSON has no form for a key.
    """
    return _json(_filled(template, keys, many, joined, secrets))


def texts_of(template: Any) -> Iterator[str]:
    """Yield every text in a JSON value that may mention columns and secrets."""
    match template:
        case str():
            yield template
        case list():
            for each in template:
                yield from texts_of(each)
        case dict():
            for each in template.values():
                yield from texts_of(each)


def _filled(template: Any, keys: pa.RecordBatch, many: bool, joined: str, secrets: Secrets) -> Any:  # noqa: FBT001
    if isinstance(template, list):
        return [_filled(each, keys, many, joined, secrets) for each in template]
    if isinstance(template, dict):
        return {name: _filled(each, keys, many, joined, secrets) for name, each in template.items()}
    if not isinstance(template, str):
        return template
    pieces = parts(template, "the body")
    if len(pieces) == 1 and pieces[0].kind == "column":
        column = keys.column(pieces[0].text)
        values = [_sendable(value, column.type) for value in column.to_pylist()]
        return values if many else values[0]
    text = ""
    for piece in pieces:
        if piece.kind == "column":
            column = keys.column(piece.text)
            texts = [text_of(value, column.type) for value in column.to_pylist()]
            text += joined.join(_separable(texts, joined, many))
        else:
            text += piece.text if piece.kind == "text" else secrets.fill(f"${{{piece.text}}}")
    return text


def _sendable(value: Any, kind: pa.DataType) -> Any:
    return value if isinstance(value, bool | int | float | Decimal) else text_of(value, kind)


def _json(value: Any) -> str:
    """Like json.dumps, with decimals as numbers of all their digits."""
    match value:
        case Decimal():
            return format(value, "f")
        case list():
            return f"[{','.join(map(_json, value))}]"
        case dict():
            return f"{{{','.join(f'{json.dumps(name)}:{_json(each)}' for name, each in value.items())}}}"
    try:
        return json.dumps(value, allow_nan=False)
    except ValueError:
        raise Unsendable(f"JSON has no number {value}") from None
