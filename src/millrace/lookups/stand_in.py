"""What stands for a lookup table while Spark analyses a query, and must never be read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from millrace.errors import ExecutionError


@dataclass(frozen=True)
class Unreadable:
    """A function for Spark's tasks that fails: a lookup table has no rows that Spark could read.

    Were it a DataFrame without rows, a query that read it by mistake would give wrong rows.
    """

    name: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Fail.

        Raises:
            ExecutionError: Always.
        """
        raise ExecutionError(
            f"lookup table {self.name!r} was read by Spark itself, which has no rows of it: give it a scan, "
            "or report this query as an error of Millrace"
        )
