"""A task's side of a session: permits, claims by key, rows and failures that are shared with all tasks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import count, islice
from typing import Any

from millrace.errors import BudgetError, ExecutionError, encodable
from millrace.limits import codec
from millrace.limits.chunk import LONGEST_TEXT, Chunk, Claimed, Failure
from millrace.limits.connection import Connection, LocalConnection, RemoteConnection
from millrace.limits.lookup_session import LookupSession
from millrace.limits.messages import (
    LONGEST_PAUSE,
    STRAY,
    BudgetSpent,
    Claim,
    ClaimReply,
    Fail,
    GiveUp,
    Granted,
    Join,
    Message,
    News,
    Noted,
    Pause,
    Permit,
    Request,
    Settle,
)
from millrace.limits.registration import Address

KEYS_A_MESSAGE = 4096
_FAILURES_A_MESSAGE = 256

_SPENT = (
    "the budget is spent: {}. Nothing was given out as complete; answers are kept where there is a cache. "
    "Raise the budget, filter more rows before, or give a cache, so that the next run asks only for what is "
    "missing"
)


class Client:
    """One lookup, as one task sees it; made by :meth:`connect` or :meth:`local`, for one event loop.

    What is settled or given up is said without waiting; what is awaited raises when the coordinator is gone.

    Attributes:
        secrets: Values of the lookup's ``${NAME}`` by name.
    """

    def __init__(self, link: Connection, *, turns: bool, secrets: Mapping[str, str]) -> None:
        self.secrets = secrets
        self._loop = asyncio.get_running_loop()
        self._numbers = count()
        self._answers: dict[int, asyncio.Future[Any]] = {}  # that are awaited, by number
        self._news: asyncio.Queue[tuple[list[bytes], list[bytes]]] = asyncio.Queue()
        # A claim may take several messages. News of its first keys wait until it has returned, or whoever
        # claims would hear of keys before it knows that it waits for them.
        self._claiming = asyncio.Lock()
        self._link = link
        self._turns = turns
        self._calls: set[asyncio.Timeout] = set()
        self._lost: ExecutionError | None = None
        link.listen(self._receive, self._lose)

    @classmethod
    async def connect(cls, address: Address, namespace: str) -> Client:
        """Join a lookup or predicate of a job.

        The namespace is ``run/execution/number``: the run and the number there as they were registered.
        Between them stands whatever makes the job's tasks share their answers with each other only.

        Raises:
            ExecutionError: The coordinator cannot be reached, does not accept this client, or has no
                such lookup.
        """
        hello = Join(address.token, namespace)
        link, welcome = await RemoteConnection.dial(address, hello, "limits and answers")
        secrets = {name: value.decode(errors=STRAY) for name, value in welcome.secrets.items()}
        return cls(link, turns=welcome.turns, secrets=secrets)

    @classmethod
    def local(cls, session: LookupSession) -> Client:
        """Join a session of this process, in the event loop that runs now and that all its clients use."""
        return cls._beside(session, LocalConnection(session))

    @classmethod
    def alone(cls, session: LookupSession) -> Client:
        """Join a session that nobody else is in, and that ends with the client."""
        return cls._beside(session, LocalConnection(session, closes=session.close))

    @classmethod
    def _beside(cls, session: LookupSession, link: Connection) -> Client:
        return cls(link, turns=session.settings.turns, secrets=session.registration.secrets)

    @asynccontextmanager
    async def permit(self) -> AsyncIterator[Permit]:
        """Wait until one more call may start; leaving the block says that it is over, and what came of it.

        When the connection breaks, others get the permit: the block is cancelled, for the limit is theirs.

        Raises:
            ExecutionError: The coordinator is gone.
            BudgetError: The budget has nothing left for the call.
        """
        self._check()
        permit = Permit(next(self._numbers))
        if not self._turns:
            try:
                yield permit
            finally:
                self._release(permit)
            return
        granted = self._answers[permit.ticket] = self._loop.create_future()
        self._send(Request(permit.ticket))
        call = asyncio.timeout(None)
        try:
            async with call:
                self._calls.add(call)
                wait = (await granted).wait
                if wait > 0:
                    await asyncio.sleep(wait)
                yield permit
        except TimeoutError:
            if call.expired():
                self._check()
            raise  # the body's own
        finally:
            self._calls.discard(call)
            self._answers.pop(permit.ticket, None)
            self._release(permit)

    def pause(self, seconds: float) -> None:
        """Let no task of the job start a call for so long, at most ``LONGEST_PAUSE``."""
        if self._turns:
            self._send(Pause(min(seconds, LONGEST_PAUSE)))

    async def close(self) -> None:
        """Leave, giving back what is held."""
        await self._link.close()

    async def claim(self, keys: Sequence[bytes], most: int | None = None) -> Claimed:
        """Return which keys are to be looked up here, which are known and which others look up.

        Every key to ask must be settled, failed or given up. A key that this client is asking already is to
        be asked still.

        The keys are distinct digests of ``KEY_BYTES`` bytes. At most ``most`` of them are to be looked up
        here; None sets no bound. Others stay free, and are in nothing that is returned.

        Raises:
            ExecutionError: The coordinator is gone.
        """
        async with self._claiming:
            return await self._claim(keys, most)

    async def _claim(self, keys: Sequence[bytes], most: int | None = None) -> Claimed:
        claimed = Claimed()
        left = list(keys)
        while left:
            some, left = left[:KEYS_A_MESSAGE], left[KEYS_A_MESSAGE:]
            number = next(self._numbers)
            more = None if most is None else max(0, most - len(claimed.ask))
            reply: ClaimReply = await self._ask(number, Claim(number, some, more))
            left += reply.add_to(claimed)
        return claimed

    def settle(self, chunk: Chunk) -> None:
        """Share the rows of keys that were to be asked here; several keys at once cost less than each alone.

        Raises:
            ExecutionError: The rows of a single key, or one row of a scan, take more bytes than can be sent.
        """
        for part in chunk.parts(codec.USUAL_ATTACHMENT):
            size = len(part.rows)
            if size > codec.LARGEST_ATTACHMENT:
                raise ExecutionError(
                    f"the rows of a single key of a lookup, or one row of its scan, take {size} bytes, "
                    f"expected at most {codec.LARGEST_ATTACHMENT}: bind more columns, so that a key has "
                    "fewer rows, or leave out the columns of long values"
                )
            self._send(Settle(part.keys, part.counts, part.rows))

    async def fail(self, failures: Mapping[bytes, Failure]) -> None:
        """Say of keys to ask that they could not be looked up; that holds for the whole job.

        Returns when the coordinator has noted it, so that no task ends before its failed keys are listed.

        Raises:
            ExecutionError: The coordinator is gone.
        """
        left = iter(failures.items())
        while some := dict(islice(left, _FAILURES_A_MESSAGE)):
            short = {
                key: Failure(
                    each.kind[:LONGEST_TEXT],
                    each.message[:LONGEST_TEXT],
                    each.attempts,
                    each.binding[:LONGEST_TEXT],
                )
                for key, each in some.items()
            }
            number = next(self._numbers)
            await self._ask(number, Fail(number, short))

    def give_up(self, keys: Sequence[bytes]) -> None:
        """Hand keys to ask back: whoever waits for them asks, or the next one who wants them."""
        self._send(GiveUp(list(keys)))

    async def notification(self) -> Claimed:
        """Return the next news of keys that are waited for; waits until there are some.

        Raises:
            ExecutionError: The coordinator is gone.
        """
        self._check()
        settled, handed = await self._news.get()
        try:
            async with self._claiming:
                while not self._news.empty():
                    for keys, more in zip((settled, handed), self._news.get_nowait(), strict=True):
                        keys += more
                self._check()
                claimed = await self._claim(settled)
        except BaseException:
            self._news.put_nowait((settled, handed))
            raise
        claimed.ask += handed
        return claimed

    def _release(self, permit: Permit) -> None:
        if permit.outcome:
            permit.outcome = encodable(permit.outcome)
        self._send(permit, soon=self._turns)  # others may wait for their turn

    def _send(self, message: Message, *, soon: bool = True) -> None:
        # Others wait for a permit that is given back, and its call may have a cost.
        if self._lost is None or isinstance(message, Permit):
            self._link.send(message, soon=soon)

    def _check(self) -> None:
        if self._lost is not None:
            raise self._lost

    async def _ask(self, number: int, message: Message) -> Any:
        self._check()
        reply = self._answers[number] = self._loop.create_future()
        try:
            self._send(message)
            await self._link.drain()
            return await reply
        finally:
            self._answers.pop(number, None)

    def _receive(self, message: Message) -> None:
        match message:
            case News():
                self._news.put_nowait((message.settled, message.handed))
            case BudgetSpent():
                self._answer(message.ticket, BudgetError(_SPENT.format(message.why)))
            case Granted():
                self._answer(message.ticket, message)
            case ClaimReply() | Noted():
                self._answer(message.number, message)

    def _answer(self, number: int, answer: Message | Exception) -> None:
        waiting = self._answers.get(number)
        if waiting is None or waiting.done():
            return  # nobody waits any more
        if isinstance(answer, Exception):
            waiting.set_exception(answer)
        else:
            waiting.set_result(answer)

    def _lose(self, error: ExecutionError, *, is_broken: bool = False) -> None:
        self._lost = self._lost or error
        if is_broken:
            for call in self._calls:
                call.reschedule(0.0)  # that is now
        for number in self._answers:
            self._answer(number, self._lost)
        self._news.put_nowait(([], []))
