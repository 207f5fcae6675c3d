"""Coroutines are tests here too, and some run on every kind of source."""

from __future__ import annotations

import pytest

from tests.limits.running import pytest_pyfunc_call
from tests.lookups.kinds import KINDS, Kind

__all__ = ["pytest_pyfunc_call"]


@pytest.fixture(scope="module", params=KINDS)
def kind(request, tmp_path_factory) -> Kind:
    server = request.getfixturevalue("postgres") if request.param == "postgresql" else None
    return Kind(request.param, tmp_path_factory.mktemp(request.param), server)
