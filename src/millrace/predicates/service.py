"""Predicates that ask a service: they have secrets, keep connections, and tell what their calls took."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from inspect import signature
from typing import Any, Protocol

from millrace.limits.budget import Cost, Usage
from millrace.limits.request import Answered
from millrace.limits.secrets import Secrets


class ServiceSession(Protocol):
    """A service that one task has opened."""

    async def ask(self, *values: Any) -> Answered:
        """Do one call, with the arguments of the predicate's function.

        Raises:
            Refused: The call failed.
        """

    async def close(self) -> None:
        """Let go of connections."""


_open: ContextVar[tuple[ServiceSession | None, list[Usage]]] = ContextVar("millrace service")


class Service(ABC):
    """The function of an ``async`` predicate, of which a task opens one session for all calls.

    Frozen and picklable; without values of secrets.
    """

    @property
    def cost(self) -> Cost | None:
        """What tells the cost of a call by its answer, where prices are known."""
        return None

    async def __call__(self, *values: Any, **named: Any) -> Any:
        """Ask within the session that the task has open."""
        session, taken = _open.get()
        if session is None:
            raise RuntimeError("the session of a service is not open")
        answered = await session.ask(*signature(self).bind(*values, **named).args)
        taken.append(answered.usage)
        return answered.result

    @property
    @abstractmethod
    def identity(self) -> str:
        """What it asks, as text without secrets: equal texts mean equal answers."""

    @abstractmethod
    def open(self, secrets: Secrets) -> ServiceSession:
        """Return a session, which connects with its first call."""


@contextmanager
def within(session: ServiceSession | None) -> Iterator[list[Usage]]:
    """Let services that are called in the block use a session, and list what these calls have taken.

    Functions may pass calls on to services, and what these return to others.
    """
    taken: list[Usage] = []
    token = _open.set((session, taken))
    try:
        yield taken
    finally:
        _open.reset(token)
