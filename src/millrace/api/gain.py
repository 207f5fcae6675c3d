"""Whether a pipeline gains by leaving Spark.

Rows that tasks read from files are joined faster; rows that pass between Spark and Python cost more than
Spark's own join. A pipeline is planned when it runs, so it is known what passes.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import TYPE_CHECKING

from millrace.engine.expressions import And, Call, Compare, InList, Predicate
from millrace.parquet.types import fixed_width
from millrace.spark.block import FrameInput, ParquetInput
from millrace.spark.session import default_parallelism
from millrace.sql.blocks.cost_model import ROWS_A_SECOND

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from millrace.spark.block import Block

BYTES_A_ROW = 6
"""Bytes that may pass between Spark and Python for each row that tasks read from files themselves.

A row that tasks read and join saves some time (``ROWS_A_SECOND`` of :mod:`millrace.sql.blocks.cost_model`).
A number that passes takes about a third of that, and a text half as much again: of a million rows joined
with 300, with one to eight columns. A text counts 20 bytes, so 12 bytes use up the gain; half of them allow
for wrong estimates.
"""
LEAST_GAIN_SECONDS = 0.2
"""Twice what planning a query takes beyond Spark's own analysis, measured by ``python -m lab bench sql``."""
KEPT_BY_EQUALITY = 0.1
"""The share of rows that a column has of one value: of Selinger et al., Access Path Selection, 1979.

Nothing else is taken to reject rows, for nothing tells how many: such a pipeline is rather left to Spark.
"""


def why_slower(spark: SparkSession, blocks: Iterable[Block]) -> str | None:
    """Return why Spark runs a pipeline with some blocks better itself, None where one of them pays."""
    whys = [_why_block_not(spark, block) for block in blocks]
    return "; ".join(why for why in whys if why is not None) if whys and None not in whys else None


def _why_block_not(spark: SparkSession, block: Block) -> str | None:
    """Return why a block does not pay; what it aggregates is taken to be few rows."""
    join = block.join
    if any(isinstance(predicate, Call) for predicate in join.residuals):
        return None  # functions of Python cost more than rows that pass
    relations = {relation.alias: relation for relation in join.sources}
    # Rows of the largest relation, rows of files, bytes that come from Spark, and the share of rows kept.
    most, read, passing, kept = 0, 0, 0, 1.0
    for alias, rows in block.inputs.items():
        match rows:
            case ParquetInput(table=table, filters=filters):
                count = table.rows
                read += count
                kept *= prod(map(_share_of, filters))
            case FrameInput(bytes=size):
                count = relations[alias].rows or 0
                passing += size or 0
            case _:
                return None
        most = max(most, count)
    widths = [fixed_width(field.type) or 20 for field in join.output_schema]
    width = 0 if block.aggregate is not None or join.count_only else sum(widths)
    if passing > BYTES_A_ROW * read:
        return (
            f"about {passing:,} bytes of rows would come from Spark to be joined with {read:,} rows that "
            "tasks read from files themselves, which does not pay (option take_all)"
        )
    if passing + most * width * kept > BYTES_A_ROW * read:
        rejected = "" if kept == 1 else f", of which conditions keep about {kept:.0%}"
        return (
            f"{most:,} rows with all their columns, about {width} bytes each{rejected}, would pass from "
            "Python to Spark, which takes longer than the join saves: filter by equality, select fewer "
            "columns before, or join in SQL, where only what is needed passes (option take_all)"
        )
    if read / ROWS_A_SECOND / default_parallelism(spark) < LEAST_GAIN_SECONDS:
        return f"joining {read:,} rows saves less than it takes to plan it (option take_all)"
    return None


def _share_of(predicate: Predicate) -> float:
    """Return which share of rows a predicate of a scan keeps, as far as that can be said."""
    match predicate:
        case And(arguments=both):
            return prod(map(_share_of, both))
        case Compare(op="="):
            return KEPT_BY_EQUALITY
        case InList(values=values):
            return min(1.0, KEPT_BY_EQUALITY * len(values))
    return 1.0
