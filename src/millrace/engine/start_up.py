"""What a process does before its modules work: a new worker starts, compiled kernels are loaded.

Reports tell of it in a line of its own, so modules are measured by :func:`work_time`. Spark's workers run
many tasks, and a report is about one.
"""

from __future__ import annotations

import time

from millrace.engine.kernels.compiling import load_seconds
from millrace.limits.clock import Clock, WallClock

_started = 0.0
"""Processor time of this process before its first task."""

_before: float | None = None
"""Start-up that is not this task's; None before the first."""


def begin_task() -> None:
    """Count start-up from now on; that of the process is its first task's."""
    global _started, _before
    if _before is None:
        _started, _before = time.process_time(), 0.0
    else:
        _before = _started + load_seconds()


def start_seconds() -> float:
    """Return the seconds of start-up since :func:`begin_task`, or since the process began."""
    return _started + load_seconds() - (_before or 0.0)


def work_time(clock: Clock) -> float:
    """Return the time in seconds; a real clock's stands still while kernels are loaded."""
    return clock.now() - (load_seconds() if isinstance(clock, WallClock) else 0.0)
