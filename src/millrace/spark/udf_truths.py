"""What Spark makes of the results of its own functions that are declared to return booleans.

Such a function need not return booleans: Spark converts its results, or fails, by rules that differ with the
kind of function. Functions made by ``udf``, ``pandas_udf`` and ``arrow_udf`` stay as they are when they
become predicates, so here are the same conversions by the same libraries (those of version 4.3; they are in
``pyspark/worker.py``, ``pyspark/sql/conversion.py`` and, for pickled results, the JVM's EvaluatePython).

Spark converts what came back for a batch of rows as a whole, and fails for some that mix types, such as
``True`` and ``1``. Predicates are called for those rows of a batch that others have left, and what a call
returned is converted as a whole. So mixtures fail where they are seen. A value's truth is the same in any
batch that does not fail.

A boolean null is not true, whatever it came from.
"""

from __future__ import annotations

import datetime as dt
import decimal
import uuid
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from millrace.errors import PredicateError
from millrace.predicates import KEPT, REJECTED
from millrace.predicates.truth import Truth, array_truth, strict

_SCALARS = frozenset(
    {
        *(type(None), bool, int, float, complex, str, bytes, bytearray, decimal.Decimal, uuid.UUID),
        *(dt.date, dt.datetime, dt.time, dt.timedelta),
    }
)
_COLLECTIONS = frozenset({list, tuple, set, frozenset})


def of_pickled(results: Any, expected: int, name: str) -> Truth:
    """Return what Spark makes of a ``udf`` with ``useArrow=False``: True is kept, anything else is null.

    The results travel to the JVM pickled. There, objects that take arguments to be made again are an error:
    numpy's numbers, Rows, most instances of users' classes. Here, all but Python's own types are, also those
    few that would be null there.
    """
    if set(map(type, results)) <= {bool}:
        return strict(results, expected, name)
    for result in results:
        if not _travels(result):
            raise _refused(name, f"a {type(result).__name__}, which does not pickle as Spark needs it", None)
    return np.fromiter((KEPT if result is True else REJECTED for result in results), np.int8, expected)


def of_rows(results: Any, expected: int, name: str) -> Truth:
    """Return what Spark makes of a ``udf`` by Arrow: booleans, or numbers or texts as Arrow casts them."""
    if set(map(type, results)) <= {bool}:
        return strict(results, expected, name)
    return array_truth(_converted(lambda: _of_rows(results), name))


def of_series(result: Any, expected: int, name: str) -> Truth:
    """Return what Spark makes of the Series that a ``pandas_udf`` returned."""
    _check_length(result, expected, name)
    if getattr(result, "dtype", None) == np.bool_ and hasattr(result, "array"):
        return np.asarray(result).astype(np.int8)
    return array_truth(_converted(lambda: _of_series(result), name))


def of_next_series(result: Any, expected: int, name: str) -> Truth:
    """Return what Spark makes of a Series that a ``pandas_udf`` over an iterator yielded."""
    import pandas as pd

    if not isinstance(result, pd.Series):
        raise _refused(name, f"a {type(result).__name__}, expected an iterator of Series", None)
    return of_series(result, expected, name)


def of_array(result: Any, expected: int, name: str) -> Truth:
    """Return what Spark makes of the array that an ``arrow_udf`` returned."""
    booleans = _converted(lambda: _of_array(result), name)
    _check_length(booleans, expected, name)
    return array_truth(booleans)


def of_next_array(result: Any, expected: int, name: str) -> Truth:
    """Return what Spark makes of an array that an ``arrow_udf`` over an iterator yielded."""
    if not isinstance(result, pa.Array):
        raise _refused(name, f"a {type(result).__name__}, expected an iterator of Arrow arrays", None)
    return of_array(result, expected, name)


def _of_rows(results: list[Any]) -> pa.Array:
    try:
        return pa.array(results, pa.bool_())
    except pa.ArrowInvalid:
        return pa.array(results).cast(pa.bool_(), safe=False)


def _of_series(series: Any) -> pa.Array:
    import pandas as pd

    if isinstance(series.dtype, pd.CategoricalDtype):
        series = series.astype(series.dtype.categories.dtype)
    mask = None if hasattr(series.array, "__arrow_array__") else series.isnull()
    try:
        return pa.Array.from_pandas(series, mask=mask, type=pa.bool_(), safe=False)
    except pa.ArrowInvalid:
        return pa.Array.from_pandas(series, mask=mask).cast(pa.bool_(), safe=False)


def _of_array(result: Any) -> pa.Array:
    (column,) = pa.RecordBatch.from_arrays([result], ["result"]).columns
    return column if pa.types.is_boolean(column.type) else column.cast(pa.bool_())


def _converted(convert: Callable[[], pa.Array], name: str) -> pa.Array:
    try:
        return convert()
    except Exception as error:
        raise _refused(name, "what cannot be converted to booleans", error) from error


def _refused(name: str, what: str, error: Exception | None) -> PredicateError:
    reason = "" if error is None else f" ({type(error).__name__}: {error})"
    return PredicateError(
        f"predicate {name!r} returned {what}{reason}; Spark would fail as well. Return True, False or None"
    )


def _check_length(result: Any, expected: int, name: str) -> None:
    if not hasattr(result, "__len__"):
        raise _refused(name, f"a {type(result).__name__} for {expected} rows, expected one value a row", None)
    if len(result) != expected:
        raise _refused(name, f"{len(result)} values for {expected} rows, expected one a row", None)


def _travels(value: Any) -> bool:
    """Return whether the JVM can make something of the pickled value."""
    kind = type(value)
    if kind in _SCALARS:
        return True
    if kind is dict:
        return all(map(_travels, (*value.keys(), *value.values())))
    return kind in _COLLECTIONS and all(map(_travels, value))
