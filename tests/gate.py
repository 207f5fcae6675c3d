"""What the gate does of a test, and what it leaves to the night."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import pytest

PROFILE = os.environ.get("MILLRACE_PROFILE", "gate")
"""``gate``, ``nightly``, or ``few`` for what runs the gate's own tests within a test."""


def sampled(values: Iterable[Any], every: int = 2) -> list[Any]:
    """Return the values of a parameter; the gate takes each ``every``-th from the first on, the night all.

    A tuple is several parameters, as in pytest. To be used where the values are variants of one promise.
    """
    result = []
    for number, value in enumerate(values):
        if not hasattr(value, "marks"):
            value = pytest.param(*value) if isinstance(value, tuple) else pytest.param(value)
        night = [pytest.mark.nightly] if number % every else []
        result.append(pytest.param(*value.values, marks=[*value.marks, *night], id=value.id))
    return result


def examples(gate: int, night: int) -> int:
    """Return how many random examples a law draws, where one costs much; the law is marked ``law``."""
    return night if PROFILE == "nightly" else gate
