"""Expressions that Millrace evaluates itself, with Spark's semantics: values of a row, and predicates.

Only expressions that can neither raise nor depend on anything but their columns are in this
language; everything else of SQL stays with Spark. They are frozen, and they pickle.

A null among what a value is made of makes it null, except where :class:`CaseWhen` says otherwise.
Truth is three-valued. Numbers are compared after widening both sides to ``Compare.type``; NaN equals
NaN and is greater than every other number, -0.0 equals 0.0, strings compare by bytes.

The predicates are not handed to Arrow's scans as expressions: those take Parquet's bounds for the
truth about a column, although they leave NaN out, and so skip rows that pass in Spark.
"""

from __future__ import annotations

import decimal
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Literal as OneOf, TypeVar, cast

import pyarrow as pa

from millrace.predicates import PredicateSpec, Values

T = TypeVar("T")

_PLAIN = Values()

Part = OneOf["year", "quarter", "month", "week", "day", "dayofyear", "dayofweek", "weekday"]
ArithmeticOp = OneOf["+", "-", "*", "&"]
FunctionName = (
    Part | ArithmeticOp | OneOf["%", "cast", "date_add", "datediff", "timestamp_add", "substring", "length"]
)
Comparison = OneOf["=", "<=>", "<>", "<", "<=", ">", ">="]

MIRRORED: dict[Comparison, Comparison] = {
    "=": "=", "<=>": "<=>", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<=",
}  # fmt: skip
"""What each comparison is with its sides exchanged."""


@dataclass(frozen=True)
class ColumnRef:
    """A column of one relation of the block. ``relation`` is the alias, both exactly as in the spec.

    In a value that is computed of one row, whoever has it, the alias is empty.
    """

    relation: str
    column: str

    def __str__(self) -> str:
        return f"{self.relation}.{self.column}" if self.relation else self.column


@dataclass(frozen=True)
class Column:
    """The value of a column."""

    ref: ColumnRef


@dataclass(frozen=True, eq=False)
class Literal:
    """A constant. ``value`` is what ``pa.scalar(value, type)`` takes; None is SQL's NULL.

    A value of a column is an Arrow scalar: Python has no dates beyond year 9999, nor texts that are no UTF-8.
    Equal literals are one value in every expression, so -0.0 is not 0.0.
    """

    value: Any
    type: pa.DataType

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Literal) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)

    @property
    def _identity(self) -> tuple[Any, ...]:
        if self.value is None or not pa.types.is_floating(self.type):
            return self.value, self.type
        number = self.value.as_py() if isinstance(self.value, pa.Scalar) else self.value
        return number, self.type, math.copysign(1.0, number)


Operand = Column | Literal
"""What users' predicates are called with."""


@dataclass(frozen=True)
class Function:
    """A function of values, or an operator, as Spark has it; ``options`` are constants.

    - ``cast``: A number in a type that has it exactly, or as a double, in the nearest one; or in decimal
      digits.
    - ``+``, ``-``, ``*``: Every result fits ``type``, so none overflows. Whole numbers and doubles have that
      type on both sides. Decimals may have any; ``type`` then has the digits that the operation makes of
      theirs.
    - ``&``: The bits that two whole numbers of ``type`` have in common.
    - ``%``: What is left of a whole number after division by an option above 0, with the sign of the first.
    - A part of a ``date32``, an ``int32``: Weeks are those of ISO 8601. Days of a week begin with Sunday, 1
      (``dayofweek``), or Monday, 0 (``weekday``).
    - ``date_add``: A ``date32`` some days later, or earlier; beyond the last one it begins again with the
      first.
    - ``datediff``: How many days one ``date32`` lies behind another, an ``int32`` that overflows silently.
    - ``timestamp_add``: A timestamp some microseconds later, or earlier; null where there is no such time.
    - ``substring``: Some characters (code points) of a text, by the number of the first, from 1, and how
      many, at most; None for all others.
    - ``length``: The number of characters (code points) of a text, an ``int32``.
    """

    name: FunctionName
    type: pa.DataType
    arguments: tuple[Value, ...]
    options: tuple[int | None, ...] = ()


@dataclass(frozen=True)
class CaseWhen:
    """The value behind the first condition that is true, ``otherwise`` where none is; all of one type."""

    whens: tuple[tuple[Predicate, Value], ...]
    otherwise: Value
    type: pa.DataType


Value = Column | Literal | Function | CaseWhen


@dataclass(frozen=True)
class Compare:
    """``left op right`` after both sides are cast to ``type`` (a widening that cannot fail)."""

    op: Comparison
    left: Value
    right: Value
    type: pa.DataType


@dataclass(frozen=True)
class InList:
    """``operand IN (values…)``; a None among the values makes a miss NULL, as in SQL."""

    operand: Column
    values: tuple[Any, ...]
    type: pa.DataType


@dataclass(frozen=True)
class Like:
    """``operand LIKE pattern`` with backslash as the escape character."""

    operand: Column
    pattern: str


@dataclass(frozen=True)
class IsNull:
    """``operand IS NULL``; never null itself."""

    operand: Column


@dataclass(frozen=True)
class Truth:
    """A boolean column used as a predicate."""

    operand: Column


@dataclass(frozen=True)
class Call:
    """A user's predicate called with these arguments.

    It may raise and take long, so only a selection module evaluates it, and it stands alone: it is
    never an operand of AND, OR or NOT. ``values`` turns the argument columns into what the function gets.
    """

    spec: PredicateSpec
    arguments: tuple[Operand, ...]
    values: Values = _PLAIN


@dataclass(frozen=True)
class Exists:
    """Whether a relation beside the join has a match: a semijoin, or with ``negated`` an antijoin.

    It is true or false: what SQL does not know is false here. So it is never an operand of NOT, only of AND
    and OR, and only a selection module evaluates it.

    Attributes:
        relation: Alias of that relation.
        keys: ``join.x = relation.y`` each, at least one; the relation's column stands on the right.
        condition: What else has to be true of a match, over columns of both; None for nothing.
        negated: Whether there must be no match.
        null_aware: As NOT IN has it: while the relation has a tuple, a null on either side of the only key
            may be equal to anything. Only with ``negated``, one key and no condition.
    """

    relation: str
    keys: tuple[Compare, ...]
    condition: Predicate | None = None
    negated: bool = False
    null_aware: bool = False


@dataclass(frozen=True)
class LeftJoin:
    """A left outer join of the block with a relation beside it: no predicate, and no part of one.

    Each tuple is widened by the relation's columns: once for each match, once with nulls where there is none.

    Attributes:
        relation: Alias of that relation.
        keys: ``join.x = relation.y`` each, at least one; the relation's column stands on the right.
        condition: What else its ON asks of a match, over columns of both; None for nothing.
        bind: The columns, each in some key, by which an index is asked for the relation's tuples as they are
            needed; empty where all of them come before the first tuple of the join.
    """

    relation: str
    keys: tuple[Compare, ...]
    condition: Predicate | None = None
    bind: tuple[str, ...] = ()


@dataclass(frozen=True)
class Not:
    argument: Predicate


@dataclass(frozen=True)
class And:
    arguments: tuple[Predicate, ...]


@dataclass(frozen=True)
class Or:
    arguments: tuple[Predicate, ...]


Predicate = Compare | InList | Like | IsNull | Truth | Call | Exists | Not | And | Or


def type_of(value: Value) -> pa.DataType:
    """Return the type of a value that is computed; a column has that of its relation."""
    assert not isinstance(value, Column)
    return value.type


def _operands(node: Predicate | Value | LeftJoin) -> Iterator[Predicate | Value]:
    """Yield what an expression is made of, from left to right."""
    match node:
        case Compare(_, left, right):
            yield from (left, right)
        case InList(operand) | Like(operand) | IsNull(operand) | Truth(operand) | Not(operand):
            yield operand
        case Exists(_, keys, condition) | LeftJoin(_, keys, condition):
            yield from (*keys, *(() if condition is None else (condition,)))
        case And(arguments) | Or(arguments) | Call(_, arguments) | Function(_, _, arguments):
            yield from arguments
        case CaseWhen(whens, otherwise, _):
            yield from (part for when in whens for part in when)
            yield otherwise


def columns_of(node: Predicate | Value | LeftJoin) -> Iterator[ColumnRef]:
    """Yield every column of the join that the expression reads, possibly more than once."""
    if isinstance(node, Column):
        yield node.ref
        return
    own = node.relation if isinstance(node, Exists | LeftJoin) else None
    for operand in _operands(node):
        yield from (ref for ref in columns_of(operand) if ref.relation != own)


def rename_columns(node: T, rename: Callable[[ColumnRef], ColumnRef]) -> T:
    """Return an expression, or anything made of them, with other names for its columns."""
    if isinstance(node, ColumnRef):
        return cast("T", rename(node))
    if isinstance(node, tuple):
        return cast("T", tuple(rename_columns(each, rename) for each in node))
    if isinstance(node, Call):
        return cast("T", replace(node, arguments=rename_columns(node.arguments, rename)))
    if is_dataclass(node) and not isinstance(node, type):
        changed = {each.name: rename_columns(getattr(node, each.name), rename) for each in fields(node)}
        return cast("T", replace(node, **changed))
    return node


def exists_in(node: Predicate) -> Iterator[Exists]:
    """Yield what a predicate asks of relations beside the join; below NOT and in values it may not ask."""
    match node:
        case Exists():
            yield node
        case And(arguments) | Or(arguments):
            for argument in arguments:
                yield from exists_in(argument)


def beside(node: Exists | LeftJoin) -> tuple[str, ...]:
    """Return the columns that it reads of the relation beside the join, each once."""
    refs = (ref for operand in _operands(node) for ref in columns_of(operand))
    return tuple(dict.fromkeys(ref.column for ref in refs if ref.relation == node.relation))


def relations_of(node: Predicate | LeftJoin) -> frozenset[str]:
    """Return the aliases of the relations that the predicate reads."""
    return frozenset(ref.relation for ref in columns_of(node))


def terms(predicates: Iterable[Predicate]) -> Iterator[Predicate]:
    """Yield the terms of a conjunction."""
    for predicate in predicates:
        if isinstance(predicate, And):
            yield from terms(predicate.arguments)
        else:
            yield predicate


def and_all(predicates: tuple[Predicate, ...]) -> Predicate | None:
    """Return the conjunction, or None for an empty one."""
    if not predicates:
        return None
    return predicates[0] if len(predicates) == 1 else And(predicates)


def show(node: Predicate | Value | LeftJoin) -> str:
    """Return the expression as readable SQL, for plans and reports."""
    match node:
        case Column(ref):
            return str(ref)
        case Literal(value, _):
            return _show_literal(value)
        case Compare(op, left, right, _):
            return f"{show(left)} {op} {show(right)}"
        case InList(arg, values, _):
            return f"{show(arg)} IN ({', '.join(map(_show_literal, values))})"
        case Like(arg, pattern):
            return f"{show(arg)} LIKE {_show_literal(pattern)}"
        case IsNull(arg):
            return f"{show(arg)} IS NULL"
        case Truth(arg):
            return show(arg)
        case Call():
            return f"{node.spec.name}({', '.join(map(show, node.arguments))})"
        case Exists():
            return _show_exists(node)
        case LeftJoin(relation):
            return f"LEFT JOIN {relation} ON {_show_terms(node)}"
        case Not(arg):
            return f"NOT ({show(arg)})"
        case And(args):
            return " AND ".join(f"({show(a)})" for a in args)
        case Or(args):
            return " OR ".join(f"({show(a)})" for a in args)
        case _:
            return _show_computed(node)


def _show_computed(node: Value) -> str:
    match node:
        case Function("cast", kind, (arg,)):
            return f"cast({show(arg)} as {kind})"
        case Function("+" | "-" | "*" | "&" | "%" as op, _, arguments, options):
            return "(" + f" {op} ".join([*map(show, arguments), *map(str, options)]) + ")"
        case Function("timestamp_add", _, (time,), (int(microseconds),)):
            return f"({show(time)} {'-' if microseconds < 0 else '+'} {abs(microseconds) / 1e6:g} s)"
        case Function(name, _, arguments, options):
            constants = [str(option) for option in options if option is not None]
            return f"{name}({', '.join([*map(show, arguments), *constants])})"
        case CaseWhen(whens, otherwise):
            branches = " ".join(f"WHEN {show(test)} THEN {show(value)}" for test, value in whens)
            return f"CASE {branches} ELSE {show(otherwise)} END"
    raise TypeError(f"{node!r} is no expression")


def _show_literal(value: Any) -> str:
    if isinstance(value, decimal.Decimal | int | float) and not isinstance(value, bool):
        return str(value)
    return "NULL" if value is None else "'" + str(value).replace("'", "''") + "'"


def _show_exists(node: Exists) -> str:
    if node.null_aware:
        (key,) = node.keys
        words = [show(key.left), "NOT IN (SELECT", show(key.right), "FROM", node.relation]
    else:
        terms = _show_terms(node)
        word = "NOT EXISTS" if node.negated else "EXISTS"
        words = [word, "(SELECT * FROM", node.relation, "WHERE", terms]
    return " ".join(words) + ")"


def _show_terms(node: Exists | LeftJoin) -> str:
    return " AND ".join(map(show, node.keys if node.condition is None else (*node.keys, node.condition)))
