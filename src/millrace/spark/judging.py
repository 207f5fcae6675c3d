"""Letting predicates judge a uniform sample of a DataFrame, in this process."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, functions as sf

from millrace.errors import BudgetError, InputError, OptionError
from millrace.limits.budget import cost_of
from millrace.predicates.callers import caller_of
from millrace.predicates.calls import Outcome, Values
from millrace.predicates.service import CallError, Service
from millrace.predicates.spec import PredicateSpec

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


@dataclass
class Bill:
    """What a sample took.

    Attributes:
        seconds: In all.
        requests: Calls of an ``async`` predicate, repeated ones included.
        asked: Rows that were in those that were answered.
        cost: What the answers tell of it.
    """

    seconds: float = 0.0
    requests: int = 0
    asked: int = 0
    cost: float = 0.0


def judged(spec: PredicateSpec, arrays: list[pa.Array], values: Values) -> tuple[Outcome, Bill]:
    """Return what a predicate says of the rows, and what that took; limits hold for it alone."""
    bill = Bill()
    caller = caller_of(_counted(spec, bill) if spec.kind == "async" else spec, values, None, "sample")
    began = time.perf_counter()
    try:
        outcome = caller.call(arrays)
    finally:
        caller.close()
    bill.seconds = time.perf_counter() - began
    return outcome, bill


def _counted(spec: PredicateSpec, bill: Bill) -> PredicateSpec:
    """Return a predicate whose calls are put on a bill; its kept answers are the same."""
    origin = spec.origin or spec.function
    cost = spec.budget[1] or (origin.cost if isinstance(origin, Service) else None)

    def charge(arguments: tuple[Any, ...], answer: object) -> None:
        request = list(zip(*arguments, strict=True)) if spec.batch else arguments
        if cost is not None:
            with suppress(BudgetError):  # nobody can tell
                bill.cost += cost_of(cost, request, answer)

    async def counted(*arguments: Any) -> Any:
        bill.requests += 1
        try:
            answer = await spec.function(*arguments)
        except CallError as error:
            if error.usage is not None:
                charge(arguments, error)
            raise
        charge(arguments, answer)
        bill.asked += len(arguments[0]) if spec.batch else 1
        return answer

    return replace(spec, function=counted, origin=origin)
