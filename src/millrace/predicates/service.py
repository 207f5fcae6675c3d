"""Predicates that ask a service: they have secrets, keep connections, and tell what their calls took.

How a request fails, and what it took, is the same for lookups.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from inspect import signature
from typing import Any, Protocol

from millrace.errors import encodable
from millrace.limits.budget import Cost, Usage
from millrace.limits.secrets import Secrets

OVERLOADED = ("HTTP 429", "HTTP 503")
"""Failures that say that a service is asked too much."""


@dataclass(frozen=True)
class Answered:
    """A result with what it took: of a lookup its rows, as its session returns them.

    Attributes:
        result: What the function would return otherwise.
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
        singly: Of a request for several keys: whether fewer should be asked, rather than the same again.
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


class ServiceSession(Protocol):
    """A service that one task has opened."""

    async def ask(self, *values: Any) -> Answered:
        """Do one call, with the arguments of the predicate's function.

        Raises:
            Refused: The call failed.
        """

    async def close(self) -> None:
        """Let go of connections."""


_open: ContextVar[ServiceSession | None] = ContextVar("millrace service", default=None)


class Service(ABC):
    """The function of an ``async`` predicate, of which a task opens one session for all calls.

    Frozen and picklable; without values of secrets.
    """

    @property
    def cost(self) -> Cost | None:
        """What tells the cost of a call by its answer, where prices are known."""
        return None

    async def __call__(self, *values: Any, **named: Any) -> Answered:
        """Ask within the session that the task has open."""
        session = _open.get()
        if session is None:
            raise RuntimeError("the session of a service is not open")
        return await session.ask(*signature(self).bind(*values, **named).args)

    @property
    @abstractmethod
    def identity(self) -> str:
        """What it asks, as text without secrets: equal texts mean equal answers."""

    @abstractmethod
    def open(self, secrets: Secrets) -> ServiceSession:
        """Return a session, which connects with its first call."""


@contextmanager
def within(session: ServiceSession | None) -> Iterator[None]:
    """Let services that are called in the block use a session; functions may pass calls on to them."""
    token = _open.set(session)
    try:
        yield
    finally:
        _open.reset(token)
