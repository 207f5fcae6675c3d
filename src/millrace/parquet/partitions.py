"""What Spark makes of names: hidden files, and partition columns, ``year=2024/month=1``, as Hive has them.

Spark infers these columns' types from the texts. This repeats the inference where its result is certain, and
gives up where it is not: then Spark reads the table itself.
"""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import date
from typing import Any

import pyarrow as pa

NULL = "__HIVE_DEFAULT_PARTITION__"

_ESCAPED = re.compile("%([0-9A-Fa-f]{2})")
_INTEGER = re.compile(r"-?[0-9]{1,19}\Z")
_DOUBLE = re.compile(r"-?[0-9]+\.[0-9]+\Z")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}\Z")
_WORD = re.compile(r"[^\W\d_]", re.UNICODE)
# Words that some of Java's parsers take for a number or a point in time.
_NOT_WORDS = re.compile(r"(?i:nan|infinity|inf|epoch|now|today|tomorrow|yesterday)|T[0-9]")


class Doubtful(ValueError):
    """It is not certain that a direct scan sees what Spark sees; the message says why."""


def is_hidden(name: str) -> bool:
    """Return whether Spark passes over a file or folder of that name."""
    return name.startswith(".") or (name.startswith("_") and "=" not in name) or name.endswith("._COPYING_")


def split_folder(name: str) -> tuple[str, str] | None:
    """Return a folder name's column and text, both unescaped, or None for an ordinary folder."""
    column, equals, text = name.partition("=")
    if not equals:
        return None
    if not column or not text:
        raise Doubtful(f"folder {name!r} has an empty partition column or value")
    return _unescaped(column), _unescaped(text)


def _unescaped(text: str) -> str:
    return _ESCAPED.sub(lambda match: chr(int(match[1], 16)), text)  # one character each, not UTF-8


def infer(column: str, texts: set[str]) -> pa.DataType:
    """Return the column's type as Spark infers it.

    Raises:
        Doubtful: The texts mix types, or are of a kind whose reading is uncertain.
    """
    distinct = sorted(texts - {NULL})
    if not distinct:
        raise Doubtful(f"partition column {column!r} has no value but null")
    kinds = {_kind(column, text) for text in distinct}
    if pa.string() in kinds:
        kinds = {pa.string()}
    elif kinds == {pa.int32(), pa.int64()}:
        kinds = {pa.int64()}
    if len(kinds) > 1:
        raise Doubtful(f"partition column {column!r} mixes {' and '.join(sorted(map(str, kinds)))}")
    return kinds.pop()


def value_of(column: str, kind: pa.DataType, text: str) -> Any:
    """Return what Spark makes of a folder's text for a column whose type it knows.

    Raises:
        Doubtful: It is of a kind whose reading is uncertain.
    """
    if text == NULL:
        return None
    if pa.types.is_string(kind):
        return text
    if pa.types.is_integer(kind) and _INTEGER.match(text):
        bound = 1 << (kind.bit_width - 1)
        if -bound <= int(text) < bound:
            return int(text)
    if pa.types.is_float64(kind) and (_INTEGER.match(text) or _DOUBLE.match(text)):
        return float(text)
    if pa.types.is_date32(kind) and _DATE.match(text):
        with suppress(ValueError):
            return date.fromisoformat(text)
    if pa.types.is_boolean(kind) and text in ("true", "false"):
        return text == "true"
    raise Doubtful(f"partition value {column}={text} of type {kind}")


def _kind(column: str, text: str) -> pa.DataType:
    likely = (pa.int32(), pa.int64()) if _INTEGER.match(text) else (pa.float64(), pa.date32())
    for kind in likely:
        with suppress(Doubtful):
            value_of(column, kind, text)
            return kind
    if _WORD.match(text) and not _NOT_WORDS.match(text):
        return pa.string()
    raise Doubtful(f"partition value {column}={text}, whose type is uncertain")
