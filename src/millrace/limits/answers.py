"""What is known about each set of arguments, so that equal ones are asked once a job.

A key is unknown, being asked by one owner, or answered. Owners that want a key which another is asking
wait, and are told: the answer, or that asking it has become theirs since the first one died or gave
up. An owner asks its own keys without waiting for anybody's, so waiting cannot go round in a circle.

In memory, until the job is forgotten: a key and an answer for each distinct set of arguments (about
150 bytes). That cannot be bounded without asking twice. Texts of failures can: each is cut, and after
the first thousand only the beginning of the message is kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

_LONGEST_TEXT = 4_000
_LONGEST_BRIEF_TEXT = 200
_MOST_FULL_FAILURES = 1_000


class Answer(NamedTuple):
    """What came of asking.

    Attributes:
        truth: A code of the predicates' outcomes.
        failure: Kind, message and traceback of what was raised, or None.
    """

    truth: int
    failure: tuple[str, str, str] | None = None

    @classmethod
    def of(cls, given: Sequence[Any]) -> Answer:
        """Return the answer that came as a list in a message."""
        truth, failure = given
        return cls(truth, failure and tuple(failure))


class News(NamedTuple):
    """Something an owner waited for.

    Attributes:
        owner: Whom to tell.
        key: The arguments' digest.
        answer: The answer; None when the owner has to ask it now.
    """

    owner: int
    key: bytes
    answer: Answer | None


@dataclass(frozen=True)
class Claim:
    """What an owner that wants some keys has to do.

    Attributes:
        ask: Keys that it has to ask, and to settle.
        answered: Keys with known answers.
        waiting: Keys of which it will be told.
    """

    ask: list[bytes] = field(default_factory=list)
    answered: dict[bytes, Answer] = field(default_factory=dict)
    waiting: list[bytes] = field(default_factory=list)


@dataclass
class _Asking:
    owner: int
    waiters: list[int] = field(default_factory=list)


class Answers:
    """The table of one predicate in one job."""

    def __init__(self) -> None:
        self._answered: dict[bytes, Answer] = {}
        self._asking: dict[bytes, _Asking] = {}
        self._plain: dict[int, Answer] = {}
        self._failures = 0

    def claim(self, owner: int, keys: Iterable[bytes]) -> Claim:
        """Return which keys the owner has to ask, which are answered and which it waits for."""
        claim = Claim()
        for key in keys:
            answer = self._answered.get(key)
            if answer is not None:
                claim.answered[key] = answer
                continue
            asking = self._asking.setdefault(key, _Asking(owner))
            if asking.owner == owner:
                claim.ask.append(key)
            else:
                claim.waiting.append(key)
                if owner not in asking.waiters:
                    asking.waiters.append(owner)
        return claim

    def settle(self, owner: int, answers: Mapping[bytes, Answer | None]) -> list[News]:
        """Enter what an owner found out, and return who has to be told.

        Args:
            owner: Who asked.
            answers: Answer by key; None gives the key up. Keys that this owner is not asking are
                passed over: they have gone to another one.
        """
        news = []
        for key, answer in answers.items():
            asking = self._asking.get(key)
            if asking is None or asking.owner != owner:
                continue
            if answer is None:
                news += self._pass_on(key, asking)
            else:
                kept = self._answered[key] = self._kept(answer)
                del self._asking[key]
                news += [News(waiter, key, kept) for waiter in asking.waiters]
        return news

    def drop(self, owner: int) -> list[News]:
        """Forget an owner that is gone: what it was asking goes to the first that waits for it."""
        news = []
        for key, asking in list(self._asking.items()):
            if asking.owner == owner:
                news += self._pass_on(key, asking)
            elif owner in asking.waiters:
                asking.waiters.remove(owner)
        return news

    def _pass_on(self, key: bytes, asking: _Asking) -> list[News]:
        if not asking.waiters:
            del self._asking[key]
            return []
        asking.owner = asking.waiters.pop(0)
        return [News(asking.owner, key, None)]

    def _kept(self, answer: Answer) -> Answer:
        if answer.failure is None:
            return self._plain.setdefault(answer.truth, answer)  # one object for all that are equal
        self._failures += 1
        kind, message, traceback = answer.failure
        if self._failures > _MOST_FULL_FAILURES:
            return Answer(answer.truth, (kind, message[:_LONGEST_BRIEF_TEXT], ""))
        return Answer(answer.truth, (kind, message[:_LONGEST_TEXT], traceback[-_LONGEST_TEXT:]))
