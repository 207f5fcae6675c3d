"""Tests that are coroutines: each runs in an event loop of its own, and not for ever."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable
from typing import Any

import pytest

from millrace.limits.client import Client
from millrace.limits.coordinator import Coordinator
from millrace.limits.lookup_session import LookupSession

PATIENCE = 20
"""Seconds until a test that hangs fails."""


def run(work: Awaitable[Any], seconds: float = PATIENCE) -> Any:
    """Run a coroutine to its end, but not for ever."""

    async def limited() -> Any:
        return await asyncio.wait_for(work, seconds)

    return asyncio.run(limited())


class Clients:
    """Makes clients of a coordinator, which leave when the test is over."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self._made: list[Client] = []

    async def __call__(self, *namespaces: str, **options: Any) -> list[Client]:
        """Return a client for each namespace: of lookups that are registered, or with settings of its own."""
        join = Client.limited if options else Client.connect
        made = [await join(self._coordinator.address, each, **options) for each in namespaces]
        self._made += made
        return made

    def local(self, session: LookupSession, number: int) -> list[Client]:
        """Return clients of a session of this process."""
        made = [Client.local(session) for _ in range(number)]
        self._made += made
        return made

    async def close(self) -> None:
        """Let all of them leave; those that have left stay away."""
        for client in self._made:
            await client.close()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine function."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    given = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}

    async def test() -> None:
        try:
            await pyfuncitem.obj(**given)
        finally:
            for each in pyfuncitem.funcargs.values():
                if isinstance(each, Clients):
                    await each.close()

    run(test(), 3 * PATIENCE)  # it may start processes
    return True
