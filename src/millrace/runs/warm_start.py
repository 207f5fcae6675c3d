"""What an eddy learned, for the eddies of later tasks."""

from __future__ import annotations

import json
from typing import Protocol

from millrace.statistics import Statistics


class WarmStart(Protocol):
    """A place where one text is kept for all eddies of a run on this machine."""

    def read(self) -> str | None:
        """Return the text, or None when there is none yet."""

    def write(self, text: str) -> None:
        """Replace the text."""


def recall(warm_start: WarmStart | None, statistics: Statistics) -> None:
    """Begin with what was learned before; a text that cannot be read is none."""
    text = None if warm_start is None else warm_start.read()
    if text is not None:
        statistics.learn(json.loads(text))


def share(warm_start: WarmStart | None, statistics: Statistics) -> None:
    """Leave what was learned to others."""
    if warm_start is not None:
        warm_start.write(json.dumps(statistics.export(), separators=(",", ":")))
