"""Calls in threads: they end in time for whoever waits, and their errors arrive."""

from __future__ import annotations

import asyncio
import threading

import pytest

from millrace.lookups.threads import Threads, within


def test_within_a_time():
    """A blocking call returns, raises, or is left alone."""
    assert within(10, lambda: 5) == 5
    with pytest.raises(KeyError, match="x"):
        within(10, lambda: {}["x"])
    end = threading.Event()
    with pytest.raises(TimeoutError, match="not done within"):
        within(0.02, lambda: end.wait(20))
    end.set()


async def test_threads_end_with_their_owner():
    """Idle ones at once, busy ones when they are done."""
    end = threading.Event()
    threads = Threads("test of threads")
    assert await threads.run(lambda: 5) == 5
    busy = asyncio.create_task(threads.run(lambda: end.wait(20)))
    await asyncio.sleep(0)
    threads.close()
    end.set()
    assert await busy
    for thread in threading.enumerate():
        if thread.name == "test of threads":
            thread.join(10)
            assert not thread.is_alive()


async def test_threads_do_not_keep_a_process_alive():
    """They are daemons."""
    seen = []
    threads = Threads("test of threads")
    await threads.run(lambda: seen.append(threading.current_thread().daemon))
    threads.close()
    assert seen == [True]
