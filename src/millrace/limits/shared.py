"""What a process has once for each address that tasks reach: servers, and the coordinator's process."""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from typing import ClassVar, Self

from millrace.limits.registration import Address

_shared: dict[tuple[type, int, str, int, str | None], Shared] = {}
_sharing = threading.RLock()  # a finalizer may come here while this thread has it


def _after_fork() -> None:
    # Another thread may have held it; what is shared is told apart by process.
    global _sharing
    _sharing = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class Shared(ABC):
    """Found by where tasks find it, and started where there is none.

    Args:
        host: What the clients shall connect to. A loopback address keeps it to this machine.
        port: TCP port to listen on; 0 takes a free one.
        bind: Address of this machine to listen on, and nowhere else; None for the host itself. A driver
            behind an address translation needs another one, or ``"0.0.0.0"`` for all of this machine's.

    Raises:
        ExecutionError: It cannot listen.
    """

    purpose: ClassVar[str]
    """What it listens for, in errors."""

    address: Address

    @abstractmethod
    def __init__(self, host: str = "127.0.0.1", port: int = 0, bind: str | None = None) -> None:
        """Start it."""

    @classmethod
    def get_or_start(cls, host: str = "127.0.0.1", port: int = 0, bind: str | None = None) -> Self:
        """Return this process's one for a host, starting it if need be.

        A forked child gets one of its own: neither threads nor children are its.

        Raises:
            ExecutionError: It cannot listen.
        """
        with _sharing:
            key = (cls, os.getpid(), host, port, bind)
            found = _shared.get(key)
            if not isinstance(found, cls) or not found.running:
                found = _shared[key] = cls(host, port, bind)
            return found

    @classmethod
    def all(cls) -> list[Self]:
        """Return all of this process that serve."""
        with _sharing:
            return [each for each in _shared.values() if isinstance(each, cls) and each.running]

    def address_of(self, scope: str) -> Address:
        """Return the address with a token that opens one scope alone: a run, or a stream."""
        return self.address.of(scope)

    @property
    @abstractmethod
    def running(self) -> bool:
        """Whether it serves."""
