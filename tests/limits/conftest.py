"""A coordinator for each test, and its clients; coroutines are tests here."""

from __future__ import annotations

import pytest

from millrace.limits.coordinator import Coordinator
from tests.limits.running import Clients, pytest_pyfunc_call

__all__ = ["pytest_pyfunc_call"]


@pytest.fixture
def coordinator():
    served = Coordinator()
    yield served
    served.close()


@pytest.fixture
def clients(coordinator) -> Clients:
    return Clients(coordinator)
