"""Where commands print: a terminal of its own width, or a pipe or a log, which has none."""

from __future__ import annotations

import os

from rich.console import Console

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
