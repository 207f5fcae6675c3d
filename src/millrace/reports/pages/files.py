"""Pages on disk and on screens: written whole or not at all, never over a file of another kind."""

from __future__ import annotations

import os
import sys
import tempfile
import uuid
import webbrowser
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, cast

from millrace.errors import InputError, SetupError

if TYPE_CHECKING:
    from millrace.reports.run_report import RunReport

GENERATOR = '<meta name="generator" content="Millrace report">'
"""Stands at the beginning of every page: what has it may be replaced."""

_HEAD = 1000
_SUFFIXES = (".html", ".htm")


def check_target(target: Path) -> None:
    """Raise InputError where a page cannot be written; called before anything runs."""
    if target.suffix.lower() not in _SUFFIXES:
        raise InputError(
            f"cannot write the page {target}: expected a name that ends in .html; to_json() and to_pandas() "
            "give the figures as data"
        )
    if target.is_dir():
        raise InputError(f"cannot write {target}: it is a folder, expected the name of a file")
    if not target.parent.is_dir():
        raise InputError(f"cannot write {target}: there is no folder {target.parent}; make it first")
    if not os.access(target.parent, os.W_OK):
        raise InputError(f"cannot write {target}: the folder {target.parent} is not writable")
    if target.exists() and not _is_page(target):
        raise InputError(
            f"cannot write {target}: a file that is no report page of Millrace stands there; expected a new "
            "name, or that of an older report"
        )


def _is_page(target: Path) -> bool:
    with target.open("rb") as file:
        head = file.read(_HEAD)
    return not head or GENERATOR.encode() in head


def save(html: str, target: Path) -> Path:
    """Write a page and return its path.

    Raises:
        InputError: It cannot be written there.
    """
    check_target(target)
    write_whole(html, target)
    return target


def write_whole(text: str, target: Path) -> None:
    """Write a text to a file, whole or not at all: what was begun is removed if that fails."""
    beside = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
    try:
        with beside.open("x", encoding="utf-8") as file:
            file.write(text)
        beside.replace(target)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def show(report: RunReport) -> None:
    """Show a report: in a notebook below the cell, else in the browser.

    Raises:
        SetupError: There is neither; the page is written all the same.
    """
    display = _notebook()
    if display is not None:
        display(report)
        return
    folder = Path(tempfile.mkdtemp(prefix="millrace-"))  # which nobody else can read
    page = save(report.to_html(), folder / "report.html")
    if not webbrowser.open(page.as_uri()):
        raise SetupError(
            f"there is no browser that could be opened here: the page is {page}; save() writes it elsewhere"
        )


def is_notebook() -> bool:
    """Whether this runs in a kernel of IPython's, below whose cells things are shown."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return shell is not None and getattr(shell, "kernel", None) is not None


def _notebook() -> Callable[[object], object] | None:
    """Return what displays an object in the notebook that this runs in, None where it runs in none."""
    if is_notebook():
        return cast("Callable[[object], object]", sys.modules["IPython.display"].display)
    marimo = sys.modules.get("marimo")
    if marimo is not None and marimo.running_in_notebook():
        return cast("Callable[[object], object]", marimo.output.append)
    return None
