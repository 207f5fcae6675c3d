"""Rows of several streams as rows of one schema, so that one Python worker a task packs them all.

Each Python stage of Spark's takes some 50 ms a task before its first row, which is most of what a small
micro-batch takes. Columns of the same type share a slot; the slots that a stream has no column for are null.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import reduce

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, functions as sf
from pyspark.sql.types import DataType

from millrace.spark.types import normalise

Slot = tuple[DataType, int]
"""The type, and a number among the slots of that type."""


@dataclass(frozen=True)
class Layout:
    """Where a stream's columns are in the rows of all streams.

    Attributes:
        schema: Of the stream.
        columns: The number of each column among those of the union; the first one is the tag.
    """

    schema: pa.Schema
    columns: tuple[int, ...]


def tagged_union(
    streams: Mapping[int, DataFrame], schemas: Mapping[int, pa.Schema]
) -> tuple[DataFrame, dict[int, Layout]]:
    """Return streams as one, and the layout of each, by tag.

    Schemas have the names and types that the columns are to have, by position.
    """
    slots = {tag: _slots(frame) for tag, frame in streams.items()}
    every = list(dict.fromkeys(slot for each in slots.values() for slot in each))
    sides = []
    for tag, frame in streams.items():
        named = dict(zip(slots[tag], frame.columns, strict=True))
        columns = [
            (sf.col(f"`{named[slot]}`") if slot in named else sf.lit(None).cast(slot[0])).alias(f"slot_{n}")
            for n, slot in enumerate(every)
        ]
        sides.append(frame.select(sf.lit(tag).alias("tag"), *columns))
    layouts = {
        tag: Layout(schemas[tag], tuple(1 + every.index(slot) for slot in each))
        for tag, each in slots.items()
    }
    return reduce(DataFrame.union, sides), layouts


def _slots(frame: DataFrame) -> list[Slot]:
    seen: Counter[DataType] = Counter()
    slots = []
    for field in frame.schema.fields:
        slots.append((field.dataType, seen[field.dataType]))
        seen[field.dataType] += 1
    return slots


def untagged(batch: pa.RecordBatch, layouts: Mapping[int, Layout]) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the rows of a union's batch with their tags, in order; layouts are by tag."""
    tags = batch.column(0).to_numpy()
    ends = [*(np.flatnonzero(np.diff(tags)) + 1).tolist(), len(tags)] if len(tags) else []
    start = 0
    for end in ends:
        layout, rows = layouts[int(tags[start])], batch.slice(start, end - start)
        yield int(tags[start]), normalise(rows.select(list(layout.columns)), layout.schema)
        start = end
