"""Time, as the eddy sees it: real in production, simulated in experiments and tests."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from typing import Protocol

Costs = Callable[[Hashable, int, int], float]
"""Returns the seconds that a module takes, from what was asked of it and its tuples in and out."""

POLLED = 0.001
"""Seconds between two looks at what has nothing at present."""

_LONGEST = 1.0
"""Seconds that real time is waited for at once, at most."""


class Clock(Protocol):
    """Seconds since some fixed moment; never goes back."""

    def now(self) -> float:
        """Return the time in seconds."""
        ...

    def spend(self, work: Hashable, tuples_in: int, tuples_out: int) -> None:
        """Let the time pass that a module's work takes by declaration; real work has taken its own."""
        ...

    def wait(self, seconds: float | None, event: threading.Event | None = None) -> None:
        """Let time pass, but real time not for long at once.

        Args:
            seconds: How much; None where nobody knows it, and only real time may tell.
            event: Ends the wait when it is set; cleared.
        """
        ...


class WallClock:
    """The machine's monotonic clock."""

    def now(self) -> float:
        return time.perf_counter()

    def spend(self, work: Hashable, tuples_in: int, tuples_out: int) -> None:
        """Nothing: it is over."""

    def wait(self, seconds: float | None, event: threading.Event | None = None) -> None:
        """Sleep until the event is set, or so many seconds have passed."""
        event = event or threading.Event()
        event.wait(POLLED if seconds is None else min(max(0.0, seconds), _LONGEST))
        event.clear()


class VirtualClock:
    """A clock that moves only when it is told to, so that runs are exact and repeatable.

    It begins at ``start``, in seconds. Without ``costs`` modules' work takes no time.
    """

    def __init__(self, start: float = 0.0, costs: Costs | None = None) -> None:
        self._now = start
        self._costs = costs

    def now(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        """Move the time forward; ValueError for a negative step."""
        if seconds < 0:
            raise ValueError(f"time cannot go back by {-seconds} s")
        self._now += seconds

    def wait(self, seconds: float | None, event: threading.Event | None = None) -> None:
        """Move the time forward; sleep in real time where nobody knows how far."""
        if seconds is None:
            WallClock().wait(None, event)
        else:
            self.advance(max(0.0, seconds))

    def spend(self, work: Hashable, tuples_in: int, tuples_out: int) -> None:
        """Move the time forward by what the work costs."""
        if self._costs is not None:
            self.advance(self._costs(work, tuples_in, tuples_out))
