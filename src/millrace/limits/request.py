"""How a request ends: with an answer and what that took, or refused; and what all of a task came to."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from millrace.errors import encodable
from millrace.limits.budget import Usage


@dataclass(frozen=True)
class Answered:
    """An answer with what it took.

    Attributes:
        result: The answer itself: of a lookup its rows, as its session returns them, of a predicate truths.
        usage: Counts for ``tokens_per_minute``; the function for ``cost`` gets all of this.
    """

    result: Any
    usage: Usage


class Refused(Exception):
    """A request was not answered, or not with what was asked for.

    Whoever asks decides whether to ask again, and what the failure means for the query.

    Attributes:
        kind: What went wrong, in a few words that are the same for every key, such as ``"HTTP 503"``,
            ``"timeout"`` or the name of an exception.
        message: What went wrong with this request; without values of secrets.
        again: Whether another attempt may succeed.
        wait: Seconds to wait before it, as the source asks for; None if it did not say. Whoever asks waits
            for ``max_retry_after`` at most.
        singly: Whether of several keys fewer are to be asked at once, rather than all of them again.
        usage: What the request has taken all the same; None if that is not known.
    """

    def __init__(
        self,
        kind: str,
        message: str,
        *,
        again: bool = False,
        wait: float | None = None,
        singly: bool = False,
        usage: Usage | None = None,
    ) -> None:
        self.kind = encodable(kind)
        self.message = encodable(message)
        super().__init__(self.kind, self.message)
        self.again = again
        self.wait = wait
        self.singly = singly
        self.usage = usage

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> tuple[object, ...]:
        how = {name: getattr(self, name) for name in ("again", "wait", "singly", "usage")}
        return partial(Refused, **how), (self.kind, self.message)


@dataclass
class FetchStats:
    """What one task asked of one source.

    Attributes:
        keys: To ask, each once.
        rows: In answers.
        requests: Requests made, repeated ones included.
        seconds: Time that requests were under way, added up.
        cost: What they have told that they cost.
    """

    keys: int = 0
    rows: int = 0
    requests: int = 0
    seconds: float = 0.0
    cost: float = 0.0
