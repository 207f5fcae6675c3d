"""``--json``: what a command found, as one JSON document in a file or on standard output (``-``)."""

from __future__ import annotations

import base64
import dataclasses
import datetime as dt
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from millrace.errors import InputError

STDOUT = Path("-")

Json = Annotated[
    Path | None,
    typer.Option("--json", metavar="FILE", help="Write what is found as JSON here; - for standard output."),
]


def check(target: Path | None) -> None:
    """Raise :class:`InputError` where a document cannot be written; called before anything runs."""
    if target in (None, STDOUT):
        return
    if target.is_dir() or not target.absolute().parent.is_dir():
        raise InputError(f"cannot write {target}: expected the name of a file in a folder that exists, or -")


def write(document: Any, target: Path) -> None:
    """Write a document: dates and decimals as text, bytes in base64, what is no number as null."""
    text = json.dumps(plain(document), ensure_ascii=False, allow_nan=False, indent=2)
    if target == STDOUT:
        typer.echo(text)
    else:
        target.write_text(text + "\n", encoding="utf-8")


def plain(value: Any) -> Any:
    """Return a value, of a row of Spark's too, in what JSON knows."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, bytes | bytearray):
        return base64.b64encode(value).decode()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return plain(vars(value))
    if hasattr(value, "asDict"):  # a Row
        return {name: plain(each) for name, each in value.asDict().items()}
    if isinstance(value, Mapping):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, Sequence):
        return [plain(each) for each in value]
    return value.isoformat() if isinstance(value, dt.date | dt.time) else str(value)
