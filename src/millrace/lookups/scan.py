"""A scan access module over a source: all rows of a lookup table, read beside the eddy."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import aclosing
from typing import Any

import pyarrow as pa
from tenacity import AsyncRetrying, retry_if_exception

from millrace.engine.access.modules import State
from millrace.engine.figures import ModuleFigures
from millrace.errors import ExecutionError
from millrace.limits import policy
from millrace.limits.clock import Clock
from millrace.limits.fetcher import wait_within
from millrace.limits.secrets import Secrets
from millrace.lookups.index import Keep
from millrace.lookups.loop import Loop
from millrace.lookups.source import Refused, Source

_AHEAD = 4
"""Batches that wait for the eddy before the source is asked for more."""

_LOOK = 0.5


class LookupScan:
    """A scan AM (:class:`millrace.engine.access.modules.ScanAM`) that reads a source which ``can_scan``.

    A scan that fails is begun again as long as nothing has been returned; later it is broken, and the
    relation's other access modules have to do.

    The schema has all columns of the table; ``keep`` is what becomes of its rows, and ``secrets`` gets those
    of the source.
    """

    def __init__(
        self,
        name: str,
        source: Source,
        schema: pa.Schema,
        keep: Keep,
        loop: Loop,
        secrets: Callable[[], Awaitable[Secrets]],
        clock: Clock,
    ) -> None:
        self.name = name
        self.state: State = "open"
        self.why = ""
        self._source = source
        self._schema = schema
        self._keep = keep
        self._loop = loop
        self._secrets = secrets
        self._clock = clock
        self._wake = threading.Event()
        self._arrived: deque[pa.RecordBatch | Exception | None] = deque()
        self._room = asyncio.Semaphore(_AHEAD)
        self._reading: Future[Any] | None = None
        self._closed = False
        self._given = False
        self._rows = self._batches = 0

    def wake_by(self, event: threading.Event) -> None:
        """Set this event whenever something has come."""
        self._wake = event

    def poll(self) -> pa.RecordBatch | None:
        """Return the next batch, or None if there is none at the moment."""
        if self._reading is None:
            self._reading = self._loop.start(self._read)
        if self.state != "open" or not self._arrived:
            return None
        news = self._arrived.popleft()
        if news is None:
            self.state = "complete"
            return None
        if isinstance(news, Exception):
            self.state, self.why = "broken", str(news)
            return None
        self._loop.call(self._room.release)
        self._rows += news.num_rows
        self._batches += 1
        return self._keep(news)

    def due(self) -> float:
        """Return when to look again without having been woken."""
        if self.state != "open":
            return float("inf")
        return self._clock.now() + (0.0 if self._arrived else _LOOK)

    def close(self) -> None:
        """Read no further."""
        self._closed = True
        if self._reading is not None:
            self._reading.cancel()
        self._arrived.clear()

    def figures(self) -> ModuleFigures:
        return ModuleFigures(f"Scan({self.name})", "request", 0, self._rows, self._batches, 0.0)

    async def _read(self) -> None:
        try:
            secrets = await self._secrets()
            again = retry_if_exception(self._may_begin_again)
            await AsyncRetrying(**policy.schedule(self._source.terms), retry=again)(self._read_once, secrets)
            self._tell(None)
        except asyncio.CancelledError:
            if not self._closed:
                self._tell(ExecutionError("the source has cancelled itself"))
            raise
        except Exception as error:  # noqa: BLE001  # whatever it is, the eddy must hear of it
            self._tell(error)

    def _may_begin_again(self, error: BaseException) -> bool:
        return isinstance(error, Refused) and error.again and not self._given

    async def _read_once(self, secrets: Secrets) -> None:
        session = self._source.open(self._schema, (), secrets)
        try:
            async with aclosing(session.scan()) as steps:
                while (
                    batch := await wait_within(anext(steps, None), self._source.terms.timeout)
                ) is not None:
                    if batch.num_rows:
                        await self._room.acquire()
                        self._tell(batch)
                        self._given = True
        finally:
            await session.close()

    def _tell(self, news: pa.RecordBatch | Exception | None) -> None:
        self._arrived.append(news)
        self._wake.set()
