"""One lookup of one job: the turns of its requests, who asks each key, and the answers.

Beside the messages about permits (:mod:`millrace.limits.permits`) clients and session speak in these:

===========================  =======================================================================
client                       session
===========================  =======================================================================
``Claim``                    ``ClaimReply``: what becomes of each key, see below
``Settle``                   ``News`` of keys that are settled or handed over, to all who wait for one
``Fail``                     likewise; and ``Noted``
``GiveUp``                   likewise
===========================  =======================================================================

A reply to a claim has keys to ask, keys that others are asking, failed keys with their failures, keys
whose rows come (as chunks), and keys that are known but must be claimed once more, because the reply is
large enough. Keys beyond the ``most`` that it is ready to ask are in none of these. So news name keys only
and rows are fetched by claims, at the pace of whoever wants them: the session holds no rows for a client
that is slow.

In memory: the keys that are being asked now, failures' counts by kind, the page caches of SQLite. Not in
memory: answers and failures (:mod:`millrace.limits.answers`).

Permits are the event loop's business, and wait for no disk but where a stream's budget is written down. All
that concerns keys happens in the session's own thread, in the order in which it was said: claims and answers
belong to that thread; what clients hear of it, and the figures, to the event loop. So who hears of rows finds
them on disk, whoever is killed then.
"""

from __future__ import annotations

import asyncio
import sqlite3
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import Future, wait
from functools import partial
from typing import Self

from millrace.errors import InputError, encodable
from millrace.limits.answers import Answers, Claims, Keys
from millrace.limits.cache import wall_time
from millrace.limits.chunk import Chunk, Failure
from millrace.limits.clock import Clock, WallClock
from millrace.limits.messages import (
    MOST,
    STRAY,
    Claim,
    ClaimReply,
    Fail,
    GiveUp,
    Lost,
    Message,
    News,
    Noted,
    Pause,
    Permit,
    Reply,
    Request,
    Settle,
    Welcome,
)
from millrace.limits.permits import Permits
from millrace.limits.progress import FailedKey, Figures, LookupProgress
from millrace.limits.registration import Registration, Settings
from millrace.limits.session import Deliver, OrderedSession

_LONGEST_WRITING = 30.0
_BYTES_A_KEY = 64


class LookupSession(OrderedSession):
    """Holds the limits, the claims and the answers of one lookup among its clients.

    Args:
        calendar: Tells seconds since 1970, by which rows in a cache expire; the system's clock by default.
        clock: Tells the seconds of limits and figures; the system's clock by default.
        permits: Those of its limits, where others have a share in them; its own by default.
        source: Names what it asks, among those that share the permits: ``run/stream/number``.
        after: What other sessions still write to the cache, to be waited for.
        loop: The event loop that the session lives in, if it is to leave the disk to a thread. Without one,
            all is done at once where it is called, for clients that have nobody beside them.

    Attributes:
        made: When, by :func:`time.monotonic`.

    Raises:
        InputError: The cache cannot be used (with a ``loop`` it goes without, and the progress says why).
    """

    def __init__(
        self,
        registration: Registration,
        calendar: Clock | None = None,
        clock: Clock | None = None,
        permits: Permits | None = None,
        source: str = "",
        after: Sequence[Future[None]] = (),
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(loop)
        self.registration = registration
        self.made = time.monotonic()
        self.permits = permits or Permits(registration.settings, clock)
        self._source = source
        self._owners: dict[int, int] = {}  # among the permits, by client
        today = wall_time if calendar is None else calendar.now
        self._answers = Answers(registration, today, self._name_later)
        self._claims = Claims()
        self._figures = Figures(clock or WallClock())
        self._lost: Lost | None = None  # what clients hear once it has ended
        self._problem = ""  # of the cache
        self._written: Future[None] | None = None  # once it is closed
        if after:
            self._do(partial(wait, after, _LONGEST_WRITING))
        if registration.cache is not None and loop is None:
            self._answers.open_file()
        elif registration.cache is not None:
            self._do(self._open_file)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def settings(self) -> Settings:
        return self.registration.settings

    @property
    def in_flight(self) -> int:
        return self.permits.in_flight(set(self._owners.values()))

    def join(self, deliver: Deliver) -> int:
        """Let a client in, and return its number; messages for it go to ``deliver``."""
        number = super().join(deliver)
        self._owners[number] = self.permits.join(
            deliver, self._give_up, self._source, self.registration.circuit_breaker
        )
        if self._lost is not None:
            deliver(self._lost)
        return number

    def welcome(self) -> Welcome:
        secrets = {name: value.encode(errors=STRAY) for name, value in self.registration.secrets.items()}
        return Welcome(self.settings.turns, secrets)

    def leave(self, client: int) -> None:
        """Take back all that a client has; what it was asking goes to others."""
        super().leave(client)
        self._do(partial(self._drop, client))
        self.permits.leave(self._owners.pop(client))

    def close(self) -> None:
        """Remove what does not outlive the run; clients hear that it is over.

        With a thread that is done there, after all else; ``wait_closed`` waits for it.
        """
        self._end(f"the run of lookup {self.registration.name!r} is over")
        self._written = self.written()
        self._do(self._answers.close)
        self._end_thread()

    def stop(self) -> None:
        """Let nothing more be asked; tasks hear why."""
        self._end(
            f"nothing more is asked for {self.registration.name!r}: the action that wanted it was stopped, "
            "or has failed"
        )

    def written(self) -> Future[None]:
        """Return what has a result when all that clients have said so far is written."""
        if self._written is not None:
            return self._written
        written: Future[None] = Future()
        self._do(partial(written.set_result, None))
        return written

    def handle(self, client: int, message: Message) -> None:
        """Do what a client's message says, or have it done.

        Raises:
            ValueError: It says nothing that a client of ours would say.
        """
        if self._lost is not None and not isinstance(message, Permit | Settle):
            return  # what a call has cost counts, and its rows are kept, whoever wanted it
        match message:
            case Request() | Permit() | Pause():
                if isinstance(message, Permit) and message.unpriced is not None:
                    self._end(message.unpriced, unpriced=True)
                if isinstance(message, Permit) and message.seconds is not None:
                    self._figures.took(message.seconds, limited=message.limited, retried=message.retried)
                self.permits.handle(self._owners[client], message)
            case Settle() if self._written is not None:
                pass  # the answers are closed
            case Settle():
                size = len(message.rows) + _BYTES_A_KEY * len(message.keys)
                self._do_for(client, partial(self._settle, client, message.chunk), size)
            case Claim():
                self._do_for(client, partial(self._claim, client, message), _BYTES_A_KEY * len(message.keys))
            case GiveUp():
                job = partial(self._give_up_keys, client, _distinct(message.keys))
                self._do_for(client, job, _BYTES_A_KEY * len(message.keys))
            case Fail():
                if not all(0 <= each.attempts <= MOST for each in message.failures.values()):
                    raise ValueError("a failure of no number of attempts")
                texts = sum(len(each.message) + len(each.binding) for each in message.failures.values())
                self._do_for(client, partial(self._note_failures, client, message), texts)
            case _:
                raise ValueError(f"{type(message).__name__} is no message to a lookup")

    def progress(self) -> LookupProgress:
        in_flight = self.in_flight if self.settings.turns else len(self._claims)
        breaker = self.permits.breaker(self._source)
        is_open = breaker.until is not None
        problem = f"{breaker.describe()}: it is tried again now and then" if is_open else self._problem
        return self._figures.progress(
            self.registration.name, in_flight, running=not self.empty, problem=problem
        )

    def failed(self) -> list[FailedKey]:
        """Return the first ``MOST_FAILED`` keys that could not be looked up; reads the disk."""
        return [
            FailedKey(
                self.registration.name, failure.binding, failure.kind, failure.message, failure.attempts
            )
            for failure in (self._answers.failures() if self._figures.failed else ())
        ]

    def failed_later(self) -> asyncio.Future[list[FailedKey]]:
        """Return what will be the same, when the thread for the disk has come to it."""
        return self._result(self.failed)

    def _broke(self, error: Exception) -> None:
        self._end(self._no_room(error) if isinstance(error, sqlite3.Error) else self._unexpected(error))

    def _open_file(self) -> None:
        try:
            self._answers.open_file()
        except InputError as error:
            self._name_later(str(error))

    def _give_up_keys(self, client: int, keys: list[bytes]) -> None:
        """Give keys that a client is asking to those who wait for them."""
        before = len(self._claims)
        self._tell({}, self._claims.give_up(client, keys))
        self._later(self._figures.wanted, len(self._claims) - before)

    def _drop(self, client: int) -> None:
        before = len(self._claims)
        self._tell({}, self._claims.drop(client))
        self._later(self._figures.wanted, len(self._claims) - before)

    def _claim(self, client: int, message: Claim) -> None:
        asked, waiting, rest = [], [], []
        for key in _distinct(message.keys):
            owner = self._claims.owner(key)
            if owner is None:
                rest.append(key)
            elif owner == client:
                asked.append(key)
            else:
                waiting.append(key)
                self._claims.wait(client, key)
        reply = Reply(ClaimReply(message.number, asked, waiting))
        known = self._answers.find(rest, reply)
        self._later(self._figures.lose, known.lost, known.lost_cached)  # these are asked after all
        self._later(self._figures.wanted, known.cached)
        self._later(self._figures.found, known.cached)
        free = [key for key in rest if key not in known.keys]
        asked += self._take(client, free if message.most is None else free[: max(0, message.most)])
        self._say(client, reply.message)

    def _take(self, client: int, keys: list[bytes]) -> list[bytes]:
        self._claims.ask(client, keys)
        self._later(self._figures.wanted, len(keys))
        return keys

    def _settle(self, client: int, chunk: Chunk) -> None:
        own = self._claims.own(client, chunk.keys)
        if not own:
            return
        if len(own) < len(chunk.keys):
            chunk = chunk.only(set(own))
        self._answers.put(chunk)
        self._later(self._figures.answered, len(own))
        self._tell(self._claims.settle(own), {})

    def _note_failures(self, client: int, message: Fail) -> None:
        self._fail(client, message.failures)
        self._say(client, Noted(message.number))

    def _fail(self, client: int, failures: dict[bytes, Failure]) -> None:
        own = self._claims.own(client, failures)
        self._answers.fail((key, failures[key]) for key in own)
        for key in own:
            self._later(self._figures.fail, failures[key].kind)
        self._tell(self._claims.settle(own), {})

    def _name_later(self, problem: str) -> None:
        self._later(self._name_problem, problem)

    def _name_problem(self, problem: str) -> None:
        self._problem = problem

    def _tell(self, settled: Keys, handed: Keys) -> None:
        for client in settled.keys() | handed.keys():
            self._say(client, News(settled.get(client, []), handed.get(client, [])))

    def _give_up(self) -> None:
        told = self.permits.breaker(self._source).describe()
        self._end(
            f"the source of lookup {self.registration.name!r} does not answer: {told}, "
            "tries of one request at a time among them. Is it up, and can the executors reach it? What was "
            "looked up is kept where the lookup has a cache: run the query again when the source is back, or "
            "set circuit_breaker=None to go on asking"
        )

    def _no_room(self, error: Exception) -> str:
        return (
            f"the answers of lookup {self.registration.name!r} cannot be kept on this disk ({error}): "
            f"make room in {tempfile.gettempdir()!r}, or set TMPDIR to a folder on another disk"
        )

    def _unexpected(self, error: Exception) -> str:
        return (
            f"the answers of lookup {self.registration.name!r} cannot be kept ({type(error).__name__}: "
            f"{error}): what was looked up is kept where the lookup has a cache; run the query again"
        )

    def _end(self, reason: str, *, unpriced: bool = False) -> None:
        if self._lost is None:
            self._lost = Lost(encodable(reason), unpriced)
            for deliver in list(self._clients.values()):
                deliver(self._lost)
            self.permits.withdraw(self._owners.values())


def _distinct(keys: Sequence[bytes]) -> list[bytes]:
    return list(dict.fromkeys(keys))
