"""Values that tasks compute of a row's columns, exactly as Spark does: a language, and its evaluation."""

from millrace.values.evaluate import Values, computed
from millrace.values.spec import (
    Arithmetic,
    AsText,
    Choice,
    Constant,
    DatePart,
    DaysBetween,
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
