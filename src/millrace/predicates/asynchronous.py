"""Calling predicates that are coroutines: many at once, within the limits of the whole job.

Each attempt takes its turn, so the limits count what a service sees. A call that failed gives its
turn back before it waits for the next attempt. Rows that equal each other are one question where the
predicate has ``dedupe``; a question that another task of the job is asking is waited for.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections import defaultdict
from collections.abc import Awaitable, Coroutine, Iterator, Mapping, Sequence
from itertools import count
from typing import Any

import numpy as np
import pyarrow as pa
from tenacity import AsyncRetrying, retry_if_exception

from millrace.errors import ExecutionError, PredicateError
from millrace.limits.budget import Spending
from millrace.limits.chunk import Chunk, Failure as Failed, digest
from millrace.limits.client import Client
from millrace.limits.event_loop import runner
from millrace.limits.lookup_session import LookupSession
from millrace.limits.permits import Permits
from millrace.limits.policy import schedule
from millrace.limits.registration import Address, Settings
from millrace.limits.secrets import Secrets
from millrace.predicates.calls import RAISED, Failure, Outcome, Values
from millrace.predicates.service import OVERLOADED, Answered, Refused, Service, ServiceSession, within
from millrace.predicates.spec import PredicateSpec, registration_of
from millrace.predicates.truth import check_sized, truth_of, truths

WIDTH = 64
"""Calls of one task under way or waiting for their turn, unless ``max_in_flight`` is larger."""

_TEXT = 4_000
"""Characters of a failure's message, and of its traceback's end, that other tasks are told."""

_PAUSE, _LONGEST_WAIT = 1.0, 60.0
"""Seconds for which one answer makes all tasks wait: where a service is overloaded, and at most."""

_Row = tuple[Any, ...]
_Answer = tuple[int, Failure | None]  # a code of the outcomes, and what was raised if that is known
_Questions = dict[bytes, list[int]]  # by key, the rows that ask the same


class AsyncCaller:
    """Calls a coroutine function once a row, or with ``spec.batch`` once a batch.

    Args:
        spec: The predicate, of kind ``async``.
        values: Makes its arguments of columns.
        limits: Where the tasks of the job agree on its limits; None keeps them within this caller.
        namespace: Names the job and the predicate there.
    """

    def __init__(self, spec: PredicateSpec, values: Values, limits: Address | None, namespace: str) -> None:
        self._spec = spec
        self._values = values
        self._address = limits if spec.limited else None
        self._namespace = namespace
        self._settings = Settings(spec.max_in_flight, spec.per_second, spec.budget, spec.tokens_per_minute)
        self._session: ServiceSession | None = None
        self._runner: asyncio.Runner | None = None
        self._limits: Client | None = None
        self._own: LookupSession | None = None
        self._spending = Spending(self._settings.budget)
        self._retrying = AsyncRetrying(**schedule(spec.retries), retry=retry_if_exception(_may_pass))

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
        if self._limits is None:
            self._limits = await self._join()
            origin = self._spec.origin or self._spec.function
            if isinstance(origin, Service):
                values = await self._limits.secrets() if self._spec.secrets else {}
                self._session = origin.open(Secrets(values))
        questions: _Questions = defaultdict(list)
        for i, row in enumerate(rows):
            questions[digest(row) if self._spec.dedupe else i.to_bytes(8, "big")].append(i)
        asking = _Asking(self._spec, self._retrying, self._limits, rows, questions)
        try:
            with within(self._session):
                await asking.run()
        except BaseException:
            await self._leave()  # so that others get the questions that are left open
            raise
        return asking.outcome()

    async def _join(self) -> Client:
        if self._address is None:
            permits = Permits(self._settings, spending=self._spending)
            self._own = LookupSession(registration_of(self._spec), permits=permits)
            return Client.local(self._own)
        return await Client.connect(self._address, self._namespace)

    async def _leave(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()
        limits, self._limits = self._limits, None
        if limits is not None:
            await limits.close()
        own, self._own = self._own, None
        if own is not None:
            own.close()


class _Asking:
    """One call of the caller: its questions, and what has been found out."""

    def __init__(
        self,
        spec: PredicateSpec,
        retrying: AsyncRetrying,
        limits: Client,
        rows: list[_Row],
        questions: _Questions,
    ) -> None:
        self._spec = spec
        self._retrying = retrying
        self._limits = limits
        self._rows = rows
        self._questions = questions
        self._answers: dict[bytes, _Answer] = {}
        self._truths: dict[bytes, int] = {}  # found, and not told to others yet
        self._width = asyncio.Semaphore(max(WIDTH, spec.max_in_flight or 0))
        self._cost = spec.price
        self._calls = 0

    async def run(self) -> None:
        """Find the answer of every question."""
        if not self._spec.dedupe:
            await self._ask(list(self._questions))
            return
        claim = await self._limits.claim(list(self._questions))
        self._enter(claim.found, claim.failed)
        await _together([self._ask(claim.ask), self._listen(set(claim.waiting))])
        self._settle()

    def outcome(self) -> Outcome:
        """Return what has been found out, by row."""
        truth = np.empty(len(self._rows), np.int8)
        failures = {}
        for question, positions in self._questions.items():
            answer = self._answers[question]
            truth[positions], failure = answer
            if failure is not None:
                failures.update(dict.fromkeys(positions, failure))
        return Outcome(truth, self._calls, failures)

    async def _listen(self, waiting: set[bytes]) -> None:
        """Wait for what others are asking, and ask what they leave to us."""
        while waiting:
            told = await self._limits.notification()
            self._enter(told.found, told.failed)
            waiting.difference_update(told.failed, told.ask, *(chunk.keys for chunk in told.found))
            await self._ask(told.ask)

    def _enter(self, found: Sequence[Chunk], failed: Mapping[bytes, Failed]) -> None:
        """Take in what others have found out."""
        for chunk in found:
            truths_of = chunk.table().column(0).to_pylist()
            self._answers |= {key: (each, None) for key, each in zip(chunk.keys, truths_of, strict=True)}
        for key, (kind, message, _, trace) in failed.items():
            self._answers[key] = RAISED, Failure(kind, message, trace)

    def _settle(self) -> None:
        """Tell the others what has been found in this turn of the event loop, all at once."""
        if self._truths:
            keys, codes = list(self._truths), pa.array(self._truths.values(), pa.int8())
            self._truths = {}
            self._limits.settle(Chunk.of(keys, [1] * len(keys), pa.table({"truth": codes})))

    async def _ask(self, questions: Sequence[bytes]) -> None:
        size = self._spec.batch or 1
        await _together(
            [self._ask_piece(questions[low : low + size]) for low in range(0, len(questions), size)]
        )

    async def _ask_piece(self, questions: Sequence[bytes]) -> None:
        rows = [self._rows[self._questions[question][0]] for question in questions]
        try:
            async with self._width:
                truth: list[int] = await self._retrying.copy()(self._attempt, rows, count())
        except Exception as error:
            if not _of_the_function(error):
                raise
            if len(questions) > 1 and isinstance(error, Refused) and error.singly:
                await _together([self._ask_piece([question]) for question in questions])
                return
            await self._failed(questions, Failure.of(error))
            return
        self._answers |= {key: (each, None) for key, each in zip(questions, truth, strict=True)}
        if self._spec.dedupe:
            if not self._truths:
                asyncio.get_running_loop().call_soon(self._settle)
            self._truths.update(zip(questions, truth, strict=True))

    async def _failed(self, questions: Sequence[bytes], failure: Failure) -> None:
        # Which row of several is to blame is not known, and nothing for others to rely on.
        known = len(questions) == 1
        self._answers |= dict.fromkeys(questions, (RAISED, failure if known else None))
        if self._spec.dedupe and known:
            texts = failure.message[:_TEXT], 1, failure.traceback[-_TEXT:]
            await self._limits.fail({questions[0]: Failed(failure.kind, *texts)})
        elif self._spec.dedupe:
            self._limits.give_up(questions)

    async def _attempt(self, rows: list[_Row], attempts: Iterator[int]) -> list[int]:
        """Call the function once, in its turn; return the truth of each row."""
        name = self._spec.name
        async with self._limits.permit() as permit:
            self._calls += len(rows)
            self._limits.count(requests=1, retried=int(next(attempts) > 0))
            request = rows if self._spec.batch else rows[0]
            arguments = [list(column) for column in zip(*rows, strict=True)] if self._spec.batch else rows[0]
            awaitable = self._spec.function(*arguments)
            if not inspect.isawaitable(awaitable):
                raise PredicateError(
                    f"predicate {name!r} has kind 'async' but returned a {type(awaitable).__name__}, which "
                    "cannot be awaited: write it as 'async def'"
                )
            began, limited = time.perf_counter(), False
            try:
                result = await self._in_time(awaitable)
            except Refused as error:
                limited = error.wait is not None or error.kind in OVERLOADED
                if limited:
                    self._limits.pause(min(_PAUSE if error.wait is None else error.wait, _LONGEST_WAIT))
                if error.usage is not None:
                    permit.charge(self._cost, request, error)
                raise
            finally:
                self._limits.took(time.perf_counter() - began, limited=limited)
            permit.charge(self._cost, request, result)
            if isinstance(result, Answered):
                result = result.result
        if not self._spec.batch:
            return [truth_of(result, name)]
        check_sized(result, len(rows), name)
        codes: list[int] = truths(list(result), len(rows), name).tolist()
        return codes

    async def _in_time(self, awaitable: Awaitable[Any]) -> Any:
        limit = asyncio.timeout(self._spec.timeout)
        try:
            async with limit:
                return await awaitable
        except TimeoutError as error:
            if not limit.expired():
                raise  # the function's own
            raise TimeoutError(f"no answer within {self._spec.timeout:g} s") from error


async def _together(coroutines: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Run all; the first that raises ends the others."""
    tasks = [asyncio.create_task(each) for each in coroutines]
    if not tasks:
        return
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _of_the_function(error: BaseException) -> bool:
    """Whether it speaks of a row, rather than of how the predicate is written or where it runs."""
    return isinstance(error, Exception) and not isinstance(error, PredicateError | ExecutionError)


def _may_pass(error: BaseException) -> bool:
    """Whether a call that raised is to be repeated as it was."""
    if isinstance(error, Refused):
        return error.again and not error.singly
    return _of_the_function(error)
