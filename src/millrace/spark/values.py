"""What Python functions get from Spark and what it makes of their results, for predicates that an eddy calls.

**Arguments.** Row functions get Python objects: structs as Rows, maps as dictionaries, timestamps as naive
local times. Functions over pandas get what ``pandas_udf`` gets, functions over Arrow arrays the arrays.

**Results.** A function that is declared to return booleans need not do so: Spark converts its results, or
fails, by rules that differ with the kind of function. Functions made by ``udf``, ``pandas_udf`` and
``arrow_udf`` stay as they are when they become predicates, so here are the same conversions by the same
libraries (those of version 4.3; they are in ``pyspark/worker.py``, ``pyspark/sql/conversion.py`` and, for
pickled results, the JVM's EvaluatePython).

Spark converts what came back for a batch of rows as a whole, and fails for some that mix types, such as
``True`` and ``1``. Predicates are called for those rows of a batch that others have left, and what a call
returned is converted as a whole. So mixtures fail where they are seen. A value's truth is the same in any
batch that does not fail. A boolean null is not true, whatever it came from.
"""

from __future__ import annotations

import datetime as dt
import decimal
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import types as t
from pyspark.sql import Row, SparkSession
from pyspark.sql.types import VariantVal

from millrace.errors import PredicateError
from millrace.predicates import KEPT, REJECTED, Values
from millrace.predicates.truth import Truth, array_truth, strict
from millrace.spark.session import SessionConf

Convert = Callable[[Any], Any]

_SCALARS = frozenset(
    {
        *(type(None), bool, int, float, complex, str, bytes, bytearray, decimal.Decimal, uuid.UUID),
        *(dt.date, dt.datetime, dt.time, dt.timedelta),
    }
)
_COLLECTIONS = frozenset({list, tuple, set, frozenset})

# Arguments


def spark_values(spark: SparkSession) -> SparkValues:
    """Return the conversions under the session's time zone."""
    return SparkValues(SessionConf(spark).get("spark.sql.session.timeZone"))


@dataclass(frozen=True)
class SparkValues(Values):
    """Spark's conversions of arguments, timestamps in the session's zone for pandas and Arrow functions."""

    timezone: str

    def objects(self, columns: Sequence[pa.Array]) -> list[list[Any]]:
        """Return the values of each column as the objects that ``udf`` passes."""
        objects = []
        for column in columns:
            values, convert = column.to_pylist(), _converter(column.type, _local_time, Row, list)
            if convert is not None:
                values = [None if value is None else convert(value) for value in values]
            objects.append(values)
        return objects

    def series(self, columns: Sequence[pa.Array]) -> list[Any]:
        """Return the Series (a DataFrame for a struct) that ``pandas_udf`` passes."""
        return [self._series(column) for column in columns]

    def arrays(self, columns: Sequence[pa.Array]) -> list[pa.Array]:
        """Return the arrays that ``arrow_udf`` passes: timestamps carry the session's time zone."""
        zoned = pa.timestamp("us", tz=self.timezone)
        return [
            column.cast(zoned) if t.is_timestamp(column.type) and column.type.tz is not None else column
            for column in columns
        ]

    def _series(self, column: pa.Array, *, field: bool = False) -> Any:
        """Return a Series, or a DataFrame for a struct; ``field`` is for a column of such a DataFrame."""
        import pandas as pd  # here and below, for other kinds of predicates do without

        kind = column.type
        if t.is_struct(kind) and not field and not _is_variant(kind):
            parts = zip(kind, column.flatten(), strict=True)
            return pd.DataFrame({f.name: self._series(part, field=True) for f, part in parts})
        if t.is_timestamp(kind):
            series = column.cast(pa.timestamp("ns", tz=kind.tz), safe=False).to_pandas()
            return series if kind.tz is None else series.dt.tz_convert(self.timezone).dt.tz_localize(None)
        if field and t.is_integer(kind) and column.null_count:
            return column.to_pandas(integer_object_nulls=True).astype(f"Int{kind.bit_width}")
        if not t.is_nested(kind):
            return column.to_pandas(date_as_object=True, coerce_temporal_nanoseconds=True)
        series = column.to_pandas(date_as_object=True, integer_object_nulls=True)
        convert = _converter(kind, self._timestamp, _dictionary_maker, np.array)
        if convert is None:
            return series
        return pd.Series([None if value is None else convert(value) for value in series], dtype=object)

    def _timestamp(self, kind: pa.DataType) -> Convert:
        import pandas as pd

        def convert(value: Any) -> Any:
            moment = pd.Timestamp(value)
            moment = moment.tz_localize("UTC") if moment.tzinfo is None else moment
            return moment.tz_convert(self.timezone).tz_localize(None)

        return pd.Timestamp if kind.tz is None else convert


def _is_variant(kind: pa.DataType) -> bool:
    """Tell whether a struct is how Spark ships a VARIANT."""
    if not t.is_struct(kind) or [f.name for f in kind] != ["value", "metadata"]:
        return False
    return any((f.metadata or {}).get(b"variant") == b"true" for f in kind)


def _converter(
    kind: pa.DataType,
    timestamp: Callable[[pa.DataType], Convert | None],
    struct: Callable[..., Callable[..., Any]],
    sequence: Callable[[list[Any]], Any],
) -> Convert | None:
    """Return what turns a value of Arrow's into Spark's, or None where they are the same.

    Timestamps, structs and arrays are made by what is given for them: of a type, of names, of values.
    """

    def part_of(kind: pa.DataType) -> Convert | None:
        return _converter(kind, timestamp, struct, sequence)

    if t.is_timestamp(kind):
        return timestamp(kind)
    if _is_variant(kind):
        return lambda value: VariantVal(value["value"], value["metadata"])
    if t.is_struct(kind):
        make, parts = struct(*(f.name for f in kind)), [part_of(f.type) for f in kind]
        return lambda value: make(
            *(
                each if part is None or each is None else part(each)
                for each, part in zip(value.values(), parts, strict=True)
            )
        )
    if t.is_map(kind):
        key, item = part_of(kind.key_type), part_of(kind.item_type)
        return lambda pairs: {
            k if key is None else key(k): v if item is None or v is None else item(v) for k, v in pairs
        }
    if t.is_list(kind) or t.is_large_list(kind):
        inner = part_of(kind.value_type)
        if inner is not None:
            return lambda values: sequence([None if value is None else inner(value) for value in values])
    return None


def _local_time(kind: pa.DataType) -> Convert | None:
    return None if kind.tz is None else lambda value: value.astimezone().replace(tzinfo=None)


def _dictionary_maker(*names: str) -> Callable[..., Any]:
    return lambda *values: dict(zip(names, values, strict=True))


# Results


def truth_of_pickled(results: Any, expected: int, name: str) -> Truth:
    """Return what Spark makes of a ``udf`` with ``useArrow=False``: True is kept, anything else is null.

    The results travel to the JVM pickled. There, objects that take arguments to be made again are an error:
    numpy's numbers, Rows, most instances of users' classes. Here, all but Python's own types are, also those
    few that would be null there.
    """
    if set(map(type, results)) <= {bool}:
        return strict(results, expected, name)
    for result in results:
        if not _travels(result):
            raise _error(name, f"a {type(result).__name__}, which does not pickle as Spark needs it", None)
    return np.fromiter((KEPT if result is True else REJECTED for result in results), np.int8, expected)


def truth_of_rows(results: Any, expected: int, name: str) -> Truth:
    """Return what Spark makes of a ``udf`` by Arrow: booleans, or numbers or texts as Arrow casts them."""
    if set(map(type, results)) <= {bool}:
        return strict(results, expected, name)
    return array_truth(_convert(_rows_as_booleans, results, name))


def truth_of_series(result: Any, expected: int, name: str) -> Truth:
    """Return what Spark makes of the Series that a ``pandas_udf`` returned."""
    _check_length(result, expected, name)
    if getattr(result, "dtype", None) == np.bool_ and hasattr(result, "array"):
        return np.asarray(result).astype(np.int8)
    return array_truth(_convert(_series_as_booleans, result, name))


def truth_of_next_series(result: Any, expected: int, name: str) -> Truth:
    """Return what Spark makes of a Series that a ``pandas_udf`` over an iterator yielded."""
    import pandas as pd

    if not isinstance(result, pd.Series):
        raise _error(name, f"a {type(result).__name__}, expected an iterator of Series", None)
    return truth_of_series(result, expected, name)


def truth_of_array(result: Any, expected: int, name: str) -> Truth:
    """Return what Spark makes of the array that an ``arrow_udf`` returned."""
    booleans = _convert(_array_as_booleans, result, name)
    _check_length(booleans, expected, name)
    return array_truth(booleans)


def truth_of_next_array(result: Any, expected: int, name: str) -> Truth:
    """Return what Spark makes of an array that an ``arrow_udf`` over an iterator yielded."""
    if not isinstance(result, pa.Array):
        raise _error(name, f"a {type(result).__name__}, expected an iterator of Arrow arrays", None)
    return truth_of_array(result, expected, name)


def _rows_as_booleans(results: list[Any]) -> pa.Array:
    try:
        return pa.array(results, pa.bool_())
    except pa.ArrowInvalid:
        return pa.array(results).cast(pa.bool_(), safe=False)


def _series_as_booleans(series: Any) -> pa.Array:
    import pandas as pd

    if isinstance(series.dtype, pd.CategoricalDtype):
        series = series.astype(series.dtype.categories.dtype)
    mask = None if hasattr(series.array, "__arrow_array__") else series.isnull()
    try:
        return pa.Array.from_pandas(series, mask=mask, type=pa.bool_(), safe=False)
    except pa.ArrowInvalid:
        return pa.Array.from_pandas(series, mask=mask).cast(pa.bool_(), safe=False)


def _array_as_booleans(result: Any) -> pa.Array:
    (column,) = pa.RecordBatch.from_arrays([result], ["result"]).columns
    return column if pa.types.is_boolean(column.type) else column.cast(pa.bool_())


def _convert(convert: Callable[[Any], pa.Array], results: Any, name: str) -> pa.Array:
    try:
        return convert(results)
    except Exception as error:
        raise _error(name, "what cannot be converted to booleans", error) from error


def _error(name: str, what: str, error: Exception | None) -> PredicateError:
    reason = "" if error is None else f" ({type(error).__name__}: {error})"
    return PredicateError(
        f"predicate {name!r} returned {what}{reason}; Spark would fail as well. Return True, False or None"
    )


def _check_length(result: Any, expected: int, name: str) -> None:
    if not hasattr(result, "__len__"):
        raise _error(name, f"a {type(result).__name__} for {expected} rows, expected one value a row", None)
    if len(result) != expected:
        raise _error(name, f"{len(result)} values for {expected} rows, expected one a row", None)


def _travels(value: Any) -> bool:
    """Return whether the JVM can make something of the pickled value."""
    kind = type(value)
    if kind in _SCALARS:
        return True
    if kind is dict:
        return all(map(_travels, (*value.keys(), *value.values())))
    return kind in _COLLECTIONS and all(map(_travels, value))
