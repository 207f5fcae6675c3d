"""A coordinator for each test, and its clients; coroutines are tests here."""

from __future__ import annotations

import threading

import pytest

from millrace.limits.coordinator import Coordinator
from millrace.limits.store import Store
from tests.limits.running import PATIENCE, Clients, pytest_pyfunc_call

__all__ = ["pytest_pyfunc_call"]


@pytest.fixture
def coordinator():
    """A coordinator of the test's own."""
    served = Coordinator()
    yield served
    served.close()


@pytest.fixture
def clients(coordinator) -> Clients:
    """Makes clients of it."""
    return Clients(coordinator)


@pytest.fixture
def disk(monkeypatch) -> threading.Event:
    """While it is not set, whoever reads or keeps answers waits."""
    free = threading.Event()
    free.set()

    def slow(plain):
        def wait(*given):
            assert free.wait(PATIENCE)
            return plain(*given)

        return wait

    for name in ("find", "put"):
        monkeypatch.setattr(Store, name, slow(getattr(Store, name)))
    return free
