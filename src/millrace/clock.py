"""Time, as the eddy sees it: real in production, simulated in experiments and tests."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Seconds since some fixed moment; never goes back."""

    def now(self) -> float:
        """Return the time in seconds."""
        ...


class WallClock:
    """The machine's monotonic clock."""

    def now(self) -> float:
        """Return the time in seconds."""
        return time.perf_counter()


class VirtualClock:
    """A clock that moves only when it is told to, so that runs are exact and repeatable."""

    def __init__(self, start: float = 0.0) -> None:
        self._now = start

    def now(self) -> float:
        """Return the simulated time in seconds."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Move the time forward; ValueError for a negative step."""
        if seconds < 0:
            raise ValueError(f"time cannot go back by {-seconds} s")
        self._now += seconds
