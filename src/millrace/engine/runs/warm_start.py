"""What an eddy learned, for the eddies of later tasks."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Protocol

from millrace.engine.statistics import Statistics

FORMAT = 1
"""Version of the text: of what statistics export and of the names they give to accounts."""


class WarmStart(Protocol):
    """A place where one text is kept for all eddies of a run on this machine."""

    def read(self) -> str | None:
        """Return the text, or None when there is none yet."""

    def write(self, text: str) -> None:
        """Replace the text."""


def recall(warm_start: WarmStart | None, statistics: Statistics) -> None:
    """Begin with what was learned before; a text that is damaged, or of another version, is none."""
    text = None if warm_start is None else warm_start.read()
    if text is not None:
        with suppress(KeyError, OverflowError, TypeError, ValueError):
            lessons = json.loads(text)
            if lessons["format"] == FORMAT:
                statistics.learn(lessons["learned"])


def share(warm_start: WarmStart | None, statistics: Statistics) -> None:
    """Leave what was learned to others."""
    if warm_start is not None:
        warm_start.write(as_text(statistics))


def as_text(statistics: Statistics) -> str:
    """Return what was learned as the text that :func:`recall` reads."""
    return json.dumps({"format": FORMAT, "learned": statistics.export()}, separators=(",", ":"))
