"""One predicate of one job: its limiter and its answers, and the clients that share them.

Beside the messages about turns (:class:`~millrace.limits.rooms.TurnRoom`) they speak in these:

=======================================  ==========================================================
client                                   room
=======================================  ==========================================================
``claim`` = keys                         ``claim`` = keys to ask, ``answered``, ``waiting``
``settle`` = answers                     ``news`` = answers, to everyone who waits for one
=======================================  ==========================================================

Keys are hexadecimal digests. Answers are ``[truth, failure]`` by key, null where a key is given up or
handed on.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from millrace.limits.address import Settings
from millrace.limits.answers import Answer, Answers, News
from millrace.limits.digest import KEY_BYTES
from millrace.limits.rooms import TurnRoom
from millrace.limits.wire import Message

_MOST_TRUTH = 2


class Room(TurnRoom):
    """Holds the limits of one predicate among its clients.

    Args:
        settings: The limits.
    """

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._answers = Answers()

    def leave(self, client: int) -> None:
        """Take back all that a client has; what it was asking goes to others."""
        super().leave(client)
        self._tell(self._answers.drop(client))

    def handle(self, client: int, message: Message) -> None:
        """Do what a client's message says.

        Raises:
            ValueError: It says nothing that a client of ours would say.
        """
        match message:
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
                super().handle(client, message)

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
