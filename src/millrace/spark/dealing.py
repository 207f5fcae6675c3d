"""Dealing the rows of a spread relation to coordinates, the same way however often a task runs.

Spark computes a map task again when its output is lost with an executor, while other tasks have read that
output already. Each attempt has to send each row to the same cell, or rows are doubled and lost.

*Scans* read row groups in the order that travels with their task, each row group in the order of its file,
and filters keep that order: a row has the same number in each attempt, and rows are dealt in turn.

*DataFrames* are another matter. A partition that comes out of a shuffle has the same rows in each attempt,
but in the order in which they were fetched. So a row's coordinate is a function of the row and of the number
of its partition, which are the same in each attempt, and of nothing else:

- It follows a hash of the row. Columns of nested types are left out, and so are floating-point numbers: their
  sum depends on the order of the addends, so that the same row may come back with another last digit. (A
  value that depends on nothing but the order, as from ``first``, is no more proof against a lost executor
  than it is with Spark's own ``repartition``.)
- It is shifted by the number of the partition, so that rows that hash alike are spread as evenly as
  partitions are: over all coordinates, if there are as many partitions.
- Rows without a column to hash all hash alike, and go where their partition goes, whatever their order.
- Rows without any column cannot be told apart: all that matters is how many go to each coordinate. They are
  dealt in turn, and ``n`` rows from the same start give the same numbers in any order and any batches.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import pyarrow as pa
from pyarrow import types as t

from millrace.engine.kernels import combine, hash_parts, mix
from millrace.engine.relations.keys import Array, codes, is_key_type

_NULL = 0x6E756C6C
_TWO = np.uint64(2)


class Partitioner(Protocol):
    """Says which coordinates the rows of one map task go to."""

    def __call__(self, batch: pa.RecordBatch) -> Array:
        """Return a number from 0 for each row of the task's next batch, shape ``(n,)``.

        A row's coordinate is its number's remainder by the number of coordinates.
        """


class RoundRobin:
    """Deals rows in turn, in the order in which they come.

    Args:
        start: Number of the first row; different tasks start at different places, so that small relations
            spread evenly too.
    """

    def __init__(self, start: int = 0) -> None:
        self._next = start

    def __call__(self, batch: pa.RecordBatch) -> Array:
        """Return the rows' numbers, ``int64``."""
        first, self._next = self._next, self._next + batch.num_rows
        return np.arange(first, self._next, dtype=np.int64)


class HashPartitioner:
    """Deals rows by what they contain, whatever their order.

    Args:
        partition: Number of the partition that the rows are of.
    """

    def __init__(self, partition: int) -> None:
        self._partition = partition
        self._counted = RoundRobin(partition)

    def __call__(self, batch: pa.RecordBatch) -> Array:
        """Return numbers that follow from the rows and the partition, ``int64``."""
        if not batch.num_columns:
            return self._counted(batch)
        hashed: Array | None = None
        for column in batch.columns:
            if _is_stable(column.type):
                own = _hashes(column)
                hashed = mix(own) if hashed is None else combine(hashed, own)
        if hashed is None:
            return np.full(batch.num_rows, self._partition, np.int64)
        # Positive, and small enough to add to.
        return (hashed.view(np.uint64) >> _TWO).view(np.int64) + self._partition


def _is_stable(kind: pa.DataType) -> bool:
    """Return whether values of this type can be hashed, and do not depend on the order of a sum."""
    return is_key_type(kind) and not t.is_floating(kind)


def _hashes(column: pa.Array) -> Array:
    """Return an ``int64`` for each value, the same for equal ones."""
    if t.is_string(column.type) or t.is_binary(column.type):
        _, offsets, data = column.buffers()
        places = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1]
        hashed = hash_parts(places, np.empty(0, np.uint8) if data is None else np.frombuffer(data, np.uint8))
        valid = None if column.null_count == 0 else column.is_valid().to_numpy(zero_copy_only=False)
    else:
        hashed, valid = codes(column, column.type)
    return hashed if valid is None else np.where(valid, hashed, _NULL)  # where a null is, anything may stand
