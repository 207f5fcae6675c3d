"""Whether an expression or query may give something else when it is evaluated again."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from pyspark.errors import PySparkException
from sqlglot import exp

from millrace.predicates import PredicateSpec
from millrace.sql.syntax.parse import function_of
from millrace.sql.syntax.scopes import within

# Functions whose value differs between two calls. (The date and the time are one constant a query.)
VOLATILE_NAMES = frozenset(
    {
        "input_file_block_length", "input_file_block_start", "input_file_name", "java_method",
        "monotonically_increasing_id", "rand", "randn", "random", "randstr", "reflect", "shuffle",
        "spark_partition_id", "try_reflect", "uniform", "uuid",
    }
)  # fmt: skip
# Of several rows or orders they take any.
ANY_NAMES = frozenset(
    {
        "any_value", "approx_percentile", "array_agg", "collect_list", "collect_set", "first", "first_value",
        "lag", "last", "last_value", "lead", "listagg", "max_by", "min_by", "mode", "nth_value", "ntile",
        "percentile_approx", "row_number", "string_agg",
    }
)  # fmt: skip
_ANY_PARTS = (exp.Limit, exp.Offset, exp.Fetch, exp.TableSample)
# The same in Spark's plans, for tables that were given as DataFrames and for views.
_PLAN = re.compile(
    r"^[\s:+-]*(GlobalLimit|LocalLimit|CollectLimit|Sample|Offset)\b|"
    rf"\b({'|'.join(sorted(VOLATILE_NAMES | ANY_NAMES))})\(",
    re.IGNORECASE | re.MULTILINE,
)
_BUILTIN = "org.apache.spark.sql.catalyst."

_builtin_names: set[str] = set()


class Determinism:
    """Judges the expressions of one query.

    Args:
        predicates: The caller's functions by lower-case name.
        ask: Runs a statement of Spark's once and returns the texts of its only column.
    """

    def __init__(self, predicates: Mapping[str, PredicateSpec], ask: Callable[[str], list[str]]) -> None:
        self._predicates = predicates
        self._ask = ask

    def volatile(self, node: exp.Expr) -> bool:
        """Tell whether an expression or query may give another value on another call."""
        return any(self._is_volatile(part) for part in within(node))

    def _is_volatile(self, part: exp.Expr) -> bool:
        if isinstance(part, exp.Dot) and isinstance(part.expression, exp.Func):
            return True  # a function of a database
        if not isinstance(part, exp.Func):
            return False
        called = function_of(part)
        if called is not None:
            return not self._predicates[called].deterministic
        if not isinstance(part, exp.Anonymous | exp.AnonymousAggFunc):
            return part.sql_name().lower() in VOLATILE_NAMES
        return part.name.lower() in VOLATILE_NAMES or self._unsure(part.name.lower())

    def _unsure(self, name: str) -> bool:
        """Tell whether a function of the session, or one that sqlglot does not know, may be volatile."""
        if name in _builtin_names:
            return False
        try:
            lines = self._ask(f"DESCRIBE FUNCTION EXTENDED `{name}`")
        except PySparkException:
            lines = []
        if any(line.startswith("Class:") and _BUILTIN in line for line in lines):
            _builtin_names.add(name)
            return False
        return not any(re.fullmatch(r"Deterministic:\s*true", line) for line in lines)

    def unrepeatable(self, node: exp.Expr) -> str | None:
        """Return what in a query may give other rows when it runs again, None if nothing does."""
        if self.volatile(node):
            return "a function that may differ between two calls"
        for part in within(node):
            if isinstance(part, _ANY_PARTS):
                return type(part).__name__.upper()
            if isinstance(part, exp.Func):
                name = part.name if isinstance(part, exp.Anonymous) else part.sql_name()
                if name.lower() in ANY_NAMES:
                    return f"{name.lower()}, which takes any of several rows or orders"
        return None


def unrepeatable_plan(plan: str) -> str | None:
    """Return what in Spark's extended plan may give other rows when it runs again, None if nothing does."""
    optimized = plan.partition("== Optimized Logical Plan ==")[2].partition("== Physical Plan ==")[0]
    match = _PLAN.search(optimized)
    return None if match is None else match[0].strip(" :+-(")
