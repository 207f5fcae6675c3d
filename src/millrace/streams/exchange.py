"""The ends of a continuous join's dataflow: tuples become blocks for cells, and blocks become rows again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from millrace.spark.exchange import BLOCK_SCHEMA, NOTHING, BlockWriter, Cut, HashPartitioner, block_rows
from millrace.spark.hypercube import Cube
from millrace.spark.worker import partition_number, worker_task
from millrace.streams.processor import CONTROL
from millrace.streams.tagged_union import Layout, untagged


@dataclass(frozen=True)
class Pack:
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
            for number, rows in untagged(batch, self.layouts):
                yield from map(self._keyed, writers[number].add(rows))
        for writer in writers.values():
            yield from map(self._keyed, writer.finish())

    def _keyed(self, blocks: pa.RecordBatch) -> pa.RecordBatch:
        """Return blocks with Spark's keys for the numbers of cells."""
        keys = np.array(self.keys, np.int32)[blocks.column("cell").to_numpy()]
        return pa.RecordBatch.from_arrays([pa.array(keys), *blocks.columns[1:]], schema=BLOCK_SCHEMA)


@dataclass(frozen=True)
class Unpack:
    """Makes rows of the blocks that cells give out; the schema is of the result."""

    schema: pa.Schema

    @worker_task
    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for block in batch.column("block"):
                if block.is_valid:
                    yield pa.ipc.read_record_batch(block.as_buffer(), self.schema)
