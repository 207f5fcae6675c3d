"""An index access module over a source: the eddy hands it bindings and is told when answers have come.

Raman, Deshpande & Hellerstein 2003, section 2.1.3. Requests are under way in an event loop beside the eddy;
what has come waits here until the eddy asks for it.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Self

import numpy as np
import pyarrow as pa

from millrace.engine.access.modules import Answer
from millrace.engine.arrays import joined
from millrace.engine.figures import ModuleFigures
from millrace.errors import BudgetError, ExecutionError
from millrace.limits.chunk import Chunk, Failure, digest
from millrace.limits.client import Client
from millrace.limits.clock import Clock
from millrace.limits.fetcher import Connect, Fetcher, News
from millrace.limits.request import Refused
from millrace.limits.secrets import Secrets
from millrace.lookups.bindings import check_size, grouped, in_intervals, narrow_bindings
from millrace.lookups.loop import Loop
from millrace.lookups.table import IndexSpec

CAPACITY = 65_536
"""Bindings that wait for their answers, from which on the eddy is not to bring more tuples."""

_LOOK = 0.5
"""Seconds after which the eddy looks again, should it not have been woken."""

Keep = Callable[[pa.RecordBatch], pa.RecordBatch]
"""Filters rows of a lookup and chooses the columns that the join needs."""

_Place = tuple[pa.RecordBatch, int]


class LookupIndex:
    """An index AM (:class:`millrace.engine.access.modules.IndexAM`) that asks a source.

    ``keep`` is what becomes of the rows that it returns. Requests run in ``loop``, which the lookups of a
    task share.

    Attributes:
        at_once: Bindings that are looked up at the same time, at most.
    """

    def __init__(self, spec: IndexSpec, keep: Keep, loop: Loop, connect: Connect, clock: Clock) -> None:
        self.name = spec.name
        self.columns = spec.columns
        terms = spec.source.terms
        self.at_once = terms.max_in_flight * terms.batch
        self._spec = spec
        self._keep = keep
        self._loop = loop
        self._clock = clock
        opened = partial(_Session.opened, spec)
        self._fetcher = Fetcher(terms, connect, opened, self._tell, terms.max_in_flight)
        self._wake = threading.Event()
        self._wanted: dict[bytes, list[_Place]] = {}
        self._arrived: deque[News] = deque()
        self._unfit: list[Answer] = []
        self._pending = 0
        self._started = False

    @property
    def pending(self) -> int:
        """Bindings submitted and not yet answered."""
        return self._pending

    @property
    def is_full(self) -> bool:
        """Whether no more should be submitted before some are answered."""
        return self._pending >= CAPACITY

    def wake_by(self, event: threading.Event) -> None:
        """Set this event whenever something has come."""
        self._wake = event

    def submit(self, bindings: pa.RecordBatch) -> None:
        """Ask for bindings; those that no value of the index's columns can equal are answered at once."""
        self._pending += bindings.num_rows
        keys, fits = narrow_bindings(bindings, self._spec.keys, self._spec.between)
        if not fits.all():
            self._unfit.append(Answer(bindings.filter(pa.array(~fits)), self._keep(self._empty())))
        places = np.flatnonzero(fits)
        if len(places) < keys.num_rows:
            keys = keys.take(pa.array(places))
        digests = [digest(row) for row in zip(*(c.to_pylist() for c in keys.columns), strict=True)]
        fresh = []
        for i, (key, place) in enumerate(zip(digests, places.tolist(), strict=True)):
            waiting = self._wanted.setdefault(key, [])
            waiting.append((bindings, place))
            if len(waiting) == 1:
                fresh.append(i)
        if fresh:
            self._started = True
            asked = keys if len(fresh) == keys.num_rows else keys.take(pa.array(fresh))
            self._loop.call(self._fetcher.want, {digests[i]: (asked, n) for n, i in enumerate(fresh)})

    def poll(self) -> list[Answer]:
        """Return what has come since the last call.

        Raises:
            ExecutionError: A key could not be looked up and that is to fail the query, or the coordinator
                of the job's limits is gone.
            BudgetError: The budget is spent; answers that came before are returned first.
        """
        answers, self._unfit = self._unfit, []
        chunks: list[Chunk] = []
        rows: list[pa.RecordBatch] = []
        keys: list[bytes] = []
        while self._arrived:
            news = self._arrived.popleft()
            if isinstance(news, Chunk):
                chunks.append(news)
                keys += news.keys
            elif isinstance(news, asyncio.CancelledError):
                raise ExecutionError(f"lookup {self.name!r}: its source has cancelled itself")
            elif isinstance(news, BudgetError) and (answers or keys):
                self._arrived.appendleft(news)
                break
            elif isinstance(news, BaseException):
                raise news
            else:
                rows += self._settled(news)
                keys += news
        for chunk in chunks:
            rows += chunk.table().to_batches()
        kept = [self._keep(batch) for batch in rows if batch.num_rows]
        answers += self._answers(keys, kept)
        self._pending -= sum(answer.bindings.num_rows for answer in answers)
        return answers

    def due(self) -> float:
        """Return when to look again without having been woken."""
        if self._arrived or self._unfit:
            return self._clock.now()
        return self._clock.now() + _LOOK if self._pending else float("inf")

    def close(self) -> None:
        """Give up what is under way."""
        if self._started:
            self._started = False
            self._loop.start(self._fetcher.close).result()

    def figures(self) -> ModuleFigures:
        asked = self._fetcher.stats
        return ModuleFigures(
            f"Lookup({self.name})", "request", asked.keys, asked.rows, asked.requests, asked.seconds
        )

    def _tell(self, news: News) -> None:
        self._arrived.append(news)
        self._wake.set()

    def _settled(self, failures: Mapping[bytes, Failure | None]) -> list[pa.RecordBatch]:
        """Return the rows that stand for keys that could not be looked up."""
        if self._spec.on_error == "skip":
            return []
        if self._spec.on_error == "null":
            return [self._nulls(key) for key in failures]
        failure = next(iter(failures.values()))
        assert failure is not None  # it is known: see _Session.failures
        raise ExecutionError(
            f"lookup {self.name!r}: key {failure.binding} could not be looked up after "
            f"{failure.attempts} attempt{'s' * (failure.attempts != 1)}: {failure.kind}: {failure.message}; "
            "on_error='skip' or 'null' would go on without such keys and list them in failed_keys()"
        )

    def _nulls(self, key: bytes) -> pa.RecordBatch:
        """Return one row: the key, and nulls."""
        bindings, place = self._wanted[key][0]
        own, _ = narrow_bindings(bindings.slice(place, 1), self._spec.keys)
        columns = [
            own.column(field.name) if field.name in self.columns else pa.nulls(1, field.type)
            for field in self._spec.schema
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self._spec.schema)

    def _answers(self, keys: Sequence[bytes], rows: list[pa.RecordBatch]) -> list[Answer]:
        """Return the answers for keys: one for each combination of types that they were asked in."""
        by_batch: dict[int, tuple[pa.RecordBatch, list[int]]] = {}
        for key in keys:
            for bindings, place in self._wanted.pop(key, ()):
                by_batch.setdefault(id(bindings), (bindings, []))[1].append(place)
        by_types: dict[pa.Schema, list[pa.RecordBatch]] = {}
        for bindings, places in by_batch.values():
            by_types.setdefault(bindings.schema, []).append(bindings.take(pa.array(places)))
        if not by_types:
            return []
        whole = pa.concat_batches(rows) if rows else self._keep(self._empty())
        return [Answer(pa.concat_batches(asked), whole) for asked in by_types.values()]

    def _empty(self) -> pa.RecordBatch:
        return pa.RecordBatch.from_pylist([], self._spec.schema)


class _Session:
    """A lookup's open source, as a fetcher asks it: keys are wanted as rows of batches."""

    def __init__(self, spec: IndexSpec, secrets: Secrets) -> None:
        self._most_wait = spec.source.terms.max_retry_after
        self._secrets = secrets
        self._between = spec.between
        session = spec.source.open(spec.answered, spec.columns, secrets)
        self.fetch, self.close = session.fetch, session.close

    @classmethod
    async def opened(cls, spec: IndexSpec, client: Client) -> Self:
        return cls(spec, Secrets(client.secrets))

    def bind(self, wanted: list[_Place]) -> pa.RecordBatch:
        return pa.concat_batches([keys.slice(place, 1) for keys, place in wanted])

    def request(self, keys: pa.RecordBatch) -> object:
        return keys.to_pylist()

    def rows(self, keys: pa.RecordBatch, answer: pa.RecordBatch) -> tuple[pa.RecordBatch, list[int]]:
        if self._between:
            return in_intervals(answer, keys, self._between)
        rows, counts = grouped(answer, keys)
        check_size(rows.nbytes)
        return rows, counts

    def together(self, rows: list[pa.RecordBatch]) -> pa.RecordBatch:
        return joined(rows)

    def failures(self, keys: pa.RecordBatch, error: Exception, attempts: int) -> list[Failure]:
        """Return the same for each key: of several, all were asked in vain."""
        refused = error if isinstance(error, Refused) else Refused(type(error).__name__, str(error))
        message = self._secrets.scrub(refused.message)
        if refused.wait is not None and refused.wait > self._most_wait:
            message += f" (it asks to wait {refused.wait:g} s, max_retry_after is {self._most_wait:g} s)"
        if keys.num_rows > 1:
            message += f" (asked together with {keys.num_rows - 1} other keys)"
        bindings = [json.dumps(binding, default=str) for binding in keys.to_pylist()]
        return [Failure(refused.kind, message, attempts, binding) for binding in bindings]
