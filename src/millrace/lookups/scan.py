"""A scan access module over a source: all rows of a lookup table, read once a job, beside the eddies.

One task reads the source and shares what comes, page by page, with the job's other tasks through the
coordinator. A page is a key there (:mod:`millrace.limits.lookup_session`). Whoever reads claims the next page
before it settles one, so that others can wait for it. An exchange by key would need no pages. But it ends
before cells begin, and a scan that stalls would hold up the indexes that compete with it (Raman, Deshpande &
Hellerstein 2003, section 3.2).

A task that reads may end early. Whoever waits for its next page then ends that *reading*, and a task begins
another one at the first page: a source need not return the same rows in the same order. So a row may come
twice, and the relation has to be a set. A reading that the source has broken is broken for all tasks. A task
that Spark runs again begins another one, if it finds a broken one. All follow the latest reading. The scan
ends with one that has an EOT, for it is whole.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import AsyncExitStack, aclosing
from typing import Any

import pyarrow as pa
from tenacity import AsyncRetrying, retry_if_exception

from millrace.engine.access.modules import State
from millrace.engine.figures import ModuleFigures
from millrace.errors import ExecutionError, encodable
from millrace.limits import codec, policy
from millrace.limits.chunk import LONGEST_TEXT, Chunk, digest
from millrace.limits.client import Client
from millrace.limits.clock import Clock
from millrace.limits.fetcher import Connect, wait_within
from millrace.limits.secrets import Secrets
from millrace.lookups.index import Keep
from millrace.lookups.loop import Loop
from millrace.lookups.source import Refused, Source

_AHEAD = 4
"""Batches that wait for the eddy before another page is fetched."""

_LOOK = 0.5

_GIVEN_UP, _BROKEN = b"given up", b"broken"
"""Metadata of a page without rows that is no EOT: another reading follows, or the source has failed."""


class LookupScan:
    """A scan AM (:class:`millrace.engine.access.modules.ScanAM`) that reads a source which ``can_scan``.

    A scan that fails is begun again as long as nothing has been returned. Later it is broken for all tasks,
    and the relation's other access modules have to do.

    The schema has all columns of the table; ``keep`` is what becomes of its rows, and ``connect`` joins the
    tasks that share them. ``again`` says that Spark runs the task again, which may mend a broken scan.
    """

    may_repeat = True

    def __init__(
        self,
        name: str,
        source: Source,
        schema: pa.Schema,
        keep: Keep,
        loop: Loop,
        connect: Connect,
        clock: Clock,
        *,
        again: bool = False,
    ) -> None:
        self.name = name
        self.state: State = "open"
        self.why = ""
        self._source = source
        self._schema = schema
        self._keep = keep
        self._loop = loop
        self._connect = connect
        self._clock = clock
        self._may_restart = again
        self._wake = threading.Event()
        self._arrived: deque[pa.RecordBatch | Exception | None] = deque()
        self._room = asyncio.Semaphore(_AHEAD)
        self._following: Future[Any] | None = None
        self._reading: asyncio.Task[None] | None = None  # where this task is the one that reads
        self._settled = asyncio.Event()  # one more of its pages
        self._rows = self._batches = 0

    def wake_by(self, event: threading.Event) -> None:
        """Set this event whenever something has come."""
        self._wake = event

    def poll(self) -> pa.RecordBatch | None:
        """Return the next batch, or None if there is none at the moment."""
        if self._following is None:
            self._following = self._loop.start(self._follow)
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
        if self._following is not None:
            self._following.cancel()
        self._arrived.clear()

    def figures(self) -> ModuleFigures:
        return ModuleFigures(f"Scan({self.name})", "request", 0, self._rows, self._batches, 0.0)

    async def _follow(self) -> None:
        try:
            async with AsyncExitStack() as stack:  # the end of the loop may cancel this while it ends
                client = await self._connect()
                stack.push_async_callback(self._stop_reading)
                stack.push_async_callback(client.close)  # first: others need not wait for the source's end
                await self._take_pages(client)
            self._tell(None)
        except Exception as error:  # noqa: BLE001  # whatever it is, the eddy must hear of it
            self._tell(error)

    async def _stop_reading(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._reading])

    async def _take_pages(self, client: Client) -> None:
        """Take page after page, as fast as the eddy takes their rows."""
        reading, page = await self._find_latest(client, 0), 0
        while True:
            rows = await self._page(client, reading, page)
            notes = {} if rows.num_rows else rows.schema.metadata or {}
            if notes:
                latest = await self._find_latest(client, reading)
                if latest == reading and _BROKEN in notes and not self._may_restart:
                    raise ExecutionError(notes[_BROKEN].decode())
                reading, page = max(latest, reading + 1), 0
                continue
            if not rows.num_rows:
                return
            for batch in rows.to_batches():
                await self._room.acquire()
                self._tell(batch)
            page += 1

    async def _find_latest(self, client: Client, reading: int) -> int:
        """Return the reading that began last, from this one on: those before it have ended without an EOT."""
        while True:
            following = [_key(reading + 1, 0)]
            if (await client.claim(following, most=0)).left(following):
                return reading
            reading += 1

    async def _page(self, client: Client, reading: int, page: int) -> pa.Table:
        """Return a page when it is there; read the source where nobody does."""
        key = _key(reading, page)
        claimed = await client.claim([key])
        while True:
            # There may be news of a page that the look for the latest reading has found under way.
            for chunk in claimed.found:
                if key in chunk.keys:
                    return chunk.table()
            self._may_restart = False  # whatever breaks from now on breaks under this task's eyes
            if key not in claimed.ask:
                claimed = await client.notification()
                continue
            if self._reading is not None and not self._reading.done():
                await self._settled.wait()
                self._settled.clear()
            elif page:
                _settle(client, key, _note(_GIVEN_UP))
            else:
                self._reading = asyncio.create_task(self._read(client, reading))
            claimed = await client.claim([key])

    async def _read(self, client: Client, reading: int) -> None:
        """Read the source to its end, and share its pages; other tasks must not wait for this one's eddy."""
        page, secrets = 0, Secrets(client.secrets)

        async def read() -> None:
            nonlocal page
            session = self._source.open(self._schema, (), secrets)
            try:
                async with aclosing(session.scan()) as steps:
                    while (
                        batch := await wait_within(anext(steps, None), self._source.terms.timeout)
                    ) is not None:
                        for rows in _cut(batch):
                            await client.claim([_key(reading, page + 1)])
                            _settle(client, _key(reading, page), rows)
                            page += 1
                            self._settled.set()
            finally:
                await session.close()

        def may_begin_again(error: BaseException) -> bool:
            return isinstance(error, Refused) and error.again and not page

        last = _note()
        try:
            again = retry_if_exception(may_begin_again)
            await AsyncRetrying(**policy.schedule(self._source.terms), retry=again)(read)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise  # this task ends; the source is well
            last = _note(_BROKEN, "the source has cancelled itself")
        except Exception as error:  # noqa: BLE001  # whatever it is, all tasks must hear of it
            last = _note(_BROKEN, secrets.scrub(str(error)))
        _settle(client, _key(reading, page), last)
        self._settled.set()

    def _tell(self, news: pa.RecordBatch | Exception | None) -> None:
        self._arrived.append(news)
        self._wake.set()


def _key(reading: int, page: int) -> bytes:
    return digest((reading, page))


def _cut(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield rows in pages of :data:`~millrace.limits.codec.USUAL_ATTACHMENT` bytes at most, or of one row."""
    if rows.num_rows > 1 and rows.nbytes > codec.USUAL_ATTACHMENT:
        half = rows.num_rows // 2
        yield from _cut(rows.slice(0, half))
        yield from _cut(rows.slice(half))
    elif rows.num_rows:
        yield rows


def _note(kind: bytes = b"", why: str = "") -> pa.Table:
    """Return a page without rows: the EOT, or one that says something else."""
    notes = {kind: encodable(why)[:LONGEST_TEXT]} if kind else None
    return pa.schema([], notes).empty_table()


def _settle(client: Client, key: bytes, rows: pa.RecordBatch | pa.Table) -> None:
    client.settle(Chunk.of([key], [rows.num_rows], rows))
