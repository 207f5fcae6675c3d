"""What tasks compute of a file's columns is what Spark computes, at the ends of every type too."""

from __future__ import annotations

import itertools
import random
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import types as t
from sqlglot import parse_one

import millrace
from millrace.engine.plan.evaluation import compute
from millrace.engine.plan.expressions import Column, ColumnRef, Function, Literal
from millrace.spark.types import arrow_type
from millrace.sql.expr.constants import _evaluate
from millrace.sql.expr.functions import Typed, arithmetic
from millrace.sql.expr.types import common_type
from tests.session import changed
from tests.sql import cases
from tests.sql.answers import WITHOUT_ANSI
from tests.sql.compare import bag
from tests.sql.small_tables import register, write

EXPRESSIONS = cases.lines("values")
"""What tasks compute themselves, and conditions that may fail, or be something else in a task."""
COMPUTED = EXPRESSIONS["tasks"]

INTS = [0, 1, -1, 7, -7, 100, (1 << 31) - 1, -(1 << 31)]
LONGS = [*INTS, (1 << 63) - 1, -(1 << 63), 10**12]
# Days since 1970: leap days, turns of years and weeks, and years that neither Python nor Arrow has.
DAYS = [0, -1, 59, 365, 19_722, 19_723, -719_162, 2_932_896, 12_000_000, -12_000_000, INTS[-2], INTS[-1]]
TEXTS = ["", "a", "ab", "Zürich", "日本語テキスト", "a\u0301bc", "🎉x🎉", " x ", "it's", "%_\\"]
# No UTF-8: bytes that begin nothing, too few behind one that begins, halves of pairs, beyond the last one.
NO_TEXTS = [b"\xff\xfe\x80", b"a\xffb", b"\x80ab", b"\xe2abc", b"\xf0\x90abcd"]
NO_TEXTS += [b"\xed\xa0\x80ab", b"\xf4\x90\x80\x80a", b"\xc0a"]
DOUBLES = [0.0, -0.0, 1.5, -2.25, float("nan"), float("inf"), 1e300, 5e-324]
PRICES = [Decimal("0.00"), Decimal("-1.25"), Decimal("99999999.99"), Decimal("12.34"), Decimal("1.10")]

NUMBERS = {
    "b": "tinyint", "y": "smallint", "i": "int", "l": "bigint", "f": "float", "x": "double",
    "n": "decimal(10,2)", "p": "decimal(18,6)", "q": "decimal(5,5)", "w": "decimal(37,10)",
}  # fmt: skip
"""Columns of every type of number."""

WRITTEN = ("0", "1", "-7", "300", "2147483648", "-3000000000", "1.10", "0.05", "-12.5")


def _table(rows: int) -> pa.Table:
    rng = random.Random(17)

    def some(values: list, kind: pa.DataType) -> pa.Array:
        drawn = [None if rng.random() < 0.1 else rng.choice(values) for _ in range(rows)]
        return pa.array(drawn, kind)

    days = [*DAYS, *(rng.randrange(-200_000, 200_000) for _ in range(200))]
    fine = [Decimal(rng.randrange(-(10**15) + 1, 10**15)).scaleb(-6) for _ in range(200)]
    return pa.table(
        {
            "id": pa.array(range(rows), pa.int64()),
            "i": some(INTS, pa.int32()),
            "l": some(LONGS, pa.int64()),
            "b": some([0, 5, -5, 127, -128], pa.int8()),
            "y": some([0, 5, -5, 32767, -32768], pa.int16()),
            "small": some(list(range(-9, 10)), pa.int32()),
            "d": some(days, pa.int32()).view(pa.date32()),
            "e": some(days, pa.int32()).view(pa.date32()),
            "s": some([*(text.encode() for text in TEXTS), *NO_TEXTS], pa.binary()).view(pa.string()),
            "x": some(DOUBLES, pa.float64()),
            "n": some(PRICES, pa.decimal128(10, 2)),
            "price": some(fine, pa.decimal128(15, 6)),
        }
    )


@pytest.fixture(scope="module")
def tables(spark, tmp_path_factory):
    """The rows, and Spark's values of all expressions for each, both as files."""
    folder = tmp_path_factory.mktemp("values")
    own, theirs = str(folder / "own.parquet"), str(folder / "theirs")
    pq.write_table(_table(600), own, row_group_size=150)
    items = [f"{text} AS e{n}" for n, text in enumerate(COMPUTED)]
    spark.read.parquet(own).selectExpr("id", *items).write.parquet(theirs)
    return {"own": own, "theirs": theirs}


def _found(spark, tables, numbers) -> millrace.Query:
    tests = " AND ".join(f"{COMPUTED[n]} <=> t.e{n}" for n in numbers)
    return millrace.query(
        f"SELECT count(*) FROM own JOIN theirs AS t ON own.id = t.id AND {tests}", spark=spark, tables=tables
    )


def _line(found) -> str:
    """What is said of the first table."""
    (line,) = [line for line in found.explain().splitlines() if line.startswith("  own: ")]
    return line


def test_every_value_is_sparks(spark, tables):
    """All at once; one by one only to tell which are not."""
    every = range(len(COMPUTED))
    found = _found(spark, tables, every)
    if found.df.collect()[0][0] != 600:
        wrong = [COMPUTED[n] for n in every if _found(spark, tables, [n]).df.collect()[0][0] != 600]
        pytest.fail(f"not Spark's: {wrong}")
    assert " row groups of " in _line(found) and "Spark evaluates" not in found.explain()


def test_what_is_not_certain_stays_with_spark(spark, tables):
    text = "SELECT count(*) FROM own JOIN theirs AS t ON own.id = t.id WHERE "
    for condition in EXPRESSIONS["spark"]:
        shown = millrace.query(text + condition, spark=spark, tables=tables).explain()
        assert "own: Spark filters it by" in shown, condition


def test_a_filter_is_computed_where_files_are_read(spark, tables):
    """Also a column that repeats few texts, which is evaluated once an entry."""
    condition = "substring(s, 1, 1) IN ('a', 'Z') AND year(d) > 1900 AND own.id % 3 = 1"
    text = f"SELECT own.id, length(s) AS n FROM own JOIN theirs AS t ON own.id = t.id WHERE {condition}"
    found = millrace.query(text, spark=spark, tables=tables)
    frames = {name: spark.read.parquet(path) for name, path in tables.items()}
    expected = spark.sql(
        text.replace("FROM own", "FROM {own} AS own").replace("theirs", "{theirs}"), **frames
    )
    assert sorted(found.df.collect()) == sorted(expected.collect())
    told = "own.(substring(s, 1, 1)) IN ('a', 'Z') AND own.(year(d)) > 1900 AND own.(own.id % 3) = 1"
    assert f"where {told}" in _line(found) and found.report().blocks


def test_arithmetic_in_a_key_is_null_where_it_raises_unless_something_is_made_of_that(spark, tables):
    """A key with a null joins nothing; one that was made of a null would join."""
    text = "SELECT count(*) FROM own JOIN theirs AS t ON {} = CAST(t.id AS STRING)"
    keys = ("concat(s, {})", "concat_ws('-', s, {})", "coalesce({}, s)")
    texts = [text.format(key.format("CAST(l + l AS STRING)")) for key in keys]
    blocks = [millrace.query(text, spark=spark, tables=tables).blocks for text in texts]
    assert [len(found) for found in blocks] == [1, 0, 0]


@pytest.mark.parametrize("given", ["", WITHOUT_ANSI], ids=["ansi", "not ansi"])
def test_types_that_follow_by_rule_are_sparks(spark, given):
    """Of sums, differences, products and choices, of any two columns or numbers as written."""
    operands = {
        name: Typed(Column(ColumnRef("", name)), kind)
        for name, text in NUMBERS.items()
        for kind in [t.StructType.fromDDL(f"c {text}")["c"].dataType]
    }
    for text in WRITTEN:
        known = _evaluate(parse_one(text, dialect="spark"), lambda node: node.sql())
        literal = Literal(known.value, arrow_type(known.type))
        operands[text] = Typed(literal, known.type, is_written=True)
    ours = {}
    for a, b in itertools.product(operands, repeat=2):
        left, right = operands[a], operands[b]
        found = {f"{a} {op} {b}": arithmetic(op, left, right) for op in "+-*"}
        ours |= {text: typed.type for text, typed in found.items() if typed is not None}
        kind = common_type([left.type, right.type], ansi=given == "")
        if kind is not None:
            ours |= {f"coalesce({a}, {b})": kind, f"CASE WHEN i > 0 THEN {a} ELSE {b} END": kind}
            ours |= {f"if(i > 0, {a}, {b})": kind}
    nulls = ", ".join(f"CAST(NULL AS {text}) AS {name}" for name, text in NUMBERS.items())
    with changed(spark, cases.settings(given)):
        schema = spark.sql(f"SELECT {', '.join(ours)} FROM (SELECT {nulls})").schema
    theirs = dict(zip(ours, (field.dataType for field in schema.fields), strict=True))
    assert {text: kind for text, kind in ours.items() if kind != theirs[text]} == {}
    assert len(ours) > 1000


DATES = ("1994-01-31", "2020-02-29", "1900-03-01", "1582-10-04", "0001-01-31", "9999-12-01", "1999-12-31")
MOVES = (("1", "year"), ("4", "years"), ("1", "month"), ("13", "MONTH"), ("90", "day"), ("0", "day"))


def test_dates_are_moved_as_spark_moves_them(spark):
    """By years, months and days, forwards and back; what is not evaluated here is asked of Spark."""
    shapes = (
        "date '{0}' + interval '{1}' {2}",
        "date '{0}' - interval {1} {2}",
        "interval '{1}' {2} + date '{0}'",
    )
    texts = [s.format(day, *move) for s, day, move in itertools.product(shapes, DATES, MOVES)]
    ours = {text: _evaluate(parse_one(text, dialect="spark"), lambda node: None) for text in texts}
    done = {text: found for text, found in ours.items() if found is not None}
    items = ", ".join(f"try_cast({text} as string), typeof({text})" for text in done)
    values = list(spark.sql(f"select {items}").first())
    expected = dict(zip(done, zip(values[::2], values[1::2], strict=True), strict=True))
    assert {text: (str(found.value), found.type.simpleString()) for text, found in done.items()} == expected
    assert len(done) > len(texts) / 2


def test_long_decimals_keep_their_digits(spark, tmp_path):
    """Python's minus rounds to 28 of them."""
    least = Decimal("-123456789012345678901234567890.12")
    table = pa.table({"id": [1, 2], "d": pa.array([least, None], pa.decimal128(38, 2))})
    pq.write_table(table, tmp_path / "x.parquet")
    text = f"select x.id from x join y on x.id = y.id where x.d = {least} and y.d <= {least}"
    tables = dict.fromkeys("xy", tmp_path / "x.parquet")
    assert [row.id for row in millrace.sql(text, spark=spark, tables=tables).collect()] == [1]


# Times some interval later: what tasks and cells compute of them.


MINUTE = 60_000_000
DAY = 1440 * MINUTE
# Around changes of the clock in New York, ends of months, and a leap day.
MOMENTS = [0, 1_710_054_000_000_000, 1_730_613_600_000_000, 1_709_164_800_000_000, 4_107_542_400_000_000]
ENDS = [(1 << 63) - 1, (1 << 63) - 1 - MINUTE, -(1 << 63) + MINUTE, -(1 << 63), 0, None]
IN_TASKS = ["INTERVAL 90 MINUTES", "INTERVAL '23:59:59.999999' HOUR TO SECOND", "INTERVAL -7 SECONDS"]
CALENDAR = ["INTERVAL 1 DAY", "INTERVAL 36 HOURS", "INTERVAL 1 MONTH", "INTERVAL 48 MONTHS"]


@pytest.fixture(scope="module")
def moments(tmp_path_factory):
    """Two files of times and of times without zones."""
    random, made = np.random.default_rng(5), {}
    for name in "ab":
        near = np.concatenate([m + random.integers(-2 * DAY, 2 * DAY, 60) for m in MOMENTS])
        times = [*near.tolist(), *MOMENTS, None]
        columns = {
            "k": pa.array(random.integers(0, 3, len(times))),
            "t": pa.array(times, pa.timestamp("us", "UTC")),
            "n": pa.array(times, pa.timestamp("us")),
        }
        made[name] = pa.table(columns)
    return write(tmp_path_factory.mktemp("times"), made, 1 << 20)


@pytest.mark.parametrize("zone", ["UTC", pytest.param("America/New_York", marks=pytest.mark.nightly)])
def test_ranges_of_time_are_sparks(spark, moments, zone):
    """Whoever adds the interval, for all lengths, with clocks that change and without, in one query.

    Where clocks do not change, days of a calendar have 24 hours; other lengths are the same everywhere.
    """
    lengths = CALENDAR[:2] if zone == "UTC" else (*IN_TASKS, *CALENDAR)
    texts = {
        (length, time): f"""
            SELECT '{time}' AS time, {number} AS length, count(*), count(DISTINCT a.{time}), min(b.{time}),
                max(b.{time})
            FROM a JOIN b ON a.k = b.k
                AND b.{time} BETWEEN a.{time} - INTERVAL 1 HOUR AND a.{time} + {length}"""
        for number, length in enumerate(lengths)
        for time in "tn"
    }
    with changed(spark, {"spark.sql.session.timeZone": zone}):
        plain = spark.newSession()
        plain.conf.set("spark.sql.session.timeZone", zone)
        register(plain, moments)
        for (length, time), text in texts.items():
            shown = millrace.query(text, spark=spark, tables=moments).explain()
            exact = length in IN_TASKS or (length in CALENDAR[:2] and zone == "UTC")
            assert ("Spark evaluates above it" not in shown) == exact, (length, time)
        whole = " UNION ALL ".join(texts.values())
        found = millrace.query(whole, spark=spark, tables=moments)
        assert len(found.blocks) == len(texts)
        assert bag(found.df) == bag(plain.sql(whole))


@pytest.mark.parametrize("shift", [MINUTE, -MINUTE, MINUTE + 1, 0])
def test_beyond_the_ends_of_time_there_is_none(shift):
    """Such a row joins nothing, as with other arithmetic."""
    kind = pa.timestamp("us", "UTC")
    found = compute(
        Function("timestamp_add", kind, (Column(ColumnRef("", "t")),), (shift,)),
        {"t": pa.array(ENDS, kind)},
        len(ENDS),
    )
    want = [
        None if each is None or not -(1 << 63) <= each + shift < 1 << 63 else each + shift for each in ENDS
    ]
    assert found.view(pa.int64()).to_pylist() == want
