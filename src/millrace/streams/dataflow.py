"""The ends of a continuous join's dataflow: tuples become blocks for cells, and blocks become rows again.

Rows of several streams come as rows of one schema, so that one Python worker a task packs them all: each
Python stage of Spark's takes some 50 ms a task before its first row, which is most of what a small
micro-batch takes. Columns of the same type share a slot; the slots that a stream has no column for are null.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial, reduce
from itertools import pairwise

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, functions as sf
from pyspark.sql.types import DataType

from millrace.spark.exchange import BLOCK_SCHEMA, NOTHING, BlockWriter, Cut, HashPartitioner, block_rows
from millrace.spark.hypercube import Cube
from millrace.spark.types import normalise
from millrace.spark.worker import partition_number, worker_task
from millrace.streams.processor import CONTROL

Layout = tuple[pa.Schema, list[int]]
"""A stream's columns, and their numbers among those of the union, of which the first is the tag."""


def unite_streams(
    streams: Mapping[int, DataFrame], schemas: Mapping[int, pa.Schema]
) -> tuple[DataFrame, dict[int, Layout]]:
    """Return streams as one, and the layout of each, by tag; each column is in the next slot of its type.

    Schemas have the names and types that the columns are to have, by position.
    """
    slots: dict[tuple[DataType, int], str] = {}
    sides, own = [], {}
    for tag, frame in streams.items():
        seen: Counter[DataType] = Counter()
        own[tag] = list[str]()
        for field in frame.schema.fields:
            own[tag].append(slots.setdefault((field.dataType, seen[field.dataType]), f"slot_{len(slots)}"))
            seen[field.dataType] += 1
        sides.append(frame.toDF(*own[tag]).select(sf.lit(tag).alias("tag"), "*"))
    union = reduce(partial(DataFrame.unionByName, allowMissingColumns=True), sides)
    places = {name: place for place, name in enumerate(union.columns)}
    return union, {tag: (schemas[tag], [places[name] for name in own[tag]]) for tag in own}


@dataclass(frozen=True)
class Packer:
    """Deals the tuples of one partition of all streams to cells.

    Attributes:
        layouts: Where each stream's columns are, by the relation's number.
        keys: Spark's key of each cell, by the cell's number.
    """

    layouts: Mapping[int, Layout]
    cube: Cube
    block_bytes: int
    keys: tuple[int, ...]

    @worker_task
    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield blocks, and before them one for the key that watches over the checkpoint, and each cell."""
        # One task is enough to tell all cells that there is a micro-batch.
        others = self.keys if partition_number() == 0 else ()
        yield block_rows([(key, NOTHING, pa.py_buffer(b"")) for key in (CONTROL, *others)])
        writers = {
            number: BlockWriter(Cut(number, self.cube, self.block_bytes), HashPartitioner(0))
            for number in self.layouts
        }
        for batch in batches:
            tags = batch.column(0).to_numpy()
            for start, end in pairwise(np.flatnonzero(np.diff(tags, prepend=-1, append=-1)).tolist()):
                schema, columns = self.layouts[tag := int(tags[start])]
                rows = normalise(batch.slice(start, end - start).select(columns), schema)
                yield from map(self._set_keys, writers[tag].add(rows))
        for writer in writers.values():
            yield from map(self._set_keys, writer.finish())

    def _set_keys(self, blocks: pa.RecordBatch) -> pa.RecordBatch:
        """Return blocks with Spark's keys for the numbers of cells."""
        keys = np.array(self.keys, np.int32)[blocks.column("cell").to_numpy()]
        return pa.RecordBatch.from_arrays([pa.array(keys), *blocks.columns[1:]], schema=BLOCK_SCHEMA)


@dataclass(frozen=True)
class Unpacker:
    """Makes rows of the blocks that cells give out; the schema is of the result."""

    schema: pa.Schema

    @worker_task
    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for block in batch.column("block"):
                if block.is_valid:
                    yield pa.ipc.read_record_batch(block.as_buffer(), self.schema)
