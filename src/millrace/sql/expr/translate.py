"""From SQL conjuncts to predicates that Millrace evaluates itself.

Only what can neither raise nor depend on anything but its columns is translated: comparisons of
columns and constants, BETWEEN, IN lists, LIKE, IS NULL, NOT, AND, OR and boolean columns. ``None``
means that the expression stays with Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import types as t
from sqlglot import exp

from millrace.engine.expressions import (
    And,
    Column,
    ColumnRef,
    Compare,
    Comparison,
    InList,
    IsNull,
    Like,
    Literal,
    Not,
    Operand,
    Or,
    Predicate,
    Truth,
)
from millrace.sql.expr.constants import Constants, is_constant
from millrace.sql.expr.types import Constant, Field, comparison_type, widest_decimal, with_constant
from millrace.sql.syntax.parse import conjuncts, disjuncts, unwrap

_COMPARISONS: dict[type[exp.Expr], Comparison] = {
    exp.EQ: "=",
    exp.NEQ: "<>",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
    exp.NullSafeEQ: "<=>",
}
_FLIPPED: dict[Comparison, Comparison] = {
    "=": "=",
    "<>": "<>",
    "<=>": "<=>",
    "<": ">",
    "<=": ">=",
    ">": "<",
    ">=": "<=",
}

Lookup = Callable[[exp.Column], tuple[str, Field] | None]


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
        lookup: Returns the relation's alias and the field that a column of the block means, or None.
        computed: The same for an expression that is no column.
        constants: Values of constant operands.
        ansi: Whether the session coerces by the ANSI rules.
    """

    lookup: Lookup
    constants: Constants
    ansi: bool
    computed: Callable[[exp.Expr], tuple[str, Field] | None] | None = None

    def predicate(self, node: exp.Expr) -> Predicate | None:
        """Return the expression as a predicate, or None when Spark has to evaluate it."""
        match unwrap(node):
            case exp.And() as both:
                return self._connect(And, list(conjuncts(both)))
            case exp.Or() as either:
                return self._connect(Or, list(disjuncts(either)))
            case exp.Not(this=inner):
                argument = self.predicate(inner)
                return None if argument is None else Not(argument)
            case exp.Between() as between:
                return self._between(between)
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
                known = self._column(column)
                boolean = known is not None and isinstance(known[1].type, t.BooleanType)
                return Truth(known[0]) if known is not None and boolean else None
            case exp.Expr() as other if type(other) in _COMPARISONS:
                return self._compare(_COMPARISONS[type(other)], other.this, other.expression)
        return None

    def _connect(self, kind: type[And | Or], terms: list[exp.Expr]) -> Predicate | None:
        arguments = [self.predicate(term) for term in terms]
        known = [a for a in arguments if a is not None]
        return kind(tuple(known)) if len(known) == len(arguments) else None

    def _column(self, node: exp.Expr) -> tuple[Column, Field] | None:
        inner = unwrap(node)
        found = self.lookup(inner) if isinstance(inner, exp.Column) else None
        if found is None and self.computed is not None:
            found = self.computed(inner)
        if found is None or not found[1].comparable:
            return None
        return Column(ColumnRef(found[0], found[1].name)), found[1]

    def _compare(self, op: Comparison, left: exp.Expr, right: exp.Expr) -> Predicate | None:
        a, b = self._column(left), self._column(right)
        if a is not None and b is not None:
            kind = comparison_type(a[1].type, b[1].type, ansi=self.ansi)
            return None if kind is None else Compare(op, a[0], b[0], kind)
        if a is not None:
            return self._with_constant(op, a, right)
        if b is not None:
            return self._with_constant(_FLIPPED[op], b, left)
        return None

    def _with_constant(
        self, op: Comparison, column: tuple[Column, Field], node: exp.Expr
    ) -> Predicate | None:
        constant = self.constants.value(node)
        if constant is None:
            return None
        if isinstance(column[1].type, t.TimestampType) and isinstance(constant.type, t.StringType):
            constant = self.constants.timestamp(node)
        typed = None if constant is None else with_constant(column[1].type, constant, ansi=self.ansi)
        if typed is None:
            return None
        literal: Operand = Literal(typed[1], typed[0])
        return Compare(op, column[0], literal, typed[0])

    def _between(self, node: exp.Between) -> Predicate | None:
        if node.args.get("symmetric"):
            return None
        low = self._compare(">=", node.this, node.args["low"])
        high = self._compare("<=", node.this, node.args["high"])
        return None if low is None or high is None else And((low, high))

    def _in(self, node: exp.In) -> Predicate | None:
        column = self._column(node.this)
        if column is None or not node.expressions or any(node.args.get(k) for k in ("query", "unnest")):
            return None
        values = [self.constants.value(item) for item in node.expressions]
        typed = [self._listed(column[1], value) for value in values]
        known = [pair for pair in typed if pair is not None]
        if len(known) != len(typed):
            return None
        kinds = {kind for kind, _ in known}
        kind = kinds.pop() if len(kinds) == 1 else _widest(kinds)
        return None if kind is None else InList(column[0], tuple(v for _, v in known), kind)

    def _listed(self, column: Field, value: Constant | None) -> tuple[pa.DataType, Any] | None:
        """Type one item of an IN list, where Spark coerces all items together."""
        if value is None:
            return None
        if isinstance(value.type, t.StringType) and not isinstance(column.type, t.StringType):
            return None
        return with_constant(column.type, value, ansi=self.ansi)

    def _like(self, node: exp.Like) -> Predicate | None:
        column = self._column(node.this)
        pattern = self.constants.value(node.expression)
        if column is None or pattern is None or not isinstance(column[1].type, t.StringType):
            return None
        if not isinstance(pattern.value, str) or "\\" in pattern.value:
            return None
        like = Like(column[0], pattern.value)
        return Not(like) if node.args.get("negate") else like

    def _is(self, node: exp.Is) -> Predicate | None:
        inner = unwrap(node.this)
        found = self.lookup(inner) if isinstance(inner, exp.Column) else None
        if found is None or found[1].arrow is None or not isinstance(node.expression, exp.Null):
            return None
        test = IsNull(Column(ColumnRef(found[0], found[1].name)))
        return Not(test) if node.args.get("negate") else test


def _widest(kinds: set[pa.DataType]) -> pa.DataType | None:
    """Return the type that holds the values of integer or decimal types, None for other mixtures."""
    if all(pa.types.is_integer(kind) for kind in kinds):
        return max(kinds, key=lambda kind: int(kind.bit_width))
    if all(pa.types.is_decimal(kind) for kind in kinds):
        return widest_decimal(*((int(kind.precision), int(kind.scale)) for kind in kinds))
    return None
