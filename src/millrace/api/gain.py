"""Whether a pipeline, or a chain of joins, gains by leaving Spark.

Rows that tasks read from files are joined faster; rows that pass between Spark and Python cost more than
Spark's own join. Of a pipeline what passes is known. Of a chain all columns of all rows pass, for it is
planned before it is known what is asked of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from sqlglot import exp

from millrace.engine.expressions import And, Call, Compare, InList, Predicate
from millrace.errors import QueryError
from millrace.options import Options, StorageOptions
from millrace.parquet.partitions import Doubtful
from millrace.parquet.types import fixed_width
from millrace.spark.block import FrameInput, ParquetInput
from millrace.spark.scan_detection import scan_of
from millrace.spark.session import SessionConf, default_parallelism
from millrace.sql.blocks.cost_model import ROWS_A_SECOND
from millrace.sql.session.asking import default_widths, estimate
from millrace.sql.syntax.parse import conjuncts, parse, unwrap

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

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

Nothing else is taken to reject rows, for nothing tells how many: such a chain is rather left to Spark.
"""


@dataclass(frozen=True, eq=False)
class Relation:
    """A DataFrame to join, and conditions in SQL over it.

    ``known`` are the DataFrames whose Columns are columns of it: itself, and what filters made of it.
    """

    df: DataFrame
    conditions: tuple[str, ...] = ()
    known: tuple[DataFrame, ...] = ()


_sizes: WeakKeyDictionary[Relation, tuple[int | None, bool]] = WeakKeyDictionary()


def why_no_gain(relations: Sequence[Relation], conditions: Iterable[str], options: Options) -> str | None:
    """Return why Spark joins better itself, None where next to nothing passes between it and Python.

    A key is taken to be unique in all relations but the largest; conditions are SQL over what is joined.
    """
    kept = _kept([*conditions, *(text for relation in relations for text in relation.conditions)])
    widths = [sum(default_widths(relation.df.schema)) for relation in relations]
    if sum(widths) * kept > BYTES_A_ROW * len(relations):  # however many rows each has: Spark is not asked
        return _explain("rows", sum(widths), kept)
    conf = SessionConf(relations[0].df.sparkSession)
    rows, read, passing = 0, 0, 0
    for relation, width in zip(relations, widths, strict=True):
        count, is_direct = _size(relation, conf, options)
        if count is None:
            return "nothing tells how many rows would come from Spark to be joined (option take_all)"
        rows = max(rows, count)
        read += count if is_direct else 0
        passing += 0 if is_direct else count * width
    return _why_not(relations[0].df.sparkSession, read, passing, rows, sum(widths), kept)


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
    return _why_not(spark, read, passing, most, width, kept)


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


def _why_not(spark: SparkSession, read: int, passing: int, rows: int, width: int, kept: float) -> str | None:
    """Return why a join does not pay.

    Args:
        spark: The session.
        read: Rows that tasks read from files themselves.
        passing: Bytes that come from Spark.
        rows: Of the largest relation.
        width: Bytes of a row of the result.
        kept: Share of the rows that conditions keep.
    """
    if passing > BYTES_A_ROW * read:
        return (
            f"about {passing:,} bytes of rows would come from Spark to be joined with {read:,} rows that "
            "tasks read from files themselves, which does not pay (option take_all)"
        )
    if passing + rows * width * kept > BYTES_A_ROW * read:
        return _explain(f"{rows:,} rows", width, kept)
    if read / ROWS_A_SECOND / default_parallelism(spark) < LEAST_GAIN_SECONDS:
        return f"joining {read:,} rows saves less than it takes to plan it (option take_all)"
    return None


def _explain(rows: str, width: int, kept: float) -> str:
    rejected = "" if kept == 1 else f", of which conditions keep about {kept:.0%}"
    return (
        f"{rows} with all their columns, about {width} bytes each{rejected}, would pass from Python to "
        "Spark, which takes longer than the join saves: filter by equality, select fewer columns before, or "
        "join in SQL, where only what is needed passes (option take_all)"
    )


def _size(relation: Relation, conf: SessionConf, options: Options) -> tuple[int | None, bool]:
    """Return how many rows a relation has, if anything tells, and whether tasks read them from files."""
    size = _sizes.get(relation)
    if size is None:
        storage = StorageOptions.of(options.storage_options)
        try:
            size = scan_of(relation.df, conf, storage).rows, True
        except Doubtful:
            size = estimate(relation.df)[0], False
        _sizes[relation] = size
    return size


def _kept(conditions: Iterable[str]) -> float:
    """Return which share of rows conditions keep, as far as that can be said."""
    try:
        roots = [parse(f"SELECT * WHERE {text}").root for text in conditions]  # only parsed
    except QueryError:
        return 1.0  # Spark refuses it too
    wheres = [root.args["where"].this for root in roots if root is not None]
    return prod(map(_kept_by, wheres))


def _kept_by(condition: exp.Expr) -> float:
    match unwrap(condition):
        case exp.And() as both:
            return prod(map(_kept_by, conjuncts(both)))
        case exp.EQ(this=exp.Column(), expression=exp.Literal()):
            return KEPT_BY_EQUALITY
        case exp.In(this=exp.Column(), expressions=[_, *_] as values):
            return min(1.0, KEPT_BY_EQUALITY * len(values))
    return 1.0
