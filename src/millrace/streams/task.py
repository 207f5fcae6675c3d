"""A continuous join as its tasks get it: frozen and picklable."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa

from millrace.engine.eddy.continuous import ContinuousRun
from millrace.engine.eddy.statistics import Lessons
from millrace.engine.plan.evaluation import compute
from millrace.engine.plan.expressions import Value, show
from millrace.engine.plan.spec import JoinSpec
from millrace.options import Options
from millrace.spark.hypercube import Axis
from millrace.spark.task_inputs import TaskInput, open_inputs, with_sizes

FORMAT = 6
"""Version of what a checkpoint holds."""


@dataclass(frozen=True)
class Stream:
    """A relation that never ends.

    Attributes:
        number: The relation's number.
        time: The column of its event times, which its watermark is on.
        keeps: Microseconds for which a tuple can meet tuples to come, beyond its event time.
        counted: The cells where its tuples are counted, for a tuple may go to several.
        computed: Columns that are computed of the others when tuples arrive; they neither travel nor are they
            in the log.
    """

    alias: str
    number: int
    time: str
    keeps: int
    counted: frozenset[int] = frozenset((0,))
    computed: tuple[tuple[str, Value], ...] = ()

    def expires(self, newest: int) -> int:
        """Return the watermark at which tuples up to an event time are of no use, both in microseconds."""
        return newest + max(0, self.keeps) + 1


@dataclass(frozen=True)
class ContinuousJoin:
    """A block over streams and tables.

    Attributes:
        name: Identifies this plan: what is in the memory of a process is of one plan.
        streams: Its streams, by the relation's number.
        tables: How its tables are read, by alias: every cell reads them whole, when it is made.
        cells: Number of cells that its tuples are dealt to.
        axes: How they are.
        preserved: The stream that the other one is LEFT joined to, by alias: its tuples are in the result
            without a match too. None for an inner join.
    """

    name: str
    join: JoinSpec
    streams: tuple[Stream, ...]
    tables: Mapping[str, TaskInput]
    options: Options
    cells: int
    axes: tuple[Axis, ...] = ()
    preserved: str | None = None

    @cached_property
    def by_number(self) -> dict[int, Stream]:
        """The streams by the relation's number."""
        return {stream.number: stream for stream in self.streams}

    @property
    def fingerprint(self) -> str:
        """What has to be the same for a checkpoint to be gone on with: all that state depends on.

        Policies, architectures and the size of batches are free, and so is how long tuples are kept, but for
        a LEFT join.
        """
        stored = {s.alias: self.schema_of(s) for s in self.streams}
        relations = [
            (r.alias, _describe_columns(stored.get(r.alias, r.schema)), r.distinct) for r in self.join.sources
        ]
        edges = sorted(
            (e.left.relation, e.left.column, e.right.relation, e.right.column, _describe_type(e.type))
            for e in self.join.equalities
        )
        axes = [(a.share, a.type and _describe_type(a.type), a.columns, a.nulls) for a in self.axes]
        times = [(s.alias, s.time) for s in self.streams]
        preserved: tuple[Any, ...] = ()
        if self.preserved is not None:  # by when a row has had no match it is known to be out
            keeps = [s.keeps for s in self.streams]
            preserved = (self.preserved, keeps, sorted(map(show, self.join.residuals)))
        text = json.dumps((relations, edges, times, self.cells, axes, *preserved))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def schema_of(self, stream: Stream) -> pa.Schema:
        """Return a stream's columns as they travel and are in the log."""
        computed = dict(stream.computed)
        return pa.schema([f for f in self.join.relations[stream.number].schema if f.name not in computed])

    def complete(self, stream: Stream, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return a stream's tuples, as they travelled, with the columns that are computed."""
        if not stream.computed:
            return rows
        arrays = dict(zip(rows.schema.names, rows.columns, strict=True))
        arrays |= {name: compute(value, arrays, rows.num_rows) for name, value in stream.computed}
        schema = self.join.relations[stream.number].schema
        return pa.RecordBatch.from_arrays([arrays[name] for name in schema.names], schema=schema)

    def run(self, lessons: str | None = None) -> ContinuousRun:
        """Return an eddy for a cell that has read the tables, and nothing of the streams.

        Lessons are what earlier eddies of the cell have learned.

        Raises:
            ReadError: A table cannot be read.
        """
        size = self.options.batch_size
        inputs = open_inputs(self.tables)
        tables = {alias: table.read(0, size) for alias, table in inputs.items()}
        streams = [stream.alias for stream in self.streams]
        join = with_sizes(self.join, inputs, 0)
        return ContinuousRun(join, streams, tables, self.options, warm_start=Lessons(lessons))


def _describe_columns(schema: pa.Schema) -> list[Any]:
    return [(field.name, _describe_type(field.type)) for field in schema]


def _describe_type(kind: pa.DataType) -> list[Any]:
    """Return a type as data: how pyarrow prints it may change with its version."""
    names = ("unit", "tz", "precision", "scale")
    inner = [kind.field(number) for number in range(kind.num_fields)]
    return [kind.id, [str(getattr(kind, name, "")) for name in names], _describe_columns(pa.schema(inner))]
