"""Asking a source for keys: each key once a job, on the source's terms, again where that may help.

Runs in an event loop. Keys that the job knows already, or that another task is asking, are never in the
way of keys to ask: answers are delivered as they come, in any order, so there is no head-of-line blocking
(Raman, Deshpande & Hellerstein 2003, section 4.1).

A batch that fails for good may have one key at fault. Its halves are asked, and theirs, so that no other key
fails with it. A half is asked once, for its batch has been repeated; a key alone has all its attempts.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import pyarrow as pa
from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_exception,
    stop_after_attempt,
    wait_random_exponential,
)

from millrace.errors import ExecutionError
from millrace.limits import codec
from millrace.limits.chunk import Chunk, Claimed, Failure
from millrace.limits.client import KEYS_A_MESSAGE, Client
from millrace.limits.policy import FIRST_WAIT, LONGEST_WAIT
from millrace.limits.secrets import Secrets
from millrace.lookups.bindings import grouped
from millrace.lookups.index_spec import IndexSpec
from millrace.lookups.source import Answered, Refused, Session
from millrace.predicates.service import OVERLOADED

_CLAIMED_AHEAD = 4
"""Keys that are claimed and not asked yet, at most, over those that may be under way at once."""

_LIMITED = ("HTTP 429",)
_OF_NO_KEY = (*OVERLOADED, "HTTP 401", "HTTP 402", "HTTP 407", "stuck")
"""Failures that have nothing to do with the keys that were asked for."""

_IN_VAIN = 100
"""Keys in a row that failed alone: with so many (or a batch's, if these are more) it is not the keys."""

_T = TypeVar("_T")

Connect = Callable[[], Awaitable[Client]]
"""Joins the limits of a lookup's job."""


News = Chunk | Mapping[bytes, Failure] | Exception
"""What came of keys: rows of some, failures by key, or what ended everything."""


@dataclass
class Asked:
    """What one task asked of one source.

    Attributes:
        requests: Requests made, repeated ones included.
        seconds: Time that requests were under way, added up.
    """

    keys: int = 0
    rows: int = 0
    requests: int = 0
    seconds: float = 0.0


@dataclass
class Asking:
    """The questions of one task to one source; ``tell`` gets what came of them, in the event loop."""

    spec: IndexSpec
    connect: Connect
    tell: Callable[[News], None]
    totals: Asked = field(default_factory=Asked)

    def __post_init__(self) -> None:
        self._keys: dict[bytes, tuple[pa.RecordBatch, int]] = {}
        self._wanted: deque[bytes] = deque()  # not claimed yet
        self._due: deque[bytes] = deque()
        self._halves: deque[tuple[list[bytes], int]] = deque()  # of batches that failed, asked so often
        self._in_vain = 0
        self._claiming = False
        self._settled: list[tuple[list[bytes], list[int], pa.RecordBatch]] = []
        self._waiting: set[bytes] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._askers = 0
        self._hearing = False
        self._opening: asyncio.Future[tuple[Client, Session, Secrets]] | None = None
        terms = self.spec.source.terms
        self._most = terms.max_in_flight
        self._most_due = _CLAIMED_AHEAD * terms.max_in_flight * terms.batch
        self._claim_size = self._most_due
        self._retrying = AsyncRetrying(
            retry=retry_if_exception(lambda error: isinstance(error, Refused) and error.again),
            stop=stop_after_attempt(terms.retries + 1),
            wait=self._wait,
            reraise=True,
        )

    def want(self, keys: pa.RecordBatch, digests: Sequence[bytes]) -> None:
        """Ask for keys: the bind columns in the schema's types, and a digest of each that tells it apart."""
        self._keys.update((digest, (keys, place)) for place, digest in enumerate(digests))
        self._wanted.extend(digests)
        self._claim_more()

    async def close(self) -> None:
        """Give up what is under way."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._opening is not None and self._opening.done() and not self._opening.exception():
            client, session, _ = self._opening.result()
            await session.close()
            await client.close()

    def _start(self, work: Callable[..., Awaitable[None]], *arguments: object) -> None:
        task = asyncio.get_running_loop().create_task(self._guarded(work, *arguments))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _guarded(self, work: Callable[..., Awaitable[None]], *arguments: object) -> None:
        try:
            await work(*arguments)
        except Exception as error:  # noqa: BLE001  # whatever it is, the eddy must hear of it
            self.tell(error)

    async def _open(self) -> tuple[Client, Session, Secrets]:
        """Return the connection to the coordinator and the open source; opened once."""
        if self._opening is None:
            self._opening = asyncio.get_running_loop().create_future()
            try:
                client = await self.connect()
                names = self.spec.source.secrets
                secrets = Secrets(await client.secrets() if names else {})
                session = self.spec.source.open(self.spec.schema, self.spec.columns, secrets)
            except Exception as error:
                self._opening.set_exception(error)
                raise
            self._opening.set_result((client, session, secrets))
        return await asyncio.shield(self._opening)

    def _claim_more(self) -> None:
        """Claim keys up to a bound: who claims all it wants keeps others waiting for what it asks last."""
        if self._wanted and not self._claiming and len(self._due) * 2 <= self._most_due:
            self._claiming = True
            self._start(self._claim)

    async def _claim(self) -> None:
        try:
            client, _, _ = await self._open()
            while self._wanted and len(self._due) * 2 <= self._most_due:
                size = min(self._claim_size, len(self._wanted))
                digests = [self._wanted.popleft() for _ in range(size)]
                claimed = await client.claim(digests, self._most_due - len(self._due))
                self._enter(client, claimed)
                self._wanted.extendleft(reversed(claimed.left(digests)))
                # Where the answers are known, or asked by others, the bound is not what limits.
                self._claim_size = min(KEYS_A_MESSAGE, 2 * size) if not claimed.ask else self._most_due
        finally:
            self._claiming = False

    def _enter(self, client: Client, claimed: Claimed) -> None:
        self._waiting.update(claimed.waiting)
        self._hear(claimed.found, claimed.failed, claimed.ask)
        if self._waiting and not self._hearing:
            self._hearing = True
            self._start(self._listen, client)

    async def _listen(self, client: Client) -> None:
        """Hear what becomes of keys that other tasks are asking."""
        while self._waiting:
            told = await client.notification()
            self._waiting.difference_update(told.failed, told.ask, *(chunk.keys for chunk in told.found))
            self._hear(told.found, told.failed, told.ask)
        self._hearing = False

    def _hear(self, found: list[Chunk], failed: dict[bytes, Failure], ask: list[bytes]) -> None:
        for chunk in found:
            self._forget(chunk.keys)
            self.tell(chunk)
        if failed:
            self._forget(failed)
            self.tell(failed)
        self._due.extend(ask)
        self.totals.keys += len(ask)
        self._start_askers()

    def _start_askers(self) -> None:
        requests = len(self._halves) - (-len(self._due) // self.spec.source.terms.batch)
        for _ in range(min(self._most - self._askers, requests)):
            self._askers += 1
            self._start(self._ask)

    async def _ask(self) -> None:
        """Ask for what is due, request after request."""
        try:
            client, session, secrets = await self._open()
            while self._halves or self._due:
                if self._halves:
                    digests, attempts = self._halves.popleft()
                else:
                    size = min(self.spec.source.terms.batch, len(self._due))
                    digests, attempts = [self._due.popleft() for _ in range(size)], 0
                self._claim_more()
                await self._request(digests, attempts, client, session, secrets)
        finally:
            self._askers -= 1

    async def _request(
        self, digests: list[bytes], attempts: int, client: Client, session: Session, secrets: Secrets
    ) -> None:
        """Ask for some keys at once, and settle them: with their rows, by halves, or as failed."""
        keys, terms = self._taken(digests), self.spec.source.terms
        retrying = self._retrying.copy()
        if attempts and len(digests) > 1:
            retrying = self._retrying.copy(retry=retry_if_exception(_may_be_repeated))

        async def attempt() -> pa.RecordBatch:
            nonlocal attempts
            async with client.permit() as permit:
                attempts += 1
                client.count(requests=1, retried=int(attempts > 1))
                self.totals.requests += 1
                began, limited = time.perf_counter(), False
                try:
                    found = await in_time(session.fetch(keys), terms.timeout)
                    permit.outcome = ""
                    permit.charge(terms.price, keys.to_pylist(), found)
                    return found.result if isinstance(found, Answered) else found
                except Refused as refused:
                    # Whoever says that it was asked too much, or for something wrong, is there.
                    permit.outcome = refused.kind if refused.again and refused.kind not in _LIMITED else ""
                    limited = refused.kind in OVERLOADED
                    if limited:  # for all tasks, not for this one alone
                        own = min(LONGEST_WAIT, FIRST_WAIT * 2**attempts)
                        client.pause(own if refused.wait is None else self._asked_for(refused))
                    if refused.usage is not None:
                        permit.charge(terms.price, keys.to_pylist(), refused)
                    raise
                finally:
                    seconds = time.perf_counter() - began
                    self.totals.seconds += seconds
                    client.took(seconds, limited=limited)

        try:
            rows, counts = grouped(await retrying(attempt), keys)
            _check_size(rows)
        except ExecutionError:
            raise  # the coordinator is gone
        except Exception as error:  # noqa: BLE001  # a source's own mistake must not stop the others' keys
            if self._may_be_of_a_key(digests, error):
                half = len(digests) // 2
                self._halves.extendleft([(digests[half:], attempts), (digests[:half], attempts)])
                self._start_askers()
                return
            self._in_vain += len(digests) == 1
            refused = error if isinstance(error, Refused) else Refused(type(error).__name__, str(error))
            message = secrets.scrub(refused.message) + self._too_long(refused)
            if len(digests) > 1:
                message += f" (asked together with {len(digests) - 1} other keys)"
            failures = {
                digest: Failure(refused.kind, message, attempts, json.dumps(binding, default=str))
                for digest, binding in zip(digests, keys.to_pylist(), strict=True)
            }
            self._forget(digests)
            # First, so that whoever hears that the query failed finds the keys listed.
            await client.fail(failures)
            self.tell(failures)
            return
        self._in_vain = 0
        self._forget(digests)
        self.totals.rows += rows.num_rows
        if not self._settled:
            asyncio.get_running_loop().call_soon(self._settle, client)
        self._settled.append((digests, counts, rows))

    def _may_be_of_a_key(self, digests: list[bytes], error: Exception) -> bool:
        """Whether some of the keys may have an answer without the others."""
        most = max(_IN_VAIN, self.spec.source.terms.batch)
        return len(digests) > 1 and self._in_vain < most and not _is_of_no_key(error)

    def _asked_for(self, refused: Refused) -> float:
        """Return the seconds that a source asks to be left alone, within bounds."""
        return min(refused.wait or 0.0, self.spec.source.terms.max_retry_after)

    def _too_long(self, refused: Refused) -> str:
        most = self.spec.source.terms.max_retry_after
        if refused.wait is None or refused.wait <= most:
            return ""
        return f" (it asks to wait {refused.wait:g} s, max_retry_after is {most:g} s)"

    def _wait(self, state: RetryCallState) -> float:
        """Return the seconds before the next attempt: at least what the source asks for."""
        error = state.outcome.exception() if state.outcome is not None else None
        asked = self._asked_for(error) if isinstance(error, Refused) else 0.0
        return max(float(_backoff(state)), asked)

    def _settle(self, client: Client) -> None:
        """Settle what has come in this turn of the event loop, all at once."""
        digests = [digest for each, _, _ in self._settled for digest in each]
        counts = [count for _, each, _ in self._settled for count in each]
        batches = [rows for _, _, rows in self._settled]
        self._settled = []
        try:
            chunk = Chunk.of(digests, counts, pa.concat_batches(batches) if len(batches) > 1 else batches[0])
            self.tell(chunk)
            client.settle(chunk)
        except Exception as error:  # noqa: BLE001  # nobody awaits this: the eddy, and other tasks, must hear
            client.give_up(digests)
            self.tell(error)

    def _taken(self, digests: list[bytes]) -> pa.RecordBatch:
        """Return the keys of some digests as one batch."""
        return pa.concat_batches([self._keys[d][0].slice(self._keys[d][1], 1) for d in digests])

    def _forget(self, digests: Sequence[bytes] | Mapping[bytes, object]) -> None:
        for digest in digests:
            self._keys.pop(digest, None)


def _check_size(rows: pa.RecordBatch) -> None:
    if rows.nbytes > codec.LARGEST_ATTACHMENT:
        raise Refused(
            "too large", f"rows of {rows.nbytes:,} bytes: bind more columns, so that a key has fewer"
        )


def _is_of_no_key(error: BaseException) -> bool:
    return isinstance(error, Refused) and (error.kind in _OF_NO_KEY or bool(error.wait))


def _may_be_repeated(error: BaseException) -> bool:
    """Whether some keys of a request that was divided may be asked once more: the fault is not theirs."""
    return isinstance(error, Refused) and error.again and _is_of_no_key(error)


async def in_time(answer: Awaitable[_T], seconds: float) -> _T:
    """Return what a session answers, which is cancelled when its time is over.

    Raises:
        Refused: It is over, or the source itself reports that.
    """
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            return await answer
    except TimeoutError as error:
        said = f"no answer within {seconds:g} s"
        if not limit.expired():
            said = str(error) or "the source reports a time-out"
        raise Refused("timeout", said, again=True) from None


_backoff = wait_random_exponential(multiplier=FIRST_WAIT, max=LONGEST_WAIT)
