"""Predicates that Millrace evaluates itself, with Spark's semantics, on Arrow columns.

Only expressions that can neither raise nor depend on anything but their columns are in this
language; everything else of SQL stays with Spark. Truth is three-valued. Numbers are compared
after widening both sides to ``Compare.type``; NaN equals NaN and is greater than every other
number, -0.0 equals 0.0, strings compare by bytes.

The predicates are not handed to Arrow's scans as expressions: those take Parquet's bounds for the
truth about a column, although they leave NaN out, and so skip rows that pass in Spark.
"""

from __future__ import annotations

import decimal
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any, Literal as Choice

import pyarrow as pa
import pyarrow.compute as pc

from millrace.predicates import PlainValues, PredicateSpec, Values

_PLAIN = PlainValues()

Comparison = Choice["=", "<=>", "<>", "<", "<=", ">", ">="]


@dataclass(frozen=True)
class ColumnRef:
    """A column of one relation of the block. ``relation`` is the alias, both exactly as in the spec."""

    relation: str
    column: str

    def __str__(self) -> str:
        return f"{self.relation}.{self.column}"


@dataclass(frozen=True)
class Column:
    """The value of a column."""

    ref: ColumnRef


@dataclass(frozen=True)
class Literal:
    """A constant. ``value`` is what ``pa.scalar(value, type)`` takes; None is SQL's NULL.

    A value of a column is an Arrow scalar: Python has no dates beyond year 9999, nor texts that are no UTF-8.
    """

    value: Any
    type: pa.DataType


Operand = Column | Literal


@dataclass(frozen=True)
class Compare:
    """``left op right`` after both sides are cast to ``type`` (a widening that cannot fail)."""

    op: Comparison
    left: Operand
    right: Operand
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
class Overlap:
    """Whether two sets of bits have one in common: each is written in columns of ``uint64``, as many."""

    left: tuple[Column, ...]
    right: tuple[Column, ...]


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
class Not:
    argument: Predicate


@dataclass(frozen=True)
class And:
    arguments: tuple[Predicate, ...]


@dataclass(frozen=True)
class Or:
    arguments: tuple[Predicate, ...]


Predicate = Compare | InList | Like | IsNull | Truth | Overlap | Call | Exists | Not | And | Or


def columns_of(node: Predicate | Operand) -> Iterator[ColumnRef]:
    """Yield every column of the join that the expression reads, possibly more than once."""
    match node:
        case Column(ref):
            yield ref
        case Literal():
            return
        case Compare(_, left, right, _):
            yield from columns_of(left)
            yield from columns_of(right)
        case InList(operand, _, _) | Like(operand, _) | IsNull(operand) | Truth(operand):
            yield from columns_of(operand)
        case Overlap(left, right):
            yield from (each.ref for each in (*left, *right))
        case Call():
            for each in node.arguments:
                yield from columns_of(each)
        case Exists(relation):
            yield from (ref for ref in _matched(node) if ref.relation != relation)
        case Not(argument):
            yield from columns_of(argument)
        case And(arguments) | Or(arguments):
            for argument in arguments:
                yield from columns_of(argument)


def _matched(node: Exists) -> Iterator[ColumnRef]:
    for part in (*node.keys, *(() if node.condition is None else (node.condition,))):
        yield from columns_of(part)


def exists_in(node: Predicate) -> Iterator[Exists]:
    """Yield what a predicate asks of relations beside the join."""
    match node:
        case Exists():
            yield node
        case And(arguments) | Or(arguments):
            for argument in arguments:
                yield from exists_in(argument)


def beside(node: Exists) -> tuple[str, ...]:
    """Return the columns that it reads of the relation beside the join, each once."""
    return tuple(dict.fromkeys(ref.column for ref in _matched(node) if ref.relation == node.relation))


def relations_of(node: Predicate) -> frozenset[str]:
    """Return the aliases of the relations that the predicate reads."""
    return frozenset(ref.relation for ref in columns_of(node))


def widen(values: Any, to: pa.DataType) -> Any:
    """Cast an array or a scalar as Spark casts before it compares; ``to`` is the wider type.

    Integers beyond what a float holds are rounded rather than refused. Decimals become floats by
    way of their text: Arrow multiplies them by an inexact power of ten, so that 1.10 is not 1.1.
    """
    if values.type == to:
        return values
    if pa.types.is_floating(to) and pa.types.is_decimal(values.type):
        values = pc.cast(values, pa.string())
    return pc.cast(values, options=pc.CastOptions(to, allow_float_truncate=True))


_ORDER = {
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
    "=": pc.equal,
    "<>": pc.not_equal,
}


def _float_compare(op: str, left: Any, right: Any) -> Any:
    """Compare floats with NaN equal to itself and above every other number (Spark's order)."""
    left_nan, right_nan = pc.is_nan(left), pc.is_nan(right)
    match op:
        case "=":
            return pc.or_kleene(pc.equal(left, right), pc.and_kleene(left_nan, right_nan))
        case "<>":
            return pc.invert(_float_compare("=", left, right))
        case "<":
            return pc.or_kleene(pc.less(left, right), pc.and_kleene(right_nan, pc.invert(left_nan)))
        case ">":
            return _float_compare("<", right, left)
        case "<=":
            return pc.invert(_float_compare("<", right, left))
        case _:
            return pc.invert(_float_compare("<", left, right))


def _like(values: Any, pattern: str) -> Any:
    """Match by Arrow's LIKE, or by a regular expression where an escaped backslash would mislead it."""
    if "\\\\" not in pattern:
        return pc.match_like(values, pattern)
    tokens = re.findall(r"\\.|.", pattern, re.DOTALL)
    parts = [{"%": ".*", "_": "."}.get(token) or re.escape(token[-1]) for token in tokens]
    return pc.match_substring_regex(values, rf"(?s)\A(?:{''.join(parts)})\z")


def evaluate(node: Predicate, columns: Mapping[ColumnRef, pa.Array]) -> pa.Array | pa.Scalar:
    """Return the predicate's truth for every row: a boolean array with nulls for unknown.

    A predicate that reads no column gives a boolean scalar.
    """

    def operand(side: Operand, to: pa.DataType) -> Any:
        value = pa.scalar(side.value, side.type) if isinstance(side, Literal) else columns[side.ref]
        return widen(value, to)

    def build(child: Predicate) -> Any:
        return evaluate(child, columns)

    match node:
        case Compare("<=>", left, right, to):
            both = pc.and_(pc.is_null(operand(left, to)), pc.is_null(operand(right, to)))
            same = pc.coalesce(build(Compare("=", left, right, to)), pa.scalar(False))
            return pc.or_(both, same)
        case Compare(op, left, right, to):
            a, b = operand(left, to), operand(right, to)
            if pa.types.is_floating(to):
                return _float_compare(op, a, b)
            return _ORDER[op](a, b)
        case InList(arg, values, to):
            tests: list[Predicate] = [Compare("=", arg, Literal(v, to), to) for v in values]
            if pa.types.is_floating(to) or any(v is None for v in values):
                return build(Or(tuple(tests)))
            data = operand(arg, to)
            found = pc.is_in(data, value_set=pa.array(values, to))
            return pc.if_else(pc.is_null(data), pa.scalar(None, pa.bool_()), found)
        case Like(arg, pattern):
            return _like(columns[arg.ref], pattern)
        case IsNull(arg):
            return pc.is_null(columns[arg.ref])
        case Truth(arg):
            return columns[arg.ref]
        case Overlap(ours, theirs):
            words = (
                pc.bit_wise_and(columns[a.ref], columns[b.ref]) for a, b in zip(ours, theirs, strict=True)
            )
            return reduce(pc.or_, (pc.not_equal(each, pa.scalar(0, pa.uint64())) for each in words))
        case Call() | Exists():
            raise TypeError(f"{show(node)} is for a selection module to evaluate")
        case Not(arg):
            return pc.invert(build(arg))
        case And(args):
            return reduce(pc.and_kleene, map(build, args))
        case Or(args):
            return reduce(pc.or_kleene, map(build, args))


def and_all(predicates: tuple[Predicate, ...]) -> Predicate | None:
    """Return the conjunction, or None for an empty one."""
    if not predicates:
        return None
    return predicates[0] if len(predicates) == 1 else And(predicates)


def show(node: Predicate | Operand) -> str:
    """Return the expression as readable SQL, for plans and reports."""

    def literal(value: Any) -> str:
        if isinstance(value, decimal.Decimal | int | float) and not isinstance(value, bool):
            return str(value)
        return "NULL" if value is None else "'" + str(value).replace("'", "''") + "'"

    match node:
        case Column(ref):
            return str(ref)
        case Literal(value, _):
            return literal(value)
        case Compare(op, left, right, _):
            return f"{show(left)} {op} {show(right)}"
        case InList(arg, values, _):
            return f"{show(arg)} IN ({', '.join(map(literal, values))})"
        case Like(arg, pattern):
            return f"{show(arg)} LIKE {literal(pattern)}"
        case IsNull(arg):
            return f"{show(arg)} IS NULL"
        case Truth(arg):
            return show(arg)
        case Overlap(ours, theirs):
            return " OR ".join(f"{show(a)} & {show(b)} <> 0" for a, b in zip(ours, theirs, strict=True))
        case Call():
            return f"{node.spec.name}({', '.join(map(show, node.arguments))})"
        case Exists():
            return _show_exists(node)
        case Not(arg):
            return f"NOT ({show(arg)})"
        case And(args):
            return " AND ".join(f"({show(a)})" for a in args)
        case Or(args):
            return " OR ".join(f"({show(a)})" for a in args)


def _show_exists(node: Exists) -> str:
    if node.null_aware:
        (key,) = node.keys
        words = [show(key.left), "NOT IN (SELECT", show(key.right), "FROM", node.relation]
    else:
        terms = " AND ".join(map(show, node.keys if node.condition is None else (*node.keys, node.condition)))
        word = "NOT EXISTS" if node.negated else "EXISTS"
        words = [word, "(SELECT * FROM", node.relation, "WHERE", terms]
    return " ".join(words) + ")"
