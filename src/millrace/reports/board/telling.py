"""A task's side: it tells its figures while it works, and never waits or fails for that.

A thread of its own reads what the run has counted, so the eddy's loop knows nothing of it, and a task that
waits for answers is told of too. A task that is over within half a second has no connection at all.
"""

from __future__ import annotations

import ssl
import threading
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Self

from millrace.engine.figures import CellFigures
from millrace.errors import ExecutionError
from millrace.limits import codec
from millrace.limits.messages import Figures, JoinBoard
from millrace.limits.registration import Address
from millrace.limits.tls import dial

EVERY = 0.5
"""Seconds from one telling to the next."""

_REACH_SECONDS = 5.0
_END_SECONDS = 1.0
_ATTEMPTS = 5
_FORGET_SECONDS = 60.0

_unreached: dict[tuple[str, int], float] = {}
"""When an address was not reached: each worker tries again after a while only."""


class Telling:
    """Tells a task's figures while the body runs, and once more at its end.

    It tells the :class:`~millrace.spark.results.DriverServer` at an address, which is for one run, or nobody.
    ``figures`` returns what has been done so far; it is called in another thread.
    """

    def __init__(
        self,
        address: Address | None,
        run: str,
        task: str,
        figures: Callable[[], CellFigures],
        every: float = EVERY,
    ) -> None:
        self._address, self._run, self._task = address, run, task
        self._figures, self._every = figures, every
        self._began = time.perf_counter()
        self._over = threading.Event()
        self._connected = False
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        if self._address is not None and _may_reach(self._address):
            self._thread = threading.Thread(target=self._run_thread, name="millrace live", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Tell the last figures, where somebody listens."""
        self._over.set()
        if self._thread is not None and self._connected:
            self._thread.join(_END_SECONDS)

    def _run_thread(self) -> None:
        assert self._address is not None
        if self._over.wait(self._every):
            return
        try:
            hello = JoinBoard(self._address.token, self._run, self._task)
            with dial(self._address, hello, "figures", _REACH_SECONDS, may_stall=True)[0] as connection:
                self._connected = True
                self._tell(connection)
        except (OSError, EOFError, ValueError, ExecutionError):
            # Nobody listens, or not any more: that is no reason to fail, or to try again for each task.
            _unreached[self._address.host, self._address.port] = time.monotonic()
        finally:
            self._connected = False

    def _tell(self, connection: ssl.SSLSocket) -> None:
        over = False
        while True:
            figures = self._read()
            if figures is not None:
                codec.send(connection, message(figures, over=over))
            if over:
                return
            over = self._over.wait(self._every)

    def _read(self) -> CellFigures | None:
        """Return the figures; None if they never stood still long enough to be read."""
        for _ in range(_ATTEMPTS):
            # The task works on meanwhile, and may change a dictionary that is being read.
            with suppress(RuntimeError):
                return replace(self._figures(), seconds=time.perf_counter() - self._began)
        return None


def message(figures: CellFigures, *, over: bool) -> Figures:
    """Return figures as they are sent: the numbers of rows in the open, for they are always wanted."""
    packed = zlib.compress(figures.to_json().encode(), 1)
    return Figures(rows_in(figures), figures.output_tuples, over, packed)


def rows_in(figures: CellFigures) -> int:
    """Return how many rows a task has read: what map tasks have sent it, they have read."""
    scanned = sum(one.tuples_in for one in figures.modules if one.action == "scan")
    sent = figures.rows_exchanged if figures.cell >= 0 else 0
    return max(0, scanned - sent)  # a batch that is on its way to the eddy is not scanned yet


def _may_reach(address: Address) -> bool:
    failed = _unreached.get((address.host, address.port))
    return failed is None or time.monotonic() - failed > _FORGET_SECONDS
