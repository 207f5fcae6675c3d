"""The largest resident memory of this process."""

from __future__ import annotations

import psutil


def peak_memory() -> int:
    """Return the largest resident memory that this process has had, in bytes."""
    process = psutil.Process()
    try:
        import resource
    except ImportError:  # Windows has its own counter
        return int(process.memory_info().peak_wset)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
