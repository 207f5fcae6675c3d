"""Users' Python predicates: what they are, how they are called, and what a sample says of them.

Here is nothing of eddies or Spark. The invariant: what a call raises is an outcome of its row, not an error,
for another predicate may reject the row. Whoever ran all predicates of a row says what the failure means.
"""

from millrace.predicates.calls import KEPT, RAISED, REJECTED, Caller, Failure, Outcome, Values
from millrace.predicates.spec import KINDS, PredicateSpec, is_coroutine

__all__ = [
    "KEPT",
    "KINDS",
    "RAISED",
    "REJECTED",
    "Caller",
    "Failure",
    "Outcome",
    "PredicateSpec",
    "Values",
    "is_coroutine",
]
