"""A block with its inputs: what the SQL front hands to Spark execution.

``Block.join`` is what the eddies run. ``Block.inputs`` says, for each relation, where its tuples
come from: Parquet files that the tasks read themselves, or a Spark DataFrame.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from millrace.expressions import Predicate
from millrace.spec import JoinSpec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from millrace.sources.parquet import ParquetTable


@dataclass(frozen=True)
class ParquetInput:
    """A direct scan: ``table`` lists files and row groups; ``filters`` are applied in the scan.

    ``columns`` are those that go on to the eddy (the relation's schema); columns that only the
    filters read are read in the scan and dropped there.
    """

    table: ParquetTable
    columns: tuple[str, ...]
    filters: tuple[Predicate, ...] = ()


@dataclass(frozen=True)
class FrameInput:
    """A Spark DataFrame that has exactly the relation's columns, its filters already applied.

    ``bytes`` is Spark's own estimate of its size in bytes, None when it is unknown.
    """

    frame: DataFrame = field(compare=False)
    bytes: int | None = None


@dataclass(frozen=True)
class Block:
    """One block of a query: the join and, per relation alias, its input."""

    name: str
    join: JoinSpec
    inputs: dict[str, ParquetInput | FrameInput] = field(compare=False)
