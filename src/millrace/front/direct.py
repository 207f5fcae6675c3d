"""Results as they come, from the block itself where Spark does nothing above it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from millrace.errors import OptionError, UnsupportedType
from millrace.options import Options
from millrace.spark.streaming import sent, stream_of
from millrace.spark.types import arrow_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from millrace.front.context import Taken
    from millrace.front.prepared import Query

_NAME = r"(?:`[^`,]+`|\w+)"
_ITEM = re.compile(rf"(?:__mr\d+\.)?({_NAME})(?:\s+as\s+{_NAME})?", re.IGNORECASE)
_WHOLE = re.compile(
    r"\s*select\s+(?P<items>.*?)\s+from\s+\{b\d+\} AS (?P<alias>__mr\d+)\s*;?\s*", re.IGNORECASE | re.DOTALL
)


@dataclass(frozen=True)
class Direct:
    """A result that is nothing but columns of a block.

    Attributes:
        taken: The block.
        columns: Which of its columns, in the result's order.
    """

    taken: Taken
    columns: tuple[str, ...]


def direct_of(template: str, taken: Sequence[Taken], frame: DataFrame) -> Direct | None:
    """Return how a rewritten query is nothing but columns of its only block, None if it is more."""
    whole = _WHOLE.fullmatch(template)
    if whole is None or len(taken) != 1 or taken[0].block.join.count_only:
        return None
    schema = taken[0].block.join.output_schema
    names = {name.lower(): name for name in schema.names}
    columns = []
    for item in whole["items"].split(","):
        found = _ITEM.fullmatch(item.strip())
        name = names.get(found[1].strip("`").lower()) if found is not None else None
        if name is None:
            return None
        columns.append(name)
    try:
        types = arrow_schema(frame.schema).types
    except UnsupportedType:
        return None
    return Direct(taken[0], tuple(columns)) if types == [schema.field(c).type for c in columns] else None


def stream(query: Query, batch_size: int | None) -> Iterator[pa.RecordBatch]:
    """Run a query and return its rows as they come; see :meth:`Query.stream_results`."""
    _check(batch_size)
    if query.direct is None:
        return frame_stream(query.df, query.options, batch_size)
    schema = arrow_schema(query.df.schema)
    columns = query.direct.columns
    batches = query.direct.taken.run.stream()
    return _sized(_renamed(batches, columns, schema), batch_size)


def frame_stream(
    frame: DataFrame, options: Options | None = None, batch_size: int | None = None
) -> Iterator[pa.RecordBatch]:
    """Run any DataFrame and return its rows as they come.

    Raises:
        OptionError: ``batch_size`` is out of range.
        UnsupportedType: A column has a type that cannot be sent.
    """
    _check(batch_size)
    schema = arrow_schema(frame.schema)
    names = [f"c{place}" for place in range(len(schema))]
    # Columns may share a name, or have one that Spark's Arrow functions stumble over.
    plain = pa.schema([pa.field(name, f.type) for name, f in zip(names, schema, strict=True)])
    batches = stream_of(frame.sparkSession, options or Options(), plain, sent(frame.toDF(*names), plain))
    return _sized(_renamed(batches, tuple(names), schema), batch_size)


def _check(batch_size: int | None) -> None:
    if batch_size is not None and (type(batch_size) is not int or batch_size < 1):
        raise OptionError(f"batch_size is {batch_size!r}: expected a whole number above 0, or None")


def _renamed(
    batches: Iterator[pa.RecordBatch], columns: Sequence[str], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    try:
        for batch in batches:
            yield pa.RecordBatch.from_arrays([batch.column(name) for name in columns], schema=schema)
    finally:
        _close(batches)


def _sized(batches: Iterator[pa.RecordBatch], size: int | None) -> Iterator[pa.RecordBatch]:
    try:
        for batch in batches:
            step = size or max(1, batch.num_rows)
            for low in range(0, batch.num_rows, step):
                yield batch.slice(low, step)
    finally:
        _close(batches)


def _close(batches: Iterator[pa.RecordBatch]) -> None:
    """Cancel the job behind an iterator, if it still runs."""
    close = getattr(batches, "close", None)
    if close is not None:
        close()
