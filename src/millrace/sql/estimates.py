"""How large a DataFrame is, as Spark estimates without running anything."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import types as t

from millrace.parquet.types import fixed_width
from millrace.spark.plans import SIZE_UNITS, explained
from millrace.sql.coercion import field_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_SIZE = re.compile(r"sizeInBytes=([\d.E+]+) (\w+)(?:, rowCount=([\d.E+]+))?")
_UNITS = {unit: 1024**i for i, unit in enumerate(SIZE_UNITS)}
# Where Spark knows nothing it takes 8 EiB, or what is left of these after a projection or a filter.
_UNKNOWN_BYTES = 1 << 50


def estimate(frame: DataFrame) -> tuple[int | None, int | None]:
    """Return Spark's own estimate of a DataFrame's rows and bytes, None where it has none."""
    try:
        plan = explained(frame, "COST")
    except PySparkException:
        return None, None
    match = _SIZE.search(plan)
    if match is None:
        return None, None
    size = int(float(match[1]) * _UNITS.get(match[2], 1))
    if size > _UNKNOWN_BYTES:
        return None, None
    if match[3] is not None:
        return int(float(match[3])), size
    return max(1, size // (8 + sum(default_widths(frame.schema)))), size


def default_widths(schema: t.StructType) -> Iterable[int]:
    """Yield what Spark takes a value of each column to need, in bytes."""
    for column in map(field_of, schema.fields):
        nested = column.arrow is None or pa.types.is_nested(column.arrow)
        yield 100 if nested else fixed_width(column.arrow) or 20
