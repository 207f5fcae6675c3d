"""Coroutines are tests here too."""

from __future__ import annotations

from tests.limits.running import pytest_pyfunc_call

__all__ = ["pytest_pyfunc_call"]
