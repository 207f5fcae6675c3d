"""Whether a query gives the same rows when it runs again."""

from __future__ import annotations

import re

from pyspark.errors import PySparkException
from sqlglot import exp

from millrace.errors import InputError
from millrace.front.conjuncts import volatile
from millrace.front.texts import Frames

# Of several rows or orders they take any.
_ANY_NAMES = frozenset(
    {
        "any_value", "approx_percentile", "array_agg", "collect_list", "collect_set", "first", "first_value",
        "lag", "last", "last_value", "lead", "listagg", "max_by", "min_by", "mode", "nth_value", "ntile",
        "percentile_approx", "row_number", "string_agg",
    }
)  # fmt: skip
_PARTS = (exp.Limit, exp.Offset, exp.Fetch, exp.TableSample)
# The same in Spark's plans, for tables that were given as DataFrames and for views.
_PLAN = re.compile(
    r"^[\s:+-]*(GlobalLimit|LocalLimit|CollectLimit|Sample|Offset)\b|\b(rand|randn|uuid|shuffle|random|"
    r"monotonically_increasing_id|spark_partition_id|input_file_name|first|last|any_value|collect_list|"
    r"collect_set|row_number|ntile|lag|lead|first_value|last_value|nth_value|max_by|min_by|mode)\(",
    re.IGNORECASE | re.MULTILINE,
)


def unrepeatable(node: exp.Expr) -> str | None:
    """Return what in an expression or query may give other rows when it runs again, None if nothing does."""
    if volatile(node):
        return "a function that may differ between two calls"
    for part in node.walk():
        if isinstance(part, _PARTS):
            return type(part).__name__.upper()
        if isinstance(part, exp.Func):
            name = part.name if isinstance(part, exp.Anonymous) else part.sql_name()
            if name.lower() in _ANY_NAMES:
                return f"{name.lower()}, which takes any of several rows or orders"
    return None


def check_table(frames: Frames, placeholder: str, name: str) -> None:
    """Look into the plan of a table that is going to be read twice.

    Raises:
        InputError: It may give other rows when it runs again.
    """
    try:
        plan = str(frames.sql(f"EXPLAIN EXTENDED SELECT * FROM {placeholder}").collect()[0][0])  # noqa: S608
    except PySparkException:
        return
    optimized = plan.partition("== Optimized Logical Plan ==")[2].partition("== Physical Plan ==")[0]
    found = _PLAN.search(optimized)
    if found is not None:
        raise InputError(
            f"table {name!r} has to be read twice, for the keys of a lookup table and for its rows, but it "
            f"may differ the second time ({found[0].strip(' :+-(')} in its plan); write it to files first"
        )
