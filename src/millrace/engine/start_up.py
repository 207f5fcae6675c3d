"""What a process does before its modules work: a new worker starts, compiled kernels are loaded.

Reports tell of it in a line of its own, so modules are measured by :func:`work_time`. Spark's workers run
many tasks, and a report is about one. A worker may have run Spark's own tasks before Millrace's first one. So
its start-up counts from the moment when it began to load Millrace, also where it is new.
"""

from __future__ import annotations

import os
import time

from millrace.engine.kernels.compiling import load_seconds
from millrace.engine.peak import IMPORTED
from millrace.limits.clock import Clock, WallClock

_imported: float | None = IMPORTED
"""Where the first task counts from; None after it."""

_started = 0.0
"""Processor time of the process's start-up, if that is this task's."""

_before = 0.0
"""Seconds of loading that are not this task's."""


def begin_task() -> None:
    """Count start-up from now on; that of the process is its first task's."""
    global _imported, _started, _before
    if _imported is None:
        _started, _before = 0.0, load_seconds()
    else:
        _started, _imported = max(0.0, time.process_time() - _imported), None


def _note_fork() -> None:
    """Count nothing of what the process was forked with: another has loaded it."""
    global _imported
    _imported = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_fork)


def start_seconds() -> float:
    """Return the seconds of start-up since :func:`begin_task`, or of loading since the process began."""
    return _started + load_seconds() - _before


def work_time(clock: Clock) -> float:
    """Return the time in seconds; a real clock's stands still while kernels are loaded."""
    return clock.now() - (load_seconds() if isinstance(clock, WallClock) else 0.0)
