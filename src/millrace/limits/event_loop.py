"""The event loop of whatever speaks to the coordinator and to services: uvloop's, where there is one.

It does the work of encrypted connections in C: with it the coordinator gives out half as many permits again.
"""

from __future__ import annotations

import asyncio
import os
import threading

END_SECONDS = 120.0
"""Until all that was said is written; a disk that hangs keeps no process alive for longer."""


def runner() -> asyncio.Runner:
    """Return what runs coroutines in a new event loop."""
    try:
        import uvloop as loops  # not with the module, which workers load that run no loop
    except ImportError:  # on Windows, say
        import asyncio as loops  # type: ignore[no-redef]
    return asyncio.Runner(loop_factory=loops.new_event_loop)


def end_within(seconds: float) -> None:
    """End this process after some seconds if it has not ended by then; does not wait."""
    timer = threading.Timer(seconds, os._exit, [1])
    timer.daemon = True
    timer.start()
