"""The event loop of whatever speaks to the coordinator and to services: uvloop's, where there is one.

It does the work of encrypted connections in C: with it the coordinator gives out half as many permits again.
"""

from __future__ import annotations

import asyncio

try:
    import uvloop as loops
except ImportError:  # on Windows, say
    import asyncio as loops  # type: ignore[no-redef]

__all__ = ["runner"]


def runner() -> asyncio.Runner:
    """Return what runs coroutines in a new event loop."""
    return asyncio.Runner(loop_factory=loops.new_event_loop)
