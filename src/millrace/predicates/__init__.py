"""Users' predicates: what they are and how they are called. Knows nothing of eddies or Spark."""

from millrace.predicates.outcome import KEPT, RAISED, REJECTED, Caller, Failure, Outcome
from millrace.predicates.spec import KINDS, PredicateSpec, is_coroutine
from millrace.predicates.values import PlainValues, Values

__all__ = [
    "KEPT",
    "KINDS",
    "RAISED",
    "REJECTED",
    "Caller",
    "Failure",
    "Outcome",
    "PlainValues",
    "PredicateSpec",
    "Values",
    "is_coroutine",
]
