"""Keys of arguments: equal for equal values in any process, different for what a function can tell apart."""

from __future__ import annotations

import datetime as dt
import os
import subprocess
import sys
from decimal import Decimal
from pathlib import Path

import numpy as np
from hypothesis import given, settings, strategies as st

import millrace
from millrace.limits.chunk import digest

LAWS = settings(max_examples=50, deadline=None, derandomize=True)
plain = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.dates()
values = st.recursive(
    plain,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@LAWS
@given(st.lists(values, max_size=4), st.lists(values, max_size=4))
def test_keys_are_equal_exactly_for_equal_arguments(left, right):
    """What prints alike has the same key, and nothing else has."""
    assert digest(left) == digest(eval(repr(left), {"datetime": dt, "nan": np.nan, "inf": np.inf}))
    assert (digest(left) == digest(right)) == (repr(left) == repr(right))


def test_values_that_print_alike_have_other_keys():
    """A function can tell these apart, so they are different questions; so can it what a text leaves out."""
    alike = [1, 1.0, True, "1", b"1", Decimal(1), None, "None", [1], (1,), {1: 1}, -0.0, 0.0]
    assert len({digest([value]) for value in alike}) == len(alike)
    assert digest(["a", "b"]) != digest(["a, b"])
    one, other = np.zeros(5000), np.zeros(5000)
    other[2500] = 1
    assert digest([one]) == digest([one.copy()]) != digest([other])


def test_keys_are_the_same_in_another_process():
    """No memory address and no hash seed gets into a key."""
    expression = "digest([{'k': [1.5, None, 'ü']}, b'x', range(3)])"
    source = str(Path(millrace.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", f"from millrace.limits.chunk import digest; print({expression}.hex())"],
        env={**os.environ, "PYTHONPATH": source, "PYTHONHASHSEED": "77"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == digest([{"k": [1.5, None, "ü"]}, b"x", range(3)]).hex()
