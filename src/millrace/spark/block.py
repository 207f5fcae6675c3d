"""A block with its inputs, which ``sql`` hands to Spark execution, and a block that is ready to run.

An input says where a relation's tuples come from: Parquet files that tasks read themselves, rows that Spark
reads, or a lookup table. Indexes of that are asked for the values that other relations have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from millrace.engine.aggregate import AggregateSpec
from millrace.engine.plan.expressions import Predicate, Value
from millrace.engine.plan.spec import JoinSpec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from millrace.lookups.source import Source
    from millrace.lookups.table import IndexSpec
    from millrace.parquet.tables import ParquetTable
    from millrace.spark.coordinator import Registered
    from millrace.spark.reports import Reports
    from millrace.spark.streaming import ReaderPreference


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
    """Rows that Spark reads: exactly the relation's columns in order, its filters already applied.

    ``source`` is in a plan the template of a query for them, under whatever names, or the rows themselves; in
    a block that is to run their DataFrame. Columns that are ``computed`` the rows lack: cells of a join of
    streams compute them of the others.
    """

    source: DataFrame | pa.Table | str
    bytes: int | None = None  # Spark's own estimate of their size, None when it is unknown
    why: str = ""  # why the tasks do not read their files themselves, if they have any
    computed: tuple[tuple[str, Value], ...] = ()
    where: str = ""  # the filters as text, for explanations
    filters: tuple[Predicate, ...] | None = None  # None where only Spark evaluates some of them

    @property
    def frame(self) -> DataFrame:
        assert not isinstance(self.source, str | pa.Table), "the block has to be built before"
        return self.source


@dataclass(frozen=True)
class LookupInput:
    """The access methods of a lookup table.

    With more than one of them the relation has all columns of the table, because equal rows from several
    are one; with a single index it has those that are needed, its bind columns among them.
    """

    indexes: tuple[IndexSpec, ...]  # those that the block's equalities can bind
    scan: ParquetInput | FrameInput | None = None  # all rows, its filters applied
    sources: tuple[Source, ...] = ()  # that return all rows, asynchronously
    filters: tuple[Predicate, ...] = ()  # of what indexes and sources return, by any column of the table


Input = ParquetInput | FrameInput | LookupInput


def scan_of(source: Input) -> ParquetInput | FrameInput | None:
    """Return what is read of a relation, None where it is only looked up."""
    return source.scan if isinstance(source, LookupInput) else source


@dataclass(frozen=True)
class Block:
    """One block of a query: the join and, per relation alias, its input.

    ``result`` are its columns with Spark's own types, nullability and metadata, None for those of ``join``.
    With ``aggregate`` the rows of the join are aggregated partially before they are handed on. ``stream`` is
    the relation that is a streaming DataFrame: the block runs in each micro-batch over what is new of it.
    """

    name: str
    join: JoinSpec
    inputs: dict[str, Input] = field(compare=False)
    result: StructType | None = None
    aggregate: AggregateSpec | None = None
    stream: str | None = None

    @property
    def schema(self) -> pa.Schema:
        """The columns that it hands on."""
        joined = self.join.output_schema
        return joined if self.aggregate is None else self.aggregate.schema(joined)


@dataclass(frozen=True)
class PreparedBlock:
    name: str  # identifies it, in Spark's plans too
    frame: DataFrame  # its result, with the columns of ``Block.schema``
    plan: str  # what will happen
    # Its result as it comes, without Spark in between, and what is wanted of it first.
    stream: Callable[[ReaderPreference | None], Iterator[pa.RecordBatch]]
    # Figures of runs of ``frame``; None where each streaming query has its own.
    reports: Reports | None = None
    registered: tuple[Registered, ...] = ()  # the limits of its predicates, and its lookups
    tasks: int | None = None  # how many report figures, at most; None where Spark alone knows
