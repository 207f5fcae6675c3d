"""What a DataFrame that Millrace returned is asked for: its rows as they come, its plan, its figures."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING

import pyarrow as pa

from millrace.errors import OptionError, UnsupportedType
from millrace.options import Options
from millrace.reports.planned import SPARKS_PLAN, Explanation
from millrace.reports.run_report import RunReport
from millrace.spark.frames import (
    handles_of,
    known_query,
    latest_run,
    own_handle,
    rows_of_action,
    running,
    why_left,
)
from millrace.spark.session import Mode, planned
from millrace.spark.streaming import refuse_endless, sender_of, stream_of
from millrace.spark.types import arrow_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from millrace.spark.block import Block
    from millrace.sql.plan import PlannedQuery

_ACTION = "to_batches"


def explain(df: DataFrame, mode: Mode = "simple") -> Explanation:
    """Return, as text (in notebooks by parts), what Millrace does for a DataFrame, and what Spark does.

    Args:
        df: One that Millrace returned, or one derived from it.
        mode: Of Spark's plan: ``"simple"`` is the physical one, ``"extended"`` all of them, ``"cost"`` with
            Spark's estimates.

    Raises:
        MillraceError: Millrace has no part in it, or the mode is another.
    """
    handles, why = handles_of(df), ""
    if own_handle(df) is None:
        df = latest_run(df)
        why = why_left(df)
    if len(handles) == 1 and not why:
        lines, df = handles[0].explain_lines(), handles[0].df
    else:
        lines = []
        for number, handle in enumerate(handles, 1):
            lines += [f"part {number} of {len(handles)}", *handle.explain_lines()]
    lines += ["what stands above is left to Spark", f"  {why}"] if why else []
    return Explanation("\n".join([*lines, SPARKS_PLAN, planned(df, mode)]))


def report(df: DataFrame) -> RunReport:
    """Return the figures of the latest run of a DataFrame that Millrace returned, or of one derived from it.

    Raises:
        MillraceError: Millrace has no part in it, it has not run yet, or the option ``report`` is off.
    """
    handles, df = handles_of(df), latest_run(df)
    if len(handles) == 1:
        return handles[0].report(df)
    return RunReport.of_parts([handle.report(df) for handle in handles])


def to_batches(df: DataFrame, batch_size: int | None = None) -> Iterator[pa.RecordBatch]:
    """Run any DataFrame and yield its rows as they come, while Spark's tasks still run.

    Their order is that in which they come. Closing the iterator, or Ctrl-C, cancels the job.

    Args:
        df: One that Millrace returned, or any other.
        batch_size: Rows in a batch, at most; None leaves batches as they come.

    Raises:
        MillraceError: ``batch_size`` is out of range, or a column's type cannot be sent.
        Exception: What the job raised, once the rows that came before are given out.
    """
    df = running(df)
    query = known_query(df)
    return frame_stream(df, None, batch_size) if query is None else query.to_batches(batch_size)


def query_stream(query: PlannedQuery, batch_size: int | None) -> Iterator[pa.RecordBatch]:
    """Run a query and return its rows as they come: the block's own where Spark does nothing above it."""
    _check(batch_size)
    direct = query.direct
    plans = [each for each in query.taken if direct is not None and each.block.name == direct.block]
    if direct is None or not plans or not _same_types(query, plans[0].block, direct.columns):
        return frame_stream(query.df, query.options, batch_size)
    batches = rows_of_action(_ACTION, query.df, plans[0].run.stream())
    return _shaped(batches, direct.columns, arrow_schema(query.df.schema), batch_size)


def _same_types(query: PlannedQuery, block: Block, columns: Sequence[str]) -> bool:
    try:
        wanted = arrow_schema(query.df.schema)
    except UnsupportedType:
        return False
    schema = block.join.output_schema
    return bool(wanted.types == [schema.field(column).type for column in columns])


def frame_stream(
    frame: DataFrame, options: Options | None = None, batch_size: int | None = None
) -> Iterator[pa.RecordBatch]:
    """Run any DataFrame and return its rows as they come."""
    _check(batch_size)
    if frame.isStreaming:
        return refuse_endless()
    schema = arrow_schema(frame.schema)
    names = [f"c{place}" for place in range(len(schema))]
    # Columns may share a name, or have one that Spark's Arrow functions stumble over.
    plain = pa.schema([pa.field(name, f.type) for name, f in zip(names, schema, strict=True)])
    batches = stream_of(frame.sparkSession, options or Options(), plain, sender_of(frame.toDF(*names), plain))
    return _shaped(rows_of_action(_ACTION, frame, batches), names, schema, batch_size)


def _check(batch_size: int | None) -> None:
    if batch_size is not None and (type(batch_size) is not int or batch_size < 1):
        raise OptionError(f"batch_size is {batch_size!r}: expected a whole number above 0, or None")


def _shaped(
    batches: Generator[pa.RecordBatch], columns: Sequence[str], schema: pa.Schema, size: int | None
) -> Iterator[pa.RecordBatch]:
    """Yield columns in batches of a size; whoever closes this cancels the job, if it still runs."""
    with closing(batches):
        for batch in batches:
            renamed = pa.RecordBatch.from_arrays([batch.column(name) for name in columns], schema=schema)
            step = size or max(1, batch.num_rows)
            for low in range(0, batch.num_rows, step):
                yield renamed.slice(low, step)
