"""Predicates: Spark reads their text, and is the oracle of their truth."""

from __future__ import annotations

import datetime as dt
import math
import random
from collections.abc import Sequence
from decimal import Decimal
from itertools import combinations, product
from typing import Any
from unittest import mock

import pyarrow as pa

from millrace.engine.plan import expressions
from millrace.engine.plan.evaluation import compute, evaluate
from millrace.engine.plan.expressions import (
    And,
    CaseWhen,
    Column,
    ColumnRef,
    Compare,
    Function,
    InList,
    IsNull,
    Like,
    Literal,
    Not,
    Operand,
    Or,
    Predicate,
    Truth,
    show,
)
from tests.engine.eddy.oracle import wider

_NIGHT = dt.datetime(2024, 3, 31, 1, 30, tzinfo=dt.UTC)
VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "i8": (pa.int8(), [-128, -1, 0, 1, 127]),
    "i32": (pa.int32(), [-(2**31), -1, 0, 1, 110, 2**24 + 1]),
    "i64": (pa.int64(), [-(2**63), 0, 1, 2**53, 2**53 + 1, 2**63 - 1]),
    "f32": (pa.float32(), [math.nan, -0.0, 0.0, 1.5, math.inf, -1.0, 16777216.0]),
    "f64": (pa.float64(), [math.nan, -0.0, 0.0, 1.1, -math.inf, -834.56, 2.0**53, 0.1]),
    "g64": (pa.float64(), [math.nan, -0.0, 0.0, 1.1, math.inf, 1.5]),
    "d9": (pa.decimal128(9, 2), [Decimal(t) for t in ("-834.56", "0.00", "1.10", "1.50", "110.00")]),
    "d18": (pa.decimal128(18, 6), [Decimal(t) for t in ("-834.560000", "1.100000", "1.100001", "0.100000")]),
    "d38": (pa.decimal128(38, 0), [Decimal(t) for t in ("-1", "0", "1", "9" * 38)]),
    "s": (pa.string(), ["", "a", "A", "é", "a ", "it's", "😀", "a\nb"]),
    "t": (pa.string(), ["", "a", "b", "a\x00", "éa"]),
    "b": (pa.bool_(), [True, False]),
    "c": (pa.bool_(), [True, False]),
    "x": (pa.binary(), [b"", b"\x00", b"\x80", b"a"]),
    "d": (pa.date32(), [dt.date(1, 1, 1), dt.date(1969, 12, 31), dt.date(2024, 3, 31)]),
    "z": (pa.timestamp("us", tz="UTC"), [_NIGHT, _NIGHT + dt.timedelta(microseconds=1)]),
    "n": (pa.timestamp("us"), [m.replace(tzinfo=None) for m in (_NIGHT, _NIGHT - dt.timedelta(days=30_000))]),
}
PAIRS = [*combinations(("i8", "i32", "i64", "d9", "d18", "f32", "f64"), 2), ("d38", "f64")]
PAIRS += [("f64", "g64"), ("s", "t"), ("b", "c")]
MIXED = [(a, b, wider(VALUES[a][0], VALUES[b][0])) for a, b in PAIRS]
"""Columns to be compared, with the type that Spark widens both to."""
OPERATORS = ("=", "<=>", "<>", "<", "<=", ">", ">=")
ROWS = 64


def column(name: str) -> Column:
    return Column(ColumnRef("t", name))


def table(seed: int = 7) -> pa.Table:
    """Return rows of random values, a fifth of them null; equal values meet often."""
    draw = random.Random(seed)
    return pa.table(
        {
            name: pa.array([None if draw.random() < 0.2 else draw.choice(values) for _ in range(ROWS)], kind)
            for name, (kind, values) in VALUES.items()
        }
    )


def literal(name: str, draw: random.Random, nulls: float = 0.1) -> Literal:
    kind, values = VALUES[name]
    return Literal(None if draw.random() < nulls else draw.choice(values), kind)


def leaf(draw: random.Random) -> Predicate:
    name = draw.choice([*VALUES])
    kind = VALUES[name][0]
    match draw.randrange(7):
        case 0:
            left, right, to = draw.choice(MIXED)
            pair = [column(left), column(right)]
            draw.shuffle(pair)
            return Compare(draw.choice(OPERATORS), pair[0], pair[1], to)
        case 1 | 2:
            sides: list[Operand] = [column(name), literal(name, draw)]
            draw.shuffle(sides)
            return Compare(draw.choice(OPERATORS), sides[0], sides[1], kind)
        case 3:
            left, right, to = draw.choice(MIXED)
            return Compare(draw.choice(OPERATORS), column(left), literal(right, draw), to)
        case 4:
            left, right, to = draw.choice([draw.choice(MIXED), (name, name, kind)])
            values = [literal(right, draw, 0.15).value for _ in range(draw.randint(1, 4))]
            return InList(column(left), tuple(values), to)
        case 5:
            return IsNull(column(name))
    return draw.choice([Truth(column("b")), Like(column("s"), draw.choice(["a%", "%\n%", "_", "%'%", ""]))])


def tree(draw: random.Random, depth: int) -> Predicate:
    if depth == 0 or draw.random() < 0.3:
        return leaf(draw)
    match draw.randrange(3):
        case 0:
            return Not(tree(draw, depth - 1))
        case 1:
            return And(tuple(tree(draw, depth - 1) for _ in range(draw.randint(1, 3))))
    return Or(tuple(tree(draw, depth - 1) for _ in range(draw.randint(1, 3))))


def ours(node: Predicate, data: pa.Table) -> list[bool | None]:
    arrays = {ColumnRef("t", name): data[name].combine_chunks() for name in data.column_names}
    truth = evaluate(node, arrays)
    return [truth.as_py()] * data.num_rows if isinstance(truth, pa.Scalar) else truth.to_pylist()


def literal_of(value: Any) -> str:
    """Return a constant as Spark's SQL has it, to the bit."""
    match value:
        case bool() | None:
            return "NULL" if value is None else str(value)
        case float():
            return f"double('{value}')"
        case bytes():
            return f"X'{value.hex()}'"
        case dt.datetime():
            return f"TIMESTAMP{'_NTZ' if value.tzinfo is None else ''} '{value}'"
        case dt.date():
            return f"DATE '{value}'"
        case str():
            return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
    return f"{value}{'BD' if isinstance(value, Decimal) else 'L'}"


def check(nodes: Sequence[Predicate], data: pa.Table, spark: Any) -> None:
    """Compare the truth of each predicate for each row with Spark's, which reads it as text, in one job."""
    with mock.patch.object(expressions, "_show_literal", literal_of):
        texts = [show(node) for node in nodes]
    found = spark.createDataFrame(data).alias("t").selectExpr(*texts).collect()
    for node, text, truth in zip(nodes, texts, zip(*found, strict=True), strict=True):
        assert ours(node, data) == [*truth], text


def test_predicates_mean_what_they_mean_in_spark(spark: Any) -> None:
    """Each operator on each pair of types, and each column with each literal, nulls and NaN included.

    And NOT, AND and OR over everything: truth is three-valued all the way up.
    """
    nodes: list[Predicate] = [
        Compare(op, column(left), column(right), to) for left, right, to in MIXED for op in OPERATORS
    ]
    nodes += [
        Compare(op, column("f64"), Literal(v, pa.float64()), pa.float64())
        for op in OPERATORS
        for v in (math.nan, -0.0, None)
    ]
    for name, (kind, values) in VALUES.items():
        nodes += [InList(column(name), some, kind) for some in (tuple(values[:2]), (values[0], None))]
    draw = random.Random(11)
    check([*nodes, *(tree(draw, 3) for _ in range(150))], table(), spark)


def test_like_means_what_it_means_in_spark(spark: Any) -> None:
    """Wildcards, escapes, newlines, and characters that are special to regular expressions."""
    tokens = ["a", "%", "_", "\\%", "\\_", "\\\\", ".", "\n", "é", "(", "$"]
    patterns = ["", *("".join(p) for n in (1, 2) for p in product(tokens, repeat=n))]
    draw = random.Random(3)
    patterns += ["".join(draw.choice(tokens[:8]) for _ in range(draw.randint(3, 6))) for _ in range(120)]
    patterns += ["%a\\\\", "\\\\a%", "%a\\\\b", "a\\\\%", "%\\\\%", "%\\%", "\\%%"]
    texts = ["".join(p) for n in range(3) for p in product("ab%_\\\n.", repeat=n)]
    texts += ["é", "aé", "a😀a", "(a)", "^a$", "$", "a\\b", "a%b", "a\\\\b", "ba\\", "aaa", None]
    check([Like(column("s"), pattern) for pattern in patterns], pa.table({"s": pa.array(texts)}), spark)


def test_zeros_of_two_signs_are_two_values():
    """What is computed once for equal expressions is not computed of -0.0 for 0.0."""
    k, x = Column(ColumnRef("", "k")), Column(ColumnRef("", "x"))
    plus, minus = (Function("+", pa.float64(), (x, Literal(zero, pa.float64()))) for zero in (0.0, -0.0))
    case = CaseWhen(((Compare("=", k, Literal(1, pa.int64()), pa.int64()), plus),), minus, pa.float64())
    columns = {"k": pa.array([1, 2]), "x": pa.array([-0.0, -0.0])}
    assert [math.copysign(1, number) for number in compute(case, columns, 2).to_pylist()] == [1, -1]
