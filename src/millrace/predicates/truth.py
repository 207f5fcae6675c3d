"""Truth values that users' functions return.

A function that was written for Millrace has to return truth values; what is none is an error rather than
taken for one. Functions that were made for something else may have rules of their own (:data:`Truths`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace.errors import PredicateError
from millrace.predicates.calls import KEPT, REJECTED

Truth = np.ndarray[Any, np.dtype[np.int8]]
"""``KEPT`` or ``REJECTED`` for each row."""

Truths = Callable[[Any, int, str], Truth]
"""Returns the truth of each row from what a function returned, the number of rows that it was called for, and
the predicate's name for errors. Raises PredicateError for what says no truth."""

_TRUTH_TYPES = frozenset({bool, type(None), np.bool_})
_LONGEST_SHOWN = 80


def truth_of(value: Any, name: str) -> int:
    """Return ``KEPT`` for true, ``REJECTED`` for false and for None, as a function returned it for one row.

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


def strict(result: Any, expected: int, name: str) -> Truth:
    """Return the truth of every row from a list, a pandas Series, or a numpy or Arrow array of truth values.

    Raises:
        PredicateError: There are too many or too few, or one is no truth value.
    """
    if type(result) is list:
        return truths(result, expected, name)
    if isinstance(result, pa.ChunkedArray):
        result = result.combine_chunks()
    if isinstance(result, pa.Array):
        if not pa.types.is_boolean(result.type) and not pa.types.is_null(result.type):
            raise PredicateError(f"predicate {name!r} returned an array of {result.type}, expected booleans")
        if len(result) == expected:
            return array_truth(result.cast(pa.bool_()))
    check_sized(result, expected, name)
    if getattr(result, "dtype", None) == np.bool_ and len(result) == expected:
        return np.asarray(result).astype(np.int8)
    return truths(_values(result), expected, name)


def array_truth(booleans: pa.Array) -> Truth:
    """Return the truth of an Arrow array of booleans; null counts as rejected."""
    kept = pc.fill_null(booleans, False).to_numpy(zero_copy_only=False)
    return np.where(kept, KEPT, REJECTED).astype(np.int8)


def truths(values: Sequence[Any], expected: int, name: str) -> Truth:
    """Return the truth of every row, of one value for each.

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


def _values(result: Any) -> list[Any]:
    """Return the truth values of a Series, array or list, with missing ones as None."""
    import pandas as pd

    if isinstance(result, pd.Series):
        return [None if missing else value for value, missing in zip(result, result.isna(), strict=True)]
    return list(result)
