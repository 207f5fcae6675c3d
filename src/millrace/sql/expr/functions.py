"""Spark's functions and operators: one table, which of them may differ, and the numbers that tasks compute.

Values have the type that Spark gives them, and none is among them that could overflow, by its type or by what
is known of its columns.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from decimal import Decimal

from pyspark.errors import PySparkException
from pyspark.sql import types as t
from sqlglot import exp

from millrace.engine.plan.expressions import (
    ArithmeticOp,
    Function as Computed,
    FunctionName,
    Literal,
    Part,
    Value,
)
from millrace.spark.predicates import Predicate
from millrace.spark.types import arrow_type
from millrace.sql.expr.types import DIGITS, DOUBLE_DIGITS, MOST_DIGITS, decimal_digits, digits_of
from millrace.sql.session.asking import Frames
from millrace.sql.syntax.parse import function_of
from millrace.sql.syntax.scopes import within

Ends = tuple[int, int]
Options = tuple[int | None, ...]
Family = type[t.DataType]
"""Types that functions take alike, by a class of theirs."""

NUMBER, TEXT, DATE, TIME, TRUTH = t.NumericType, t.StringType, t.DateType, t.TimestampType, t.BooleanType
OTHER = t.DataType
"""What is only tested for null."""


@dataclass(frozen=True)
class Function:
    """A function that never raises, or has a form that does not."""

    takes: Family | None = None  # the family of its arguments; None if they may have any one
    gives: Family | None = None  # the family of its result; None for that of its arguments
    tried: str | None = None  # Spark's function that gives null where this one raises
    is_strict: bool = True  # whether a null argument makes it null
    part: Part | None = None  # the part of a date that it is


FUNCTIONS: dict[type[exp.Expr], Function] = {
    exp.Add: Function(NUMBER, NUMBER, "try_add"),
    exp.Sub: Function(NUMBER, NUMBER, "try_subtract"),
    exp.Mul: Function(NUMBER, NUMBER, "try_multiply"),
    exp.Div: Function(NUMBER, NUMBER, "try_divide"),
    exp.Mod: Function(NUMBER, NUMBER, "try_mod"),
    exp.Length: Function(TEXT, NUMBER),
    exp.ConcatWs: Function(TEXT, TEXT, is_strict=False),
    exp.Year: Function(DATE, NUMBER, part="year"),
    exp.Quarter: Function(DATE, NUMBER, part="quarter"),
    exp.Month: Function(DATE, NUMBER, part="month"),
    exp.WeekOfYear: Function(DATE, NUMBER, part="week"),
    exp.Day: Function(DATE, NUMBER, part="day"),
    exp.DayOfMonth: Function(DATE, NUMBER, part="day"),
    exp.DayOfYear: Function(DATE, NUMBER, part="dayofyear"),
    exp.DayOfWeek: Function(DATE, NUMBER, part="dayofweek"),
    exp.Is: Function(OTHER, TRUTH, is_strict=False),
}
_ALIKE: tuple[tuple[Function, tuple[type[exp.Expr], ...]], ...] = (
    (Function(TEXT, TEXT), (exp.Lower, exp.Upper, exp.Trim, exp.Substring, exp.Left, exp.Right, exp.Concat)),
    (Function(TEXT, TEXT), (exp.DPipe, exp.Replace, exp.Reverse, exp.Initcap)),
    (Function(DATE, DATE), (exp.AddMonths, exp.TsOrDsAdd, exp.DateAdd, exp.DateSub, exp.DateTrunc)),
    (Function(is_strict=False), (exp.Coalesce, exp.Nullif, exp.Greatest, exp.Least)),
    (Function(None, TRUTH), (exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE)),
    (Function(None, TRUTH, is_strict=False), (exp.NullSafeEQ, exp.NullSafeNEQ)),
    (Function(TRUTH, TRUTH), (exp.Not, exp.And, exp.Or)),
)
FUNCTIONS |= {kind: function for function, kinds in _ALIKE for kind in kinds}
ARITHMETIC = tuple(kind for kind, function in FUNCTIONS.items() if function.tried)


# What a constant may be made of: all of it deterministic, and the same on every call.
_PARTS = (
    exp.Literal, exp.Boolean, exp.Null, exp.HexString, exp.RawString, exp.Concat, exp.Cast, exp.DataType,
    exp.DataTypeParam, exp.Neg, exp.Paren, exp.Add, exp.Sub, exp.Mul, exp.Div, exp.Mod, exp.IntDiv,
    exp.Interval, exp.IntervalSpan, exp.Var, exp.Placeholder, exp.TsOrDsToDate, exp.TsOrDsAdd, exp.DateAdd,
    exp.DateSub, exp.AddMonths,
)  # fmt: skip


_NULL_IN_NULL_OUT = (
    exp.Column,
    exp.Identifier,
    exp.Literal,
    exp.Paren,
    exp.Boolean,
    exp.Neg,
    exp.Cast,
    exp.DataType,
    exp.DataTypeParam,
)


def is_strict(node: exp.Expr) -> bool:
    """Tell whether an expression has a column, and is null where one of its columns is."""
    functions = (FUNCTIONS.get(type(part)) for part in node.walk() if not isinstance(part, _NULL_IN_NULL_OUT))
    strict = all(each is not None and each.is_strict and each.takes is not TRUTH for each in functions)
    return strict and node.find(exp.Column) is not None


def is_constant(node: exp.Expr) -> bool:
    """Tell whether an operand has no column and nothing that could differ between two calls."""
    return all(isinstance(part, _PARTS) for part in node.walk())


def family_of(kind: t.DataType | None) -> Family | None:
    """Return the family of a column's type, None where its collation matters."""
    if isinstance(kind, t.StringType):
        return TEXT if kind == t.StringType() else None
    if isinstance(kind, t.TimestampNTZType):
        return TIME
    return next((family for family in (NUMBER, TIME, DATE) if isinstance(kind, family)), OTHER)


def branches_of(node: exp.Case | exp.If) -> tuple[list[exp.If], exp.Expr | None]:
    """Return the branches of a CASE or IF, and the value of all other rows."""
    if isinstance(node, exp.Case):
        return node.args["ifs"], node.args.get("default")
    return [node], node.args.get("false")


# Numbers


@dataclass(frozen=True)
class Typed:
    value: Value  # for the task
    type: t.DataType  # Spark's
    ends: Ends | None = None  # the least and greatest that a whole number can be, None for those of its type
    is_written: bool = False  # whether it is a number in digits, whose length counts where it meets a decimal

    @classmethod
    def of(cls, name: FunctionName, kind: t.DataType, *arguments: Value, options: Options = ()) -> Typed:
        return cls(Computed(name, arrow_type(kind), arguments, options), kind)


def ends_of(number: Typed) -> Ends:
    """Return the least and greatest that a whole number can be."""
    half = 1 << (arrow_type(number.type).bit_width - 1)
    return number.ends or (-half, half - 1)


def arithmetic(op: ArithmeticOp, left: Typed, right: Typed) -> Typed | None:
    """Return ``left op right``, None where it may overflow or be rounded."""
    kinds = left.type, right.type
    if any(isinstance(kind, t.DoubleType) for kind in kinds):
        kind: t.DataType = t.DoubleType()
        a, b = cast(left, kind), cast(right, kind)
    elif any(isinstance(kind, t.DecimalType) for kind in kinds):
        a, b = _as_decimal(left), _as_decimal(right)
        digits = None if a is None or b is None else _digits(op, a.type, b.type)
        if digits is None:
            return None
        kind = t.DecimalType(*digits)
    elif all(type(kind) in DIGITS for kind in kinds):
        kind = max(kinds, key=lambda each: DIGITS[type(each)])
        a, b = cast(left, kind), cast(right, kind)
    else:
        return None
    if a is None or b is None:
        return None
    result = Typed.of(op, kind, a.value, b.value)
    if type(kind) not in DIGITS:
        return result
    (least, greatest), ends = ends_of(result), _ends(op, ends_of(left), ends_of(right))
    return replace(result, ends=ends) if least <= ends[0] and ends[1] <= greatest else None


def _ends(op: str, left: Ends, right: Ends) -> Ends:
    (a, b), (c, d) = left, right
    if op == "*":
        products = (a * c, a * d, b * c, b * d)
        return min(products), max(products)
    return (a + c, b + d) if op == "+" else (a - d, b - c)


def _digits(op: str, left: t.DataType, right: t.DataType) -> tuple[int, int] | None:
    """Return the digits of what an operation makes of decimals, None where Spark rounds for want of more."""
    (p, s), (q, r) = decimal_digits(left) or (0, 0), decimal_digits(right) or (0, 0)
    scale = s + r if op == "*" else max(s, r)
    precision = p + q + 1 if op == "*" else max(p - s, q - r) + scale + 1
    return (precision, scale) if precision <= MOST_DIGITS else None


def _as_decimal(number: Typed) -> Typed | None:
    """Return a number as Spark takes it where it meets a decimal, None if that is no decimal."""
    if number.is_written and isinstance(number.value, Literal) and type(number.type) in DIGITS:
        written = Decimal(number.value.value)
        kind = t.DecimalType(*digits_of(written))
        return Typed(Literal(written, arrow_type(kind)), kind)
    digits = decimal_digits(number.type)
    return None if digits is None else cast(number, t.DecimalType(*digits))


def modulo(left: Typed, right: Typed) -> Typed | None:
    """Return ``left % right``, None where that is not for tasks."""
    if not isinstance(right.value, Literal) or not {type(left.type), type(right.type)} <= DIGITS.keys():
        return None
    divisor = right.value.value
    kind = max(left.type, right.type, key=lambda each: DIGITS[type(each)])
    number = cast(left, kind)
    if divisor < 1 or number is None:
        return None
    return replace(Typed.of("%", kind, number.value, options=(divisor,)), ends=(1 - divisor, divisor - 1))


def holds(whole: t.DataType, kind: t.DataType) -> bool:
    """Tell whether a decimal type has every number of another type."""
    digits = decimal_digits(kind)
    if digits is None or not isinstance(whole, t.DecimalType):
        return False
    return digits[1] <= whole.scale and digits[0] - digits[1] <= whole.precision - whole.scale


def cast(number: Typed, to: t.DataType) -> Typed | None:
    """Return a number in another type, None where that may lose digits or fail."""
    kind, is_whole = number.type, type(number.type) in DIGITS
    if kind == to:
        return number
    if isinstance(to, t.DoubleType):
        fits = is_whole or isinstance(kind, t.FloatType)
        fits = fits or (isinstance(kind, t.DecimalType) and kind.precision <= DOUBLE_DIGITS)
    elif isinstance(to, t.DecimalType):
        fits = holds(to, kind)
    else:
        fits = is_whole and type(to) in DIGITS and DIGITS[type(kind)] < DIGITS[type(to)]
    if not fits:
        return None
    return replace(Typed.of("cast", to, number.value), ends=ends_of(number) if is_whole else None)


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
# What sqlglot calls some of them otherwise.
_SPARK_NAMES = {
    "approx_quantile": "approx_percentile", "arg_max": "max_by", "arg_min": "min_by",
    "array_unique_agg": "collect_set", "group_concat": "listagg",
}  # fmt: skip
_ANY_PARTS = (exp.Limit, exp.Offset, exp.Fetch, exp.TableSample)
# The same in Spark's plans, for tables that were given as DataFrames and for views.
_PLAN = re.compile(
    r"^[\s:+-]*(GlobalLimit|LocalLimit|CollectLimit|Sample|Offset)\b|"
    rf"\b({'|'.join(sorted(VOLATILE_NAMES | ANY_NAMES))})\(",
    re.IGNORECASE | re.MULTILINE,
)
_BUILTIN = "org.apache.spark.sql.catalyst."

_builtin_names: set[str] = set()


def describe_function(frames: Frames, name: str) -> list[str]:
    """Return what Spark says of a function, line by line; nothing of one that it does not know."""
    try:
        return [str(row[0]) for row in frames.rows(f"DESCRIBE FUNCTION EXTENDED `{name}`")]
    except PySparkException:
        return []


class Determinism:
    """Judges the expressions of one query; ``predicates`` are the caller's functions by lower-case name."""

    def __init__(self, predicates: Mapping[str, Predicate], frames: Frames) -> None:
        self._predicates = predicates
        self._frames = frames

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
            return not self._predicates[called].spec.deterministic
        if not isinstance(part, exp.Anonymous | exp.AnonymousAggFunc):
            return part.sql_name().lower() in VOLATILE_NAMES
        return part.name.lower() in VOLATILE_NAMES or self._is_unsure(part.name.lower())

    def _is_unsure(self, name: str) -> bool:
        """Tell whether a function of the session, or one that sqlglot does not know, may be volatile."""
        if name in _builtin_names:
            return False
        lines = describe_function(self._frames, name)
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
                name = (part.name if isinstance(part, exp.Anonymous) else part.sql_name()).lower()
                name = _SPARK_NAMES.get(name, name)
                if name in ANY_NAMES:
                    return f"{name}, which takes any of several rows or orders"
        return None


def unrepeatable_plan(plan: str) -> str | None:
    """Return what in Spark's extended plan may give other rows when it runs again, None if nothing does."""
    optimized = plan.partition("== Optimized Logical Plan ==")[2].partition("== Physical Plan ==")[0]
    match = _PLAN.search(optimized)
    return None if match is None else match[0].strip(" :+-(")
