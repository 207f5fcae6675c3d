"""The largest resident memory of the process: of a task where the system can tell, else of its whole life.

Spark's workers run many tasks, and a report is about one. Only Linux can be told to forget an earlier peak.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

IMPORTED = time.process_time()
"""Processor time that the process had taken when it began to load Millrace, which loads this file first."""

_STATUS = "/proc/{}/status"
_CLEAR = Path("/proc/self/clear_refs")
_FORGET_PEAK = "5"


def begin_peak() -> bool:
    """Measure the peak from now on; returns whether the system can."""
    try:
        _CLEAR.write_text(_FORGET_PEAK)
    except OSError:
        return False
    return True


def peak_memory(pid: int | None = None) -> int:
    """Return the largest resident memory since :func:`begin_peak` or the process began, in bytes.

    It is of this process without a ``pid``. Only Linux tells the peak of another; elsewhere it is what that
    has now.
    """
    status_of = Path(_STATUS.format("self" if pid is None else pid))
    try:  # not getrusage: a program that was started by another begins there with that one's peak
        status = dict(line.split(":", 1) for line in status_of.read_text().splitlines() if ":" in line)
        return int(status["VmHWM"].split()[0]) * 1024
    except (OSError, KeyError):
        pass
    if pid is not None:
        import psutil

        return int(psutil.Process(pid).memory_info().rss)
    try:
        import resource
    except ImportError:  # Windows has its own counter
        import psutil

        return int(psutil.Process().memory_info().peak_wset)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # macOS counts bytes, others kilobytes
