"""What other processes do in the tests of results."""

from __future__ import annotations

from multiprocessing.connection import Connection

import numpy as np
import pyarrow as pa

from millrace.limits.registration import Address
from millrace.spark.results import ResultsSink

SCHEMA = pa.schema([("partition", pa.int64()), ("v", pa.float64())])


def batch_of(partition: int, order: int, size: int = 1000) -> pa.RecordBatch:
    """A partition's rows, in one of many orders: the same multiset, with many rows that are equal."""
    values = np.random.default_rng(order).permutation(np.arange(size) % 77 / 2)
    return pa.RecordBatch.from_arrays([pa.array(np.full(size, partition)), pa.array(values)], schema=SCHEMA)


def send_part(address: Address, stream: str, partition: int, rows: int, told: Connection) -> None:
    """Send some rows of a partition, say so, and do nothing more."""
    with ResultsSink(address, stream, partition, 0) as sink:
        sink.send(batch_of(partition, 1).slice(0, rows))
        told.send(rows)
        told.recv()
