"""Where commands print: a terminal of its own width, a pipe or a log, which have none, or a JSON document."""

from __future__ import annotations

import base64
import dataclasses
import datetime as dt
import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from millrace.errors import InputError
from millrace.reports.pages.files import write_whole

_NO_TERMINAL = 200
"""Columns where nobody says how many there are: wide enough for every table, and lines stay whole."""


def consoles() -> tuple[Console, Console]:
    """Return standard output and standard error; colours follow ``NO_COLOR``, widths ``COLUMNS``."""
    return _console(stderr=False), _console(stderr=True)


def _console(*, stderr: bool) -> Console:
    made = Console(stderr=stderr)
    if not made.is_terminal and "COLUMNS" not in os.environ:
        made.width = _NO_TERMINAL
    return made


STDOUT = Path("-")

Json = Annotated[
    Path | None,
    typer.Option("--json", metavar="FILE", help="Write what is found as JSON here; - for standard output."),
]


def check(target: Path | None) -> None:
    """Raise :class:`InputError` where a document cannot be written; called before anything runs."""
    if target is None or target == STDOUT:
        return
    folder = target.absolute().parent
    if target.is_dir() or not folder.is_dir():
        why = "it is a folder" if target.is_dir() else f"there is no folder {folder}"
        raise InputError(f"cannot write {target}: {why}; expected a file's name, or - for standard output")


def beside(target: Path | None, stdout: Console, stderr: Console) -> Console:
    """Return where all else goes: who wants the document on standard output wants nothing else there."""
    return stderr if target == STDOUT else stdout


def write(document: Any, target: Path | None) -> None:
    """Write a document, whole or not at all, where one is wanted.

    Dates and decimals are text, bytes base64, and what is no number is null.
    """
    if target is None:
        return
    write_text(json.dumps(plain(document), ensure_ascii=False, allow_nan=False, indent=2), target)


def write_text(text: str, target: Path) -> None:
    """Write a text, whole or not at all."""
    if target == STDOUT:
        consoles()[0].out(text, highlight=False)
        return
    write_whole(text + "\n", target)


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
