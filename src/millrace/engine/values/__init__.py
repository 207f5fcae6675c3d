"""Values that tasks compute of a row's columns: a language, and its evaluation.

Invariant: they are exactly what Spark computes; what cannot be computed so is not in the language.
"""

from millrace.engine.values.evaluate import Values, computed
from millrace.engine.values.spec import (
    Arithmetic,
    AsText,
    Choice,
    Constant,
    DatePart,
    DaysBetween,
    Later,
    Length,
    Moved,
    Part,
    Read,
    Remainder,
    Slice,
    Value,
    Widened,
    columns_of,
    show,
    type_of,
)

__all__ = [
    "Arithmetic",
    "AsText",
    "Choice",
    "Constant",
    "DatePart",
    "DaysBetween",
    "Later",
    "Length",
    "Moved",
    "Part",
    "Read",
    "Remainder",
    "Slice",
    "Value",
    "Values",
    "Widened",
    "columns_of",
    "computed",
    "show",
    "type_of",
]
