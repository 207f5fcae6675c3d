"""How a scan comes along: at what rate, how much of it is still to come, and whether it has stalled."""

from __future__ import annotations

import math

from millrace.limits.clock import Clock

_MEMORY = 16
"""Arrivals after which the older ones count half."""

_SEEN = 1 / 10
"""Share of a scan that is taken to have come where its size is unknown: most of it is still to come."""

_LATE = 2
"""Times the usual gap between arrivals after which a scan counts as stalled."""


class Progress:
    """One scan, measured.

    Args:
        clock: What it is measured by; the scan begins now.
        total: Rows that the scan is expected to return, None if nobody knows.
        guessed: Whether more may come.

    Attributes:
        rows: What has come.
    """

    def __init__(self, clock: Clock, total: int | None, *, guessed: bool = False) -> None:
        self.rows = 0
        self._clock = clock
        self._total: float | None = total
        self._guessed = guessed
        self._last = clock.now()
        self._arrivals = 0
        self._recent = [0.0, 0.0, 0.0]  # arrivals, rows, seconds

    def arrive(self, rows: int) -> None:
        """Take note of a batch that came now."""
        now = self._clock.now()
        if self._arrivals == 1:
            self._recent = [0.0, 0.0, 0.0]  # before the first batch a source gets ready: that is no rate
        elif self._recent[0] >= _MEMORY:
            self._recent = [value / 2 for value in self._recent]
        for place, value in enumerate((1.0, rows, now - self._last)):
            self._recent[place] += value
        self._arrivals += 1
        self._last = now
        self.rows += rows

    @property
    def flow(self) -> float:
        """Seconds until a row that has not come is expected, if it is anywhere in the rest of the scan."""
        if not self.rows:
            return math.inf
        _, rows, seconds = self._recent
        total = self._total
        if total is None or (self._guessed and total <= self.rows):
            total = self.rows / _SEEN
        return max(0.0, total - self.rows) * seconds / rows / 2 if rows else 0.0

    @property
    def wait(self) -> float:
        """The same, and as long again as the scan has been stalling: a stall has no rate."""
        return self.flow + max(0.0, self._clock.now() - self._stalls)

    def slower(self, seconds: float) -> float:
        """Return from when on, if nothing comes, a row is expected to take longer than ``seconds``."""
        lacking = seconds - self.flow
        return -math.inf if lacking <= 0 else self._stalls + lacking

    @property
    def _stalls(self) -> float:
        """When the scan begins to stall."""
        arrivals, _, seconds = self._recent
        return self._last + (_LATE * seconds / arrivals if arrivals else 0.0)
