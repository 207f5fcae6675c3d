"""Letting predicates judge a uniform sample of a DataFrame, in this process."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pyarrow as pa
from pyspark.sql import Column, DataFrame, functions as sf

from millrace.errors import InputError, OptionError
from millrace.predicates.callers import caller_of
from millrace.predicates.outcome import Outcome
from millrace.predicates.spec import PredicateSpec
from millrace.predicates.values import Values

_LEAST, _MOST = 10, 1_000_000


def drawn(df: DataFrame, columns: Sequence[Column], sample: int, seed: int, what: str) -> list[pa.Array]:
    """Return columns of rows of a DataFrame, each set of so many as likely as any other.

    Args:
        df: The rows; all of them are read.
        columns: What to take of each.
        sample: How many rows, or all if there are fewer.
        seed: Of the choice.
        what: Needs the sample, for the error.

    Raises:
        OptionError: The size of the sample is out of range.
        InputError: The DataFrame is a streaming one.
    """
    if type(sample) is not int or not _LEAST <= sample <= _MOST:
        raise OptionError(
            f"sample of {what} is {sample!r}: expected a whole number from {_LEAST} to {_MOST:,}"
        )
    if df.isStreaming:
        raise InputError(
            f"{what} needs a sample, and a streaming DataFrame has no end: give it a DataFrame of like rows"
        )
    named = [column.alias(f"_{place}") for place, column in enumerate(columns)]
    table = df.select(*named).orderBy(sf.rand(seed)).limit(sample).toArrow()
    return [pa.concat_arrays(c.chunks) if c.num_chunks else pa.nulls(0, c.type) for c in table.columns]


def judged(spec: PredicateSpec, arrays: list[pa.Array], values: Values) -> tuple[Outcome, float]:
    """Return what a predicate says of the rows, and the seconds that it took; limits hold for it alone."""
    caller = caller_of(spec, values, None, "sample")
    began = time.perf_counter()
    try:
        return caller.call(arrays), time.perf_counter() - began
    finally:
        caller.close()
