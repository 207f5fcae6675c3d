"""Arguments of predicates, as Spark itself would pass them to a Python function.

Row functions get Python objects: structs as Rows, maps as dictionaries, timestamps as naive local
times. Functions over pandas get what ``pandas_udf`` gets, functions over Arrow arrays the arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import types as t
from pyspark.sql import Row, SparkSession
from pyspark.sql.types import VariantVal

from millrace.spark.session import SessionConf

Convert = Callable[[Any], Any]


def spark_values(spark: SparkSession) -> SparkValues:
    """Return the conversions under the session's time zone."""
    return SparkValues(SessionConf(spark).get("spark.sql.session.timeZone"))


@dataclass(frozen=True)
class SparkValues:
    """Spark's conversions of arguments.

    Attributes:
        timezone: The session's time zone, in which pandas and Arrow functions see timestamps.
    """

    timezone: str

    def objects(self, columns: Sequence[pa.Array]) -> list[list[Any]]:
        """Return the values of each column as the objects that ``udf`` passes."""
        return [_objects(column) for column in columns]

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
        convert = self._element(kind)
        if convert is None:
            return series
        return pd.Series([None if value is None else convert(value) for value in series], dtype=object)

    def _element(self, kind: pa.DataType) -> Convert | None:
        """Return what turns a nested value of pandas into Spark's, or None where they are the same."""
        import pandas as pd

        if t.is_timestamp(kind):
            return pd.Timestamp if kind.tz is None else self._moment
        if _is_variant(kind):
            return _variant
        if t.is_struct(kind):
            return _dictionary_of({f.name: self._element(f.type) for f in kind})
        if t.is_map(kind):
            return _dictionaries(self._element(kind.key_type), self._element(kind.item_type))
        if t.is_list(kind):
            inner = self._element(kind.value_type)
            return None if inner is None else _arrays(inner)
        return None

    def _moment(self, value: Any) -> Any:
        import pandas as pd

        moment = pd.Timestamp(value)
        moment = moment.tz_localize("UTC") if moment.tzinfo is None else moment
        return moment.tz_convert(self.timezone).tz_localize(None)


def _objects(column: pa.Array) -> list[Any]:
    """Return the column's values as Python objects."""
    values: list[Any] = column.to_pylist()
    convert = _converter(column.type)
    if convert is None:
        return values
    return [None if value is None else convert(value) for value in values]


def _is_variant(kind: pa.DataType) -> bool:
    """Tell whether a struct is how Spark ships a VARIANT."""
    if not t.is_struct(kind) or [f.name for f in kind] != ["value", "metadata"]:
        return False
    return any((f.metadata or {}).get(b"variant") == b"true" for f in kind)


def _converter(kind: pa.DataType) -> Convert | None:
    """Return what turns Arrow's Python object into Spark's, or None where they are the same."""
    if t.is_timestamp(kind) and kind.tz is not None:
        return _local
    if _is_variant(kind):
        return _variant
    if t.is_struct(kind):
        return _rows_of(kind)
    if t.is_map(kind):
        return _dictionaries(_converter(kind.key_type), _converter(kind.item_type))
    if t.is_list(kind) or t.is_large_list(kind):
        inner = _converter(kind.value_type)
        return None if inner is None else _lists(inner)
    return None


def _local(value: Any) -> Any:
    return value.astimezone().replace(tzinfo=None)


def _variant(value: Any) -> VariantVal:
    return VariantVal(value["value"], value["metadata"])


def _rows_of(kind: pa.DataType) -> Convert:
    names = [f.name for f in kind]
    parts = [_converter(f.type) for f in kind]
    make = Row(*names)

    def convert(value: Any) -> Row:
        return make(
            *(
                each if part is None or each is None else part(each)
                for each, part in zip(value.values(), parts, strict=True)
            )
        )

    return convert


def _dictionaries(key: Convert | None, item: Convert | None) -> Convert:
    def convert(pairs: Any) -> dict[Any, Any]:
        return {k if key is None else key(k): v if item is None or v is None else item(v) for k, v in pairs}

    return convert


def _lists(inner: Convert) -> Convert:
    def convert(values: Any) -> list[Any]:
        return [None if value is None else inner(value) for value in values]

    return convert


def _arrays(inner: Convert) -> Convert:
    def convert(values: Any) -> Any:
        return np.array([None if value is None else inner(value) for value in values])

    return convert


def _dictionary_of(parts: dict[str, Convert | None]) -> Convert:
    def convert(value: Any) -> dict[str, Any]:
        return {
            name: each if part is None or each is None else part(each)
            for (name, part), each in zip(parts.items(), value.values(), strict=True)
        }

    return convert
