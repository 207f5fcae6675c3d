"""From SQL to expressions that tasks evaluate exactly as Spark does, without ever failing.

Predicates are comparisons of columns and constants, BETWEEN, IN lists, LIKE, IS NULL, NOT, AND, OR and
boolean columns. Values are columns, constants, ``+``, ``-``, ``*``, remainders, widening casts of numbers,
parts of dates and texts, and choices between such by predicates. What could overflow by its types, or by what
is known of the columns, is not among them: only Spark knows when to raise and what for. ``None`` means that
an expression stays with Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from pyspark.sql import types as t
from sqlglot import exp

from millrace.engine.plan.expressions import (
    MIRRORED,
    And,
    ArithmeticOp,
    CaseWhen,
    Column,
    ColumnRef,
    Compare,
    Comparison,
    InList,
    IsNull,
    Like,
    Literal,
    Not,
    Or,
    Part,
    Predicate,
    Truth,
    Value,
)
from millrace.spark.types import arrow_type
from millrace.sql.expr.functions import (
    FUNCTIONS,
    Ends,
    Typed,
    arithmetic,
    branches_of,
    cast,
    is_constant,
    modulo,
)
from millrace.sql.expr.types import (
    DIGITS,
    AliasedField,
    Constant,
    Field,
    common_type,
    comparison_type,
    with_constant,
)
from millrace.sql.syntax.parse import conjuncts, disjuncts, unwrap

if TYPE_CHECKING:
    from millrace.sql.context import PlanContext

_COMPARISONS: dict[type[exp.Expr], Comparison] = {
    exp.EQ: "=",
    exp.NEQ: "<>",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
    exp.NullSafeEQ: "<=>",
}
_OPERATORS: dict[type[exp.Expr], ArithmeticOp] = {exp.Add: "+", exp.Sub: "-", exp.Mul: "*"}
_EXTRACTED: dict[str, Part] = {
    "YEAR": "year", "QUARTER": "quarter", "MONTH": "month", "WEEK": "week", "DAY": "day", "DOY": "dayofyear",
    "DAYOFWEEK": "dayofweek",
}  # fmt: skip
_INT = t.IntegerType()
_PART_ENDS = (-6_000_000, 6_000_000)  # no year of a date lies beyond
_CASTS: dict[exp.DType, t.DataType] = {
    exp.DType.DOUBLE: t.DoubleType(),
    exp.DType.BIGINT: t.LongType(),
    exp.DType.INT: t.IntegerType(),
}

Item = TypeVar("Item")
Meaning = AliasedField | exp.Expr
"""What a column is: one of a relation, by its alias, or an expression of such."""


def constant_operands(node: exp.Expr) -> Iterator[exp.Expr]:
    """Yield the operands of comparisons, BETWEEN and IN lists that have no column."""
    for part in node.walk():
        operands: list[Any] = []
        if isinstance(part, exp.Between):
            operands = [part.args.get("low"), part.args.get("high")]
        elif isinstance(part, exp.In):
            operands = list(part.expressions)
        elif type(part) in _COMPARISONS:
            operands = [part.this, part.expression]
        for operand in operands:
            if isinstance(operand, exp.Expr) and is_constant(operand):
                yield operand


@dataclass(frozen=True)
class Translator:
    """Translates expressions of one FROM clause.

    Attributes:
        lookup: Returns what a column is; None where tasks cannot have it. The alias of a relation whose rows
            are computed by themselves is empty.
        derived: Returns an operand that is no column as one, None where it cannot be one.
        ends: Returns the least and greatest value of a column of whole numbers, None where nothing tells.
    """

    context: PlanContext
    lookup: Callable[[exp.Column], Meaning | None]
    derived: Callable[[exp.Expr], AliasedField | None] = lambda _: None
    ends: Callable[[str], Ends | None] = lambda _: None

    # Predicates

    def predicate(self, node: exp.Expr) -> Predicate | None:
        """Return the expression as a predicate, or None when Spark has to evaluate it."""
        match unwrap(node):
            case exp.And() as both:
                return _connect(And, map(self.predicate, conjuncts(both)))
            case exp.Or() as either:
                return _connect(Or, map(self.predicate, disjuncts(either)))
            case exp.Not(this=inner):
                argument = self.predicate(inner)
                return None if argument is None else Not(argument)
            case exp.Between(this=middle, args=ends) if not ends.get("symmetric"):
                low = self._compare(">=", middle, ends["low"])
                return _connect(And, [low, self._compare("<=", middle, ends["high"])])
            case exp.In() as test:
                return self._in(test)
            case exp.Like() as like:
                return self._like(like)
            case exp.Is() as test:
                return self._is(test)
            case exp.NullSafeNEQ(this=left, expression=right):
                same = self._compare("<=>", left, right)
                return None if same is None else Not(same)
            case exp.Column() as column:
                operand = self._operand(column)
                if operand is None or not isinstance(operand[1].type, t.BooleanType):
                    return None
                return Truth(operand[0])
            case exp.Expr() as other if type(other) in _COMPARISONS:
                return self._compare(_COMPARISONS[type(other)], other.this, other.expression)
        return None

    def _field(self, node: exp.Expr) -> AliasedField | None:
        meaning = self.lookup(node) if isinstance(node, exp.Column) else None
        return None if isinstance(meaning, exp.Expr) else meaning

    def _operand(self, node: exp.Expr) -> tuple[Column, Field] | None:
        inner = unwrap(node)
        column = self._field(inner) or self.derived(inner)
        if column is None or not column[1].comparable:
            return None
        return Column(ColumnRef(column[0], column[1].name)), column[1]

    def _without_widening(self, *nodes: exp.Expr) -> list[exp.Expr]:
        """Return operands without casts that only widen columns: whole numbers compare by their values."""
        widened = [self._widened(node) for node in nodes]
        if not any(widened):
            return list(nodes)
        plain = [column or unwrap(node) for column, node in zip(widened, nodes, strict=True)]
        return plain if all(map(self._is_whole_number, plain)) else list(nodes)

    def _is_whole_number(self, node: exp.Expr) -> bool:
        """Tell whether an operand is a column or constant of a type of whole numbers."""
        column = self._field(node)
        meant = self.context.constants.value(node) if column is None else column[1]
        return meant is not None and type(meant.type) in DIGITS

    def _widened(self, node: exp.Expr) -> exp.Column | None:
        """Return the column of whole numbers that a cast only widens, None for anything else."""
        inner = unwrap(node)
        if not isinstance(inner, exp.Cast):
            return None
        column, to = unwrap(inner.this), _CASTS.get(inner.to.this)
        field = self._field(column)
        if field is None or to is None or not isinstance(column, exp.Column):
            return None
        return column if DIGITS.get(type(field[1].type), 99) <= DIGITS.get(type(to), 0) else None

    def _compare(self, op: Comparison, left: exp.Expr, right: exp.Expr) -> Predicate | None:
        left, right = self._without_widening(left, right)
        a, b = self._operand(left), self._operand(right)
        if a is not None and b is not None:
            kind = comparison_type(a[1].type, b[1].type, ansi=self.context.settings.ansi)
            return None if kind is None else Compare(op, a[0], b[0], kind)
        column, op, node = (a, op, right) if a is not None else (b, MIRRORED[op], left)
        constants = self.context.constants
        constant = None if column is None else constants.value(node)
        if column is None or constant is None:
            return None
        kind = column[1].type
        if isinstance(kind, t.TimestampType) and isinstance(constant.type, t.StringType):
            constant = constants.timestamp(node)
        typed = self._typed(kind, constant)
        if typed is None:
            return None
        to = arrow_type(typed[0])
        return Compare(op, column[0], Literal(typed[1], to), to)

    def _typed(self, column: t.DataType, constant: Constant | None) -> tuple[t.DataType, Any] | None:
        return None if constant is None else with_constant(column, constant, ansi=self.context.settings.ansi)

    def _in(self, node: exp.In) -> Predicate | None:
        operand, *_ = self._without_widening(node.this, *node.expressions)
        column = self._operand(operand)
        if column is None or not node.expressions or any(node.args.get(k) for k in ("query", "unnest")):
            return None
        constants = [self.context.constants.value(item) for item in node.expressions]
        is_text = isinstance(column[1].type, t.StringType)
        if not is_text and any(c is not None and isinstance(c.type, t.StringType) for c in constants):
            return None  # Spark coerces all items together
        items = _all([self._typed(column[1].type, constant) for constant in constants])
        kinds = [kind for kind, _ in items or ()]
        are_alike = len({type(kind) in DIGITS or type(kind) for kind in kinds}) == 1
        kind = common_type(kinds, ansi=self.context.settings.ansi) if are_alike else None
        if kind is None or items is None:
            return None
        return InList(column[0], tuple(value for _, value in items), arrow_type(kind))

    def _like(self, node: exp.Like) -> Predicate | None:
        column = self._operand(node.this)
        pattern = self.context.constants.value(node.expression)
        if column is None or pattern is None or not isinstance(column[1].type, t.StringType):
            return None
        if not isinstance(pattern.value, str) or "\\" in pattern.value:
            return None
        like = Like(column[0], pattern.value)
        return Not(like) if node.args.get("negate") else like

    def _is(self, node: exp.Is) -> Predicate | None:
        column = self._field(unwrap(node.this))
        if column is None or column[1].arrow is None or not isinstance(node.expression, exp.Null):
            return None
        return IsNull(Column(ColumnRef(column[0], column[1].name)))

    # Values

    def value(self, node: exp.Expr) -> Typed | None:
        """Return the expression as a value, None where only Spark computes it."""
        node = unwrap(node)
        if is_constant(node):
            return self._constant(node)
        match node:
            case exp.Column():
                return self._column(node)
            case exp.Cast():  # TRY_CAST is the same where a cast cannot fail
                return self._cast(node)
            case exp.Add() | exp.Sub() | exp.Mul():
                left, right = self.value(node.this), self.value(node.expression)
                return left and right and arithmetic(_OPERATORS[type(node)], left, right)
            case exp.Mod():
                left, right = self.value(node.this), self.value(node.expression)
                return left and right and modulo(left, right)
            case exp.Case() | exp.If():
                return self._case(node)
            case exp.Coalesce():
                return self._coalesce(node)
            case exp.Substring() | exp.Left():
                return self._substring(node)
            case exp.Length():
                text = self._of_type(node.this, t.StringType())
                return Typed.of("length", _INT, text) if text else None
            case exp.DateDiff() if node.args.get("unit") is None:
                end, start = self._date(node.this), self._date(node.expression)
                return Typed.of("datediff", _INT, end, start) if end and start else None
            case exp.TsOrDsAdd() if node.text("unit").upper() == "DAY":
                date, days = self._date(node.this), self._days(node.expression)
                if date is None or days is None:
                    return None
                return Typed.of("date_add", t.DateType(), date, options=(days,))
        return self._date_part(node)

    def _column(self, node: exp.Column) -> Typed | None:
        meaning = self.lookup(node)
        if isinstance(meaning, exp.Expr):
            value = self.value(meaning)
            return value and replace(value, is_written=False)
        if meaning is None or meaning[1].arrow is None or not meaning[1].comparable:
            return None
        alias, field = meaning
        ends = self.ends(field.name) if type(field.type) in DIGITS else None
        return Typed(Column(ColumnRef(alias, field.name)), field.type, ends)

    def _constant(self, node: exp.Expr) -> Typed | None:
        constants = self.context.constants
        constant = constants.value(node)
        kinds = (t.NumericType, t.StringType, t.DateType)
        if constant is None or constant.value is None or not isinstance(constant.type, kinds):
            return None
        value = constant.value
        ends = (value, value) if isinstance(value, int) else None
        literal = Literal(value, arrow_type(constant.type))
        return Typed(literal, constant.type, ends, constants.is_written(node))

    def _whole(self, node: exp.Expr | None) -> int | None:
        """Return a whole number of 32 bits as written, None for anything else."""
        if node is None or not is_constant(node):
            return None
        constant = self.context.constants.value(node)
        fits = constant is not None and isinstance(constant.type, t.IntegerType)
        return constant.value if constant is not None and fits else None

    def _cast(self, node: exp.Cast) -> Typed | None:
        number, to = self.value(node.this), node.to
        if number is None:
            return None
        if to.this == exp.DType.DECIMAL:
            digits = [part.this.name for part in to.expressions if isinstance(part, exp.DataTypeParam)]
            if not digits or not all(each.isdigit() for each in digits):
                return None
            return cast(number, t.DecimalType(int(digits[0]), int(digits[1]) if len(digits) > 1 else 0))
        if to.this == exp.DType.TEXT and not to.expressions and type(number.type) in DIGITS:
            return Typed.of("cast", t.StringType(), number.value)
        kind = None if to.expressions else _CASTS.get(to.this)
        return None if kind is None else cast(number, kind)

    def _of_type(self, node: exp.Expr, kind: t.DataType) -> Value | None:
        typed = self.value(node)
        return typed.value if typed is not None and typed.type == kind else None

    def _date(self, node: exp.Expr) -> Value | None:
        return self._of_type(node.this if isinstance(node, exp.TsOrDsToDate) else node, t.DateType())

    def _days(self, node: exp.Expr) -> int | None:
        """Return by how many days a date moves; sqlglot reads DATE_SUB as the addition of ``days * -1``."""
        if isinstance(node, exp.Mul) and isinstance(node.expression, exp.Neg):
            days = node.this  # no piece of the text
            is_whole = isinstance(days, exp.Literal) and days.name.isdigit() and int(days.name) < 1 << 31
            return -int(days.name) if is_whole else None
        return self._whole(node)

    def _date_part(self, node: exp.Expr) -> Typed | None:
        function, argument = FUNCTIONS.get(type(node)), node.this
        part = None if function is None else function.part
        if isinstance(node, exp.Extract):
            part, argument = _EXTRACTED.get(node.name.upper()), node.expression
        elif isinstance(node, exp.Anonymous) and (node.name.lower(), len(node.expressions)) == ("weekday", 1):
            part, argument = "weekday", node.expressions[0]
        date = None if part is None else self._date(argument)
        return replace(Typed.of(part, _INT, date), ends=_PART_ENDS) if part and date else None

    def _substring(self, node: exp.Substring | exp.Left) -> Typed | None:
        text = self._of_type(node.this, t.StringType())
        is_left = isinstance(node, exp.Left)
        start = 1 if is_left else self._whole(node.args.get("start"))
        most = node.expression if is_left else node.args.get("length")
        length = self._whole(most)
        fits = most is None or (length is not None and length >= 0)
        if text is None or start is None or start < 1 or not fits:
            return None
        return Typed.of("substring", t.StringType(), text, options=(start, length))

    # Choices

    def common_type(self, values: Sequence[Typed | None]) -> t.DataType | None:
        """Return the type of a choice between values, None where only Spark computes one of them."""
        typed = _all(values)
        kinds = None if typed is None else [value.type for value in typed]
        return None if kinds is None else common_type(kinds, ansi=self.context.settings.ansi)

    def _case(self, node: exp.Case | exp.If) -> Typed | None:
        branches, default = branches_of(node)
        tests = [branch.this for branch in branches]
        if isinstance(node, exp.Case) and node.this is not None:
            return None
        self.context.constants.prepare([c for test in tests for c in constant_operands(test)])
        values = [branch.args.get("true") for branch in branches]
        return self._choice([self.predicate(test) for test in tests], [*values, default])

    def _coalesce(self, node: exp.Coalesce) -> Typed | None:
        nodes = [node.this, *node.expressions]
        columns = [self.value(each) for each in nodes[:-1] if isinstance(unwrap(each), exp.Column)]
        tests = [Not(IsNull(c.value)) for c in columns if c is not None and isinstance(c.value, Column)]
        return self._choice(tests, nodes) if len(tests) == len(nodes) - 1 else None

    def _choice(self, tests: Sequence[Predicate | None], nodes: Sequence[exp.Expr | None]) -> Typed | None:
        """Return a choice between values, some of which may be NULL; the last is that of all other rows."""
        is_null = [node is None or isinstance(unwrap(node), exp.Null) for node in nodes]
        # Each is translated once: it may be a choice again.
        shown = [node for node, null in zip(nodes, is_null, strict=True) if node is not None and not null]
        typed = [self.value(node) for node in shown]
        kind = self.common_type(typed)
        conditions: list[Predicate] | None = _all(tests)
        widened = None if kind is None else _all([value and cast(value, kind) for value in typed])
        if kind is None or conditions is None or widened is None:
            return None
        to, rest = arrow_type(kind), iter(widened)
        values = [Literal(None, to) if null else next(rest).value for null in is_null]
        whens = tuple(zip(conditions, values[:-1], strict=True))
        return Typed(CaseWhen(whens, values[-1], to), kind)


def _connect(kind: type[And | Or], terms: Iterable[Predicate | None]) -> Predicate | None:
    arguments: list[Predicate] | None = _all([*terms])
    return None if arguments is None else kind(tuple(arguments))


def _all(items: Sequence[Item | None]) -> list[Item] | None:
    """Return items of which none is missing, None where one is."""
    there = [item for item in items if item is not None]
    return there if len(there) == len(items) else None
