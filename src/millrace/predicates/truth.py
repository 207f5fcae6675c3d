"""Truth values that users' functions return."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from millrace.errors import PredicateError
from millrace.predicates.outcome import KEPT, REJECTED

_TRUTH_TYPES = frozenset({bool, type(None), np.bool_})
_LONGEST_SHOWN = 80


def truth_of(value: Any, name: str) -> int:
    """Return ``KEPT`` for true, ``REJECTED`` for false and for None.

    Args:
        value: What the function returned for one row.
        name: The predicate, for the message.

    Raises:
        PredicateError: It is not a Python or numpy boolean, nor None.
    """
    if type(value) not in _TRUTH_TYPES:
        shown = repr(value)
        shown = shown if len(shown) <= _LONGEST_SHOWN else shown[:_LONGEST_SHOWN] + "…"
        raise PredicateError(
            f"predicate {name!r} returned {shown} of type {type(value).__name__}: "
            "expected True, False or None"
        )
    return KEPT if value else REJECTED


def check_sized(result: Any, expected: int, name: str) -> None:
    """Check that a function that was called for several rows returned several values.

    Raises:
        PredicateError: It returned a single one.
    """
    if not hasattr(result, "__len__") or isinstance(result, str | bytes | dict):
        raise PredicateError(
            f"predicate {name!r} returned a {type(result).__name__} for a batch of {expected} rows: "
            "expected as many truth values"
        )


def truths(values: Sequence[Any], expected: int, name: str) -> np.ndarray[Any, np.dtype[np.int8]]:
    """Return the truth of every row, ``int8`` of shape ``(expected,)``.

    Args:
        values: What the function returned, one value a row.
        expected: How many rows it was given.
        name: The predicate, for the message.

    Raises:
        PredicateError: There are too many or too few, or one is no truth value.
    """
    if len(values) != expected:
        raise PredicateError(
            f"predicate {name!r} returned {len(values)} truth values for {expected} rows: expected one a row"
        )
    types = set(map(type, values))
    if types <= {bool}:
        return np.frombuffer(bytearray(values), np.int8)  # a boolean is the number 0 or 1
    if types <= _TRUTH_TYPES:
        return np.fromiter(map(bool, values), np.int8, expected)
    return np.fromiter((truth_of(value, name) for value in values), np.int8, expected)
