"""Calling predicates that are coroutines: a fetcher's keys are rows of arguments, and its rows are truths.

Rows that equal each other are one question where the predicate has ``dedupe``; a question that another task
of the job is asking is waited for.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import defaultdict
from collections.abc import Awaitable, Sequence
from itertools import chain
from typing import Any, Self

import numpy as np
import pyarrow as pa

from millrace.errors import ExecutionError, PredicateError
from millrace.limits.budget import Spending
from millrace.limits.chunk import LONGEST_TEXT, Chunk, Failure as Failed, digest
from millrace.limits.client import Client
from millrace.limits.event_loop import runner
from millrace.limits.fetcher import Connect, Fetcher, News
from millrace.limits.lookup_session import LookupSession
from millrace.limits.permits import Permits
from millrace.limits.request import Answered, FetchStats, Refused
from millrace.limits.secrets import Secrets
from millrace.predicates.calls import RAISED, Failure, Outcome, Values
from millrace.predicates.service import Service, ServiceSession, within
from millrace.predicates.spec import PredicateSpec, registration_of
from millrace.predicates.truth import check_sized, truth_of, truths

WIDTH = 64
"""Calls of one task under way or waiting for their turn, unless ``max_in_flight`` is larger."""

_Row = tuple[Any, ...]
_Answer = tuple[int, Failure | None]  # a code of the outcomes, and what was raised if that is known


class AsyncCaller:
    """Calls a coroutine function once a row, or with ``spec.batch`` once a batch.

    ``connect`` joins the limits of the job; None keeps them within this caller.
    """

    def __init__(
        self,
        spec: PredicateSpec,
        values: Values,
        connect: Connect | None = None,
        stats: FetchStats | None = None,
    ) -> None:
        self._spec = spec
        self._values = values
        self._connect = connect if spec.limited else None
        self._spending = Spending(spec.budget)
        self._function = _Function(spec)
        self._stats = stats or FetchStats()
        self._runner: asyncio.Runner | None = None
        self._fetcher: Fetcher | None = None
        self._news: asyncio.Queue[News] = asyncio.Queue()

    def call(self, columns: list[pa.Array]) -> Outcome:
        """Return the truth of every row; rows that raise in their last attempt have their failure.

        Raises:
            PredicateError: The function returned what is no truth value, or too many or too few.
            ExecutionError: The coordinator of the limits cannot be reached.
        """
        if self._runner is None:
            self._runner = runner()  # one loop for all calls, for what the function keeps open
        try:
            arguments = self._values.objects(columns)
        except (OverflowError, ValueError) as error:  # a value that Python does not have
            return Outcome.in_doubt(error, len(columns[0]))
        return self._runner.run(self._call(list(zip(*arguments, strict=True))))

    def close(self) -> None:
        """Give back what is held and end the event loop."""
        if self._runner is not None:
            runner, self._runner = self._runner, None
            with runner:
                runner.run(self._leave())

    async def _call(self, rows: list[_Row]) -> Outcome:
        spec, calls = self._spec, self._function.calls
        if self._fetcher is None:
            width, self._news = max(WIDTH, spec.max_in_flight or 0), asyncio.Queue()
            self._fetcher = Fetcher(
                spec, self._join, self._function.open, self._news.put_nowait, width,
                claims=spec.dedupe, halves=isinstance(spec.asked, Service), stats=self._stats,
            )  # fmt: skip
        questions = defaultdict[bytes, list[int]](list)  # by key, the rows that ask the same
        for i, row in enumerate(rows):
            questions[digest(row) if spec.dedupe else i.to_bytes(8, "big")].append(i)
        truth, failures = np.empty(len(rows), np.int8), dict[int, Failure]()
        self._fetcher.want({key: rows[positions[0]] for key, positions in questions.items()})
        try:
            while questions:
                for key, (code, failure) in _answers(await self._news.get()).items():
                    positions = questions.pop(key, [])
                    truth[positions] = code
                    if failure is not None:
                        failures.update(dict.fromkeys(positions, failure))
        except BaseException:
            await self._leave()  # so that others get the questions that are left open
            raise
        return Outcome(truth, self._function.calls - calls, failures)

    async def _join(self) -> Client:
        if self._connect is not None:
            return await self._connect()
        registration = registration_of(self._spec)
        permits = Permits(registration.settings, spending=self._spending)
        return Client.alone(LookupSession(registration, permits=permits))

    async def _leave(self) -> None:
        fetcher, self._fetcher = self._fetcher, None
        if fetcher is not None:
            await fetcher.close()


def _answers(news: News) -> dict[bytes, _Answer]:
    """Return what is known of some questions; raises what ended everything."""
    if isinstance(news, BaseException):
        raise news
    if isinstance(news, Chunk):
        codes = news.table().column(0).to_pylist()
        return {key: (code, None) for key, code in zip(news.keys, codes, strict=True)}
    return {
        key: (RAISED, failed and Failure(failed.kind, failed.message, failed.binding))
        for key, failed in news.items()
    }


def _awaitable(returned: Any, name: str) -> Awaitable[Any]:
    if not inspect.isawaitable(returned):
        raise PredicateError(
            f"predicate {name!r} has kind 'async' but returned a {type(returned).__name__}, which cannot be "
            "awaited: write it as 'async def'"
        )
    return returned


class _Raised(Refused):
    """What a function has raised, its cause; one that it raised itself has nothing to tell beyond itself."""


class _Function:
    """A predicate's function, as a fetcher asks it.

    Attributes:
        calls: Rows that it was called for, counting repeated ones each time.
    """

    def __init__(self, spec: PredicateSpec) -> None:
        self._spec = spec
        self._service: ServiceSession | None = None
        self.calls = 0

    async def open(self, client: Client) -> Self:
        """Return itself, within a session of the service that it asks, if it does."""
        if isinstance(self._spec.asked, Service):
            self._service = self._spec.asked.open(Secrets(client.secrets))
        return self

    def bind(self, wanted: list[_Row]) -> list[_Row]:
        return wanted

    def request(self, rows: list[_Row]) -> object:
        return rows if self._spec.batch else rows[0]

    async def fetch(self, rows: list[_Row]) -> Any:
        """Call it once; what it raises is a :class:`Refused`, which it caused."""
        spec = self._spec
        self.calls += len(rows)
        arguments: Sequence[Any] = [list(each) for each in zip(*rows, strict=True)] if spec.batch else rows[0]
        try:
            with within(self._service) as taken:
                # In a task of its own, for what it leaves in its context is no other row's business.
                result = await asyncio.ensure_future(_awaitable(spec.function(*arguments), spec.name))
                return Answered(result, taken[-1]) if taken else result
        except (Refused, PredicateError, ExecutionError):
            raise
        except Exception as error:
            raise _Raised(type(error).__name__, str(error), again=True) from error

    def rows(self, rows: list[_Row], answer: Any) -> tuple[list[int], list[int]]:
        name = self._spec.name
        if not self._spec.batch:
            return [truth_of(answer, name)], [1]
        check_sized(answer, len(rows), name)
        return truths(list(answer), len(rows), name).tolist(), [1] * len(rows)

    def together(self, rows: list[list[int]]) -> pa.RecordBatch:
        return pa.record_batch({"truth": pa.array(chain.from_iterable(rows), pa.int8())})

    def failures(self, rows: list[_Row], error: Exception, attempts: int) -> list[Failed] | None:
        if len(rows) > 1:
            return None  # which of them is to blame is not known
        raised = (error.__cause__ if isinstance(error, _Raised) else None) or error
        if isinstance(error, Refused) and error.kind == "timeout":
            raised = TimeoutError(error.message)
            raised.__cause__ = error.__context__  # where it was when its time was over
        failure = Failure.of(raised)
        return [Failed(failure.kind, failure.message, attempts, failure.traceback[-LONGEST_TEXT:])]

    async def close(self) -> None:
        if self._service is not None:
            await self._service.close()
