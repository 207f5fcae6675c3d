"""Aggregates that begin inside a block's tasks: partial results per group, which Spark puts together."""

from millrace.aggregates.partial import PartialAggregation
from millrace.aggregates.spec import (
    AggregateSpec,
    Arithmetic,
    Constant,
    How,
    Partial,
    Read,
    Value,
    Widened,
    columns_of,
    show,
)

__all__ = [
    "AggregateSpec",
    "Arithmetic",
    "Constant",
    "How",
    "Partial",
    "PartialAggregation",
    "Read",
    "Value",
    "Widened",
    "columns_of",
    "show",
]
