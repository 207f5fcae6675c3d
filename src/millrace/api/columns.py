"""Which columns a Column compares: noted while Columns are made, for no public call of PySpark's tells it.

While a session is enabled, a Column that is taken of a DataFrame (``orders.custkey``, ``orders["custkey"]``)
has a note of that DataFrame and of the name, and one that ``==`` and ``&`` make of Columns has a note of the
pairs that it compares. Notes live on their Columns and hold no DataFrame. A Column without a note may be
``col("custkey")``, which names a column and nothing else: Spark is asked whether it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from weakref import ref

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession, functions as sf

from millrace.spark.patches import note_of
from millrace.spark.session import internal_query

_TEXT = re.compile(r"Column<'(\w+)'>")
_PROBE = "struct<millrace_probe: int>"  # no column of anybody's has this type


class _Note:
    """What is known of a Column; a copy in another process knows nothing."""

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()


@dataclass(frozen=True, eq=False)
class Taken(_Note):
    """A column of a DataFrame, by the name as it was asked for."""

    frame: ref[DataFrame]
    name: str


@dataclass(frozen=True, eq=False)
class Compared(_Note):
    """Equalities that all have to hold; a Column among them is one without a note."""

    pairs: tuple[tuple[Taken | Column, Taken | Column], ...]


def compared(conditions: Iterable[object]) -> Compared | None:
    """Return what Columns compare together, or None where one is not known to compare columns alone."""
    notes = [note_of(each) for each in conditions]
    if not notes or not all(isinstance(each, Compared) for each in notes):
        return None
    return Compared(tuple(pair for each in notes if isinstance(each, Compared) for pair in each.pairs))


def name_of(column: Column, spark: SparkSession) -> str | None:
    """Return the name of a Column that is one and nothing else, such as ``col("x")``; None for any other.

    It says so itself, it is the column of this name of a DataFrame that has nothing but that, whatever its
    type, and it is nothing where there is no column: so it is no literal and no column of some DataFrame.
    """
    found = _TEXT.fullmatch(str(column))
    if found is None:
        return None
    name = found[1]
    with internal_query():
        probe = spark.range(0).select(sf.lit(None).cast(_PROBE).alias(name))
        try:
            if probe.select(column).schema != probe.schema:
                return None
        except AnalysisException:
            return None
        try:
            spark.range(0).select(sf.lit(0).alias(f"no_{name}")).select(column).schema  # noqa: B018  # Connect
        except AnalysisException:
            return name
    return None


def taken(frame: DataFrame, item: object) -> Taken | None:
    """Return what ``__getattr__`` and ``__getitem__`` of a DataFrame take of it."""
    return Taken(ref(frame), item) if isinstance(item, str) else None


def equal(left: Column, right: object) -> Compared | None:
    """Return what ``__eq__`` of a Column compares."""
    return Compared(((_side(left), _side(right)),)) if isinstance(right, Column) else None


def both(left: Column, right: object) -> Compared | None:
    """Return what ``__and__`` of a Column compares."""
    return compared((left, right))


def _side(column: Column) -> Taken | Column:
    note = note_of(column)
    return note if isinstance(note, Taken) else column
