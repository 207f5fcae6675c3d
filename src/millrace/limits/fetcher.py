"""Asking for keys: each key once a job, within limits that all its tasks share, again where that may help.

For lookups, predicates and models: a predicate is a lookup whose only column is the truth.

Runs in an event loop. Keys that the job knows already, or that another task is asking, are never in the
way of keys to ask: answers are delivered as they come, in any order, so there is no head-of-line blocking
(Raman, Deshpande & Hellerstein 2003, section 4.1).

Each attempt takes its turn, so the limits count what a service sees. A request that failed gives its turn
back before it waits for the next attempt. A batch that fails for good may have one key at fault. Its halves
are asked, and theirs, so that no other key fails with it. A half is asked once, for its batch has been
repeated; a key alone has all its attempts.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import pyarrow as pa
from tenacity import AsyncRetrying, retry_if_exception

from millrace.errors import ExecutionError, PredicateError
from millrace.limits import policy
from millrace.limits.chunk import Chunk, Claimed, Failure
from millrace.limits.client import KEYS_A_MESSAGE, Client
from millrace.limits.policy import Limits
from millrace.limits.request import Answered, FetchStats, Refused

_CLAIMED_AHEAD = 4
"""Keys that are claimed and not asked yet, at most, over those that may be under way at once."""

_OVERLOADED = ("HTTP 429", "HTTP 503")
"""Failures that say that a service is asked too much."""

_LIMITED = ("HTTP 429",)
_OF_NO_KEY = (*_OVERLOADED, "HTTP 401", "HTTP 402", "HTTP 407", "stuck")
"""Failures that have nothing to do with the keys that were asked for."""

_IN_VAIN = 100
"""Keys in a row that failed alone: with so many (or a batch's, if these are more) it is not the keys."""

_T = TypeVar("_T")

Connect = Callable[[], Awaitable[Client]]
"""Joins the limits of a lookup's job."""

News = Chunk | Mapping[bytes, Failure | None] | BaseException
"""What came of keys: rows of some; failures by key, None where another may be to blame; or what ended all."""


class Session(Protocol):
    """What is asked, as one task has it open; it knows what keys are, and what an answer to them means."""

    def bind(self, wanted: list[Any]) -> Any:
        """Return the keys of one request, of what they were wanted with."""

    async def fetch(self, keys: Any) -> Any:
        """Ask once; return what was answered, or :class:`Answered`.

        Raises:
            Refused: The request failed.
        """

    def request(self, keys: Any) -> object:
        """Return the keys as the function for ``cost`` gets them."""

    def rows(self, keys: Any, answer: Any) -> tuple[Any, list[int]]:
        """Return the rows of an answer in the keys' order, in any form, and how many each key has."""

    def together(self, rows: list[Any]) -> pa.RecordBatch:
        """Return the rows of several answers as one batch."""

    def failures(self, keys: Any, error: Exception, attempts: int) -> list[Failure] | None:
        """Return what is told of each key whose request has failed; None where it may be another's fault."""

    async def close(self) -> None:
        """Let go of connections and threads."""


@dataclass
class Fetcher:
    """The questions of one task to one source; ``tell`` gets what came of them, in the event loop.

    Attributes:
        open: Opens the source; the client has its secrets.
        width: Requests of this task under way, or waiting for their turn or for the next attempt, at most.
        claims: Whether keys are shared with other tasks; else all that are wanted are asked.
        halves: Whether a batch that failed is asked by halves, also where its failure does not ask for that.
    """

    limits: Limits
    connect: Connect
    open: Callable[[Client], Awaitable[Session]]
    tell: Callable[[News], None]
    width: int
    claims: bool = True
    halves: bool = True
    stats: FetchStats = field(default_factory=FetchStats)

    def __post_init__(self) -> None:
        self._keys: dict[bytes, Any] = {}  # what is wanted, as it was given
        self._wanted: deque[bytes] = deque()  # not claimed yet
        self._due: deque[bytes] = deque()
        self._halves: deque[tuple[list[bytes], int]] = deque()  # of batches that failed, asked so often
        self._in_vain = 0
        self._claiming = False
        self._settled: list[tuple[list[bytes], list[int], Any]] = []
        self._waiting: set[bytes] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._askers = 0
        self._hearing = False
        self._opening: asyncio.Future[tuple[Client, Session]] | None = None
        self._closed = False
        self._batch = self.limits.batch or 1
        self._most_due = _CLAIMED_AHEAD * self.width * self._batch
        self._claim_size = self._most_due
        self._retrying = AsyncRetrying(**policy.schedule(self.limits))

    def want(self, keys: Mapping[bytes, Any]) -> None:
        """Ask for keys, by a digest of each that tells it apart."""
        self._keys.update(keys)
        if self.claims:
            self._wanted.extend(keys)
            self._claim_more()
        else:
            self._hear([], {}, list(keys))

    async def close(self) -> None:
        """Give up what is under way."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._opening is not None and self._opening.done() and not self._opening.exception():
            client, session = self._opening.result()
            await session.close()
            await client.close()

    def _start(self, work: Callable[..., Awaitable[None]], *arguments: object) -> None:
        task = asyncio.get_running_loop().create_task(self._guarded(work, *arguments))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _guarded(self, work: Callable[..., Awaitable[None]], *arguments: object) -> None:
        try:
            await work(*arguments)
        except asyncio.CancelledError as error:
            if not self._closed:  # what was asked has cancelled itself
                self.tell(error)
            raise
        except Exception as error:  # noqa: BLE001  # whatever it is, who wants keys must hear of it
            self.tell(error)

    async def _open(self) -> tuple[Client, Session]:
        """Return the connection to the coordinator and the open source; opened once."""
        if self._opening is None:
            self._opening = asyncio.get_running_loop().create_future()
            try:
                client = await self.connect()
                try:
                    session = await self.open(client)
                except BaseException:
                    await client.close()
                    raise
            except Exception as error:
                self._opening.set_exception(error)
                raise
            self._opening.set_result((client, session))
        return await asyncio.shield(self._opening)

    def _claim_more(self) -> None:
        """Claim keys up to a bound: who claims all it wants keeps others waiting for what it asks last."""
        if self._wanted and not self._claiming and len(self._due) * 2 <= self._most_due:
            self._claiming = True
            self._start(self._claim)

    async def _claim(self) -> None:
        try:
            client, _ = await self._open()
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
        self.stats.keys += len(ask)
        self._start_askers()

    def _start_askers(self) -> None:
        requests = len(self._halves) - (-len(self._due) // self._batch)
        for _ in range(min(self.width - self._askers, requests)):
            self._askers += 1
            self._start(self._ask)

    async def _ask(self) -> None:
        """Ask for what is due, request after request."""
        try:
            client, session = await self._open()
            while self._halves or self._due:
                if self._halves:
                    digests, attempts = self._halves.popleft()
                else:
                    size = min(self._batch, len(self._due))
                    digests, attempts = [self._due.popleft() for _ in range(size)], 0
                self._claim_more()
                await self._request(digests, attempts, client, session)
        finally:
            self._askers -= 1

    async def _request(self, digests: list[bytes], attempts: int, client: Client, session: Session) -> None:
        """Ask for some keys at once, and settle them: with their rows, by halves, or as failed."""
        keys, several = session.bind([self._keys[digest] for digest in digests]), len(digests) > 1
        limits, price, is_half = self.limits, self.limits.price, several and attempts > 0
        request = None if price is None else session.request(keys)

        def may_pass(error: BaseException) -> bool:
            return isinstance(error, Refused) and error.again and not (several and error.singly)

        def is_repeated(error: BaseException) -> bool:
            return may_pass(error) and (not is_half or _is_of_no_key(error))

        async def attempt() -> Any:
            nonlocal attempts
            async with client.permit() as permit:
                attempts += 1
                permit.retried = attempts > 1
                self.stats.requests += 1
                began = time.perf_counter()
                try:
                    found = await wait_within(session.fetch(keys), self.limits.timeout)
                    permit.outcome = ""
                    permit.charge(price, request, found)
                    return found.result if isinstance(found, Answered) else found
                except Refused as refused:
                    # Whoever says that it was asked too much, or for something wrong, is there.
                    permit.outcome = ""
                    if may_pass(refused) and refused.kind not in _LIMITED:
                        permit.outcome = refused.kind
                    permit.limited = refused.kind in _OVERLOADED
                    if permit.limited:  # for all tasks, not for this one alone
                        own = min(policy.LONGEST_WAIT, policy.FIRST_WAIT * 2**attempts)
                        asked = None if refused.wait is None else min(refused.wait, limits.max_retry_after)
                        client.pause(own if asked is None else asked)
                    if refused.usage is not None:
                        permit.charge(price, request, refused)
                    raise
                finally:
                    permit.seconds = time.perf_counter() - began
                    self.stats.seconds += permit.seconds
                    self.stats.cost += permit.cost or 0.0

        try:
            # What is asked once needs nobody to repeat it, which takes a quarter of a quick call's time.
            once = not self.limits.retries
            again = retry_if_exception(is_repeated)
            answer: Any = await (attempt() if once else self._retrying.copy(retry=again)(attempt))
            rows, counts = session.rows(keys, answer)
        except (ExecutionError, PredicateError):
            raise  # the coordinator is gone, or what is asked is no such thing
        except Exception as error:  # noqa: BLE001  # a source's own mistake must not stop the others' keys
            if self._may_be_of_a_key(digests, error):
                half = len(digests) // 2
                self._halves.extendleft([(digests[half:], attempts), (digests[:half], attempts)])
                self._start_askers()
            else:
                self._in_vain += not several
                await self._fail(digests, session.failures(keys, error, attempts), client)
            return
        self._in_vain = 0
        self._forget(digests)
        self.stats.rows += sum(counts)
        if not self._settled:
            asyncio.get_running_loop().call_soon(self._settle, client, session)
        self._settled.append((digests, counts, rows))

    async def _fail(self, digests: list[bytes], failures: list[Failure] | None, client: Client) -> None:
        self._forget(digests)
        if failures is None:
            if self.claims:
                client.give_up(digests)  # nothing for others to rely on
            self.tell(dict.fromkeys(digests))
            return
        failed = dict(zip(digests, failures, strict=True))
        if self.claims:
            await client.fail(failed)  # first: whoever hears that the query failed finds the keys listed
        self.tell(failed)

    def _may_be_of_a_key(self, digests: list[bytes], error: Exception) -> bool:
        """Whether some of the keys may have an answer without the others."""
        most = max(_IN_VAIN, self._batch)
        halves = self.halves or (isinstance(error, Refused) and error.singly)
        return halves and len(digests) > 1 and self._in_vain < most and not _is_of_no_key(error)

    def _settle(self, client: Client, session: Session) -> None:
        """Settle what has come in this turn of the event loop, all at once."""
        digests = [digest for each, _, _ in self._settled for digest in each]
        counts = [count for _, each, _ in self._settled for count in each]
        rows = [each for _, _, each in self._settled]
        self._settled = []
        try:
            chunk = Chunk.of(digests, counts, session.together(rows))
            self.tell(chunk)
            if self.claims:
                client.settle(chunk)
        except Exception as error:  # noqa: BLE001  # nobody awaits this: who wants keys must hear
            client.give_up(digests)
            self.tell(error)

    def _forget(self, digests: Sequence[bytes] | Mapping[bytes, object]) -> None:
        for digest in digests:
            self._keys.pop(digest, None)


def _is_of_no_key(error: BaseException) -> bool:
    return isinstance(error, Refused) and (error.kind in _OF_NO_KEY or bool(error.wait))


async def wait_within(answer: Awaitable[_T], seconds: float | None) -> _T:
    """Return what a session answers, which is cancelled when its time is over.

    Raises:
        Refused: It is over, or the source itself reports that.
    """
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            return await answer
    except TimeoutError as error:
        said = str(error) or "the source reports a time-out"
        if limit.expired():
            said = f"no answer within {seconds:g} s"
        raise Refused("timeout", said, again=True) from None
