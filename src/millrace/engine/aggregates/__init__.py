"""Aggregates that begin inside a block's tasks: partial results per group, which Spark puts together."""

from millrace.engine.aggregates.partial import PartialAggregation
from millrace.engine.aggregates.spec import AggregateSpec, How, Partial

__all__ = ["AggregateSpec", "How", "Partial", "PartialAggregation"]
