"""What is known about each set of arguments, so that equal ones are asked once a job.

Who asks and who waits is the business of :mod:`millrace.limits.claims`; here are the answers.

In memory, until the job is forgotten: a key and an answer for each distinct set of arguments (about
150 bytes). That cannot be bounded without asking twice. Texts of failures can: each is cut, and after
the first thousand only the beginning of the message is kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from millrace.limits.claims import Claims, Keys

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


class Answers:
    """The table of one predicate in one job."""

    def __init__(self) -> None:
        self._answered: dict[bytes, Answer] = {}
        self._claims = Claims()
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
            other = self._claims.owner(key)
            if other is None or other == owner:
                self._claims.ask(owner, [key])
                claim.ask.append(key)
            else:
                claim.waiting.append(key)
                self._claims.wait(owner, key)
        return claim

    def settle(self, owner: int, answers: Mapping[bytes, Answer | None]) -> list[News]:
        """Enter what an owner found out, and return who has to be told.

        Args:
            owner: Who asked.
            answers: Answer by key; None gives the key up. Keys that this owner is not asking are
                passed over: they have gone to another one.
        """
        own = self._claims.own(owner, answers)
        known = {key: self._kept(answer) for key in own if (answer := answers[key]) is not None}
        self._answered |= known
        told = self._claims.settle(known)
        handed = self._claims.give_up(owner, [key for key in own if key not in known])
        return [News(waiter, key, known[key]) for waiter, keys in told.items() for key in keys] + _asked(
            handed
        )

    def drop(self, owner: int) -> list[News]:
        """Forget an owner that is gone: what it was asking goes to the first that waits for it."""
        return _asked(self._claims.drop(owner))

    def _kept(self, answer: Answer) -> Answer:
        if answer.failure is None:
            return self._plain.setdefault(answer.truth, answer)  # one object for all that are equal
        self._failures += 1
        kind, message, traceback = answer.failure
        if self._failures > _MOST_FULL_FAILURES:
            return Answer(answer.truth, (kind, message[:_LONGEST_BRIEF_TEXT], ""))
        return Answer(answer.truth, (kind, message[:_LONGEST_TEXT], traceback[-_LONGEST_TEXT:]))


def _asked(handed: Keys) -> list[News]:
    return [News(owner, key, None) for owner, keys in handed.items() for key in keys]
