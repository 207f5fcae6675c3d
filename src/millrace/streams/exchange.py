"""The ends of a continuous join's dataflow: tuples become blocks for cells, and blocks become rows again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from millrace.spark.dealing import ByContent
from millrace.spark.exchange import BLOCK_SCHEMA, NOTHING, BlockWriter, Cut, block_rows
from millrace.spark.types import normalise
from millrace.streams.processor import CONTROL


@dataclass(frozen=True)
class Pack:
    """Deals the tuples of one partition of a stream to cells.

    Attributes:
        schema: Of the stream.
        cut: The cube, and the size of blocks.
        keys: Spark's key of each cell, by the cell's number.
    """

    schema: pa.Schema
    cut: Cut
    keys: tuple[int, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield blocks, and before them one for the key that watches over the checkpoint."""
        yield block_rows([(CONTROL, NOTHING, pa.py_buffer(b""))])
        writer = BlockWriter(self.cut, ByContent(0))
        for batch in batches:
            if batch.num_rows:
                yield from map(self._keyed, writer.add(normalise(batch, self.schema)))
        yield from map(self._keyed, writer.finish())

    def _keyed(self, blocks: pa.RecordBatch) -> pa.RecordBatch:
        """Return blocks with Spark's keys for the numbers of cells."""
        keys = np.array(self.keys, np.int32)[blocks.column("cell").to_numpy()]
        return pa.RecordBatch.from_arrays([pa.array(keys), *blocks.columns[1:]], schema=BLOCK_SCHEMA)


@dataclass(frozen=True)
class Unpack:
    """Makes rows of the blocks that cells give out.

    Attributes:
        schema: Of the result.
    """

    schema: pa.Schema

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows."""
        for batch in batches:
            for block in batch.column("block"):
                if block.is_valid:
                    yield pa.ipc.read_record_batch(block.as_buffer(), self.schema)
