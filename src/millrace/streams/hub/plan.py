"""A hub's join as a streaming DataFrame: changes of the queries are one more source of its cells."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from millrace.options import Options
from millrace.spark.block import Block
from millrace.spark.exchange import BLOCK_SCHEMA, block_rows
from millrace.spark.types import spark_schema
from millrace.spark.worker import worker_task
from millrace.streams.hub.processor import HubProcessor
from millrace.streams.hub.registry import read_fields
from millrace.streams.hub.task import CHANGES, ENVELOPE, Hub
from millrace.streams.plan import deal
from millrace.streams.retention import EventTimes
from millrace.streams.task import ContinuousJoin


@dataclass(frozen=True)
class Announce:
    """Copies changes to all cells; ``keys`` has Spark's key of each."""

    keys: tuple[int, ...]

    @worker_task
    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield a block for each change and cell; a damaged file has no change."""
        for batch in batches:
            whole = (text for text in batch.column(0).to_pylist() if read_fields(text) is not None)
            texts = [text.encode() for text in whole]
            blocks = [(key, CHANGES, pa.py_buffer(text)) for text in texts for key in self.keys]
            if blocks:
                yield block_rows(blocks)


def hub(
    spark: SparkSession, block: Block, times: EventTimes, options: Options, changes: str, *, keeps_all: bool
) -> DataFrame:
    """Return what the cells of a hub give out, as rows of ``ENVELOPE``; nothing runs yet.

    The block is the join that the queries share; ``changes`` is the folder of changes of queries, a file
    each. With ``keeps_all`` the log has tuples that no query wants.

    Raises:
        MillraceError: As :func:`millrace.streams.plan.deal`.
    """
    # Queries have conditions on each role by itself.
    dealt = deal(spark, block, times, options, share=False)
    task = Hub(
        **{name: getattr(dealt.task, name) for name in ContinuousJoin.__dataclass_fields__},
        keeps_all=keeps_all,
    )
    texts = spark.readStream.schema("value string").option("wholetext", True).text(changes)
    side = texts.mapInArrow(Announce(dealt.keys), spark_schema(BLOCK_SCHEMA))
    return replace(dealt, task=task, sides=(*dealt.sides, side)).run(
        HubProcessor(task, dealt.keys), ENVELOPE, spark_schema(ENVELOPE)
    )
