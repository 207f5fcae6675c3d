"""One predicate of one job: its limiter and its answers, and the clients that share them.

Lives in an event loop, and is the same whether its clients sit in other processes
(:mod:`millrace.limits.server`) or in this one (:mod:`millrace.limits.local`). They speak in messages:

=======================================  ==========================================================
client                                   room
=======================================  ==========================================================
``request``, ``id``                      ``turn`` = id, ``wait``: start after so many seconds
``release``, ``id``
``claim`` = keys                         ``claim`` = keys to ask, ``answered``, ``waiting``
``settle`` = answers                     ``news`` = answers, to everyone who waits for one
=======================================  ==========================================================

Keys are hexadecimal digests. Answers are ``[truth, failure]`` by key, null where a key is given up or
handed on.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable
from itertools import count
from typing import Any

from millrace.clock import WallClock
from millrace.limits.address import Settings
from millrace.limits.answers import Answer, Answers, News
from millrace.limits.digest import KEY_BYTES
from millrace.limits.limiter import Limiter
from millrace.limits.wire import Message

_AHEAD = 0.02
"""Seconds by which turns are given out early: more than a timer is late, and than a message takes."""

_MOST_TRUTH = 2

Deliver = Callable[[Message], None]


class Room:
    """Holds the limits of one predicate among its clients.

    Args:
        settings: The limits.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._clock = WallClock()
        self._limiter = Limiter(self._clock, settings.max_in_flight, settings.per_second, _AHEAD)
        self._answers = Answers()
        self._clients: dict[int, Deliver] = {}
        self._numbers = count()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def empty(self) -> bool:
        """Whether there is no client."""
        return not self._clients

    @property
    def in_flight(self) -> int:
        """How many permits are out."""
        return self._limiter.in_flight

    def join(self, deliver: Deliver) -> int:
        """Let a client in, and return its number; messages for it go to ``deliver``."""
        number = next(self._numbers)
        self._clients[number] = deliver
        return number

    def leave(self, client: int) -> None:
        """Take back all that a client has; what it was asking goes to others."""
        del self._clients[client]
        self._limiter.drop(client)
        self._tell(self._answers.drop(client))
        self._grant()

    def handle(self, client: int, message: Message) -> None:
        """Do what a client's message says.

        Raises:
            ValueError: It says nothing that a client of ours would say.
        """
        match message:
            case {"request": int(ticket)}:
                self._limiter.request(client, ticket)
                self._grant()
            case {"release": int(ticket)}:
                self._limiter.release(client, ticket)
                self._grant()
            case {"claim": list(keys)}:
                claim = self._answers.claim(client, map(_key, keys))
                self._clients[client](
                    {
                        "claim": [key.hex() for key in claim.ask],
                        "answered": {key.hex(): list(answer) for key, answer in claim.answered.items()},
                        "waiting": [key.hex() for key in claim.waiting],
                    }
                )
            case {"settle": dict(answers)}:
                found = {_key(key): _answer(each) for key, each in answers.items()}
                self._tell(self._answers.settle(client, found))
            case _:
                raise ValueError(f"no such message: {list(message)[:3]}")

    def _grant(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for grant in self._limiter.grants():
            wait = max(0.0, grant.start - self._clock.now())
            self._clients[grant.owner]({"turn": grant.ticket, "wait": wait})
        due = self._limiter.due()
        if due is not None:
            delay = max(0.0, due - self._clock.now())
            self._timer = asyncio.get_running_loop().call_later(delay, self._grant)

    def _tell(self, news: Iterable[News]) -> None:
        by_client: defaultdict[int, dict[str, Any]] = defaultdict(dict)
        for client, key, answer in news:
            by_client[client][key.hex()] = answer and list(answer)
        for client, answers in by_client.items():
            self._clients[client]({"news": answers})


def _key(text: object) -> bytes:
    key = bytes.fromhex(text) if isinstance(text, str) else b""
    if len(key) != KEY_BYTES:
        raise ValueError("no key")
    return key


def _answer(given: object) -> Answer | None:
    match given:
        case None:
            return None
        case [int(truth), None] if 0 <= truth <= _MOST_TRUTH:
            return Answer(truth)
        case [int(truth), [str(kind), str(message), str(traceback)]] if 0 <= truth <= _MOST_TRUTH:
            return Answer(truth, (kind, message, traceback))
    raise ValueError("no answer")
