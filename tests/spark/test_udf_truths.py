"""Functions of PySpark's keep the rows that Spark keeps for them, and fail where Spark fails."""

from __future__ import annotations

import datetime as dt
import decimal
import enum
from collections import namedtuple
from collections.abc import Iterator

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import Row, functions as sf

import millrace
from millrace.errors import PredicateError
from millrace.predicates.callers import caller_of
from millrace.spark.predicates import Predicate
from millrace.spark.values import SparkValues

NAN = float("nan")
Pair = namedtuple("Pair", "a b")  # noqa: PYI024  # of the kind that users have
Level = enum.IntEnum("Level", "LOW HIGH")

# What functions of single rows return, a value a row. Case by case, as Spark converts them together.
ROWS = {
    "booleans": [True, False, None],
    "none": [None, None],
    "numpy booleans": [np.bool_(True), np.bool_(False), True, None],
    "0 and 1": [1, 0, None],
    "whole numbers": [2, -1, 0],
    "numpy whole numbers": [np.int64(1), np.int64(0)],
    "wide whole numbers": [2**63, 0],
    "floats": [1.0, 0.0, 0.5, -0.0, NAN, None],
    "floats and whole numbers": [0.5, 0, 2],
    "numpy floats": [np.float64(0.5), np.float64(0.0), np.float64("nan")],
    "booleans and 0": [True, 0],
    "1 and booleans": [1, True],
    "booleans and floats": [True, 0.5],
    "booleans and nan": [True, NAN],
    "nan and booleans": [NAN, True, False],
    "texts of booleans": ["true", "false", "True", "FALSE", None],
    "texts of numbers": ["1", "0"],
    "yes": ["yes", "no"],
    "empty texts": ["", "true"],
    "texts and booleans": ["true", True],
    "bytes": [b"true", b"0"],
    "decimals": [decimal.Decimal(1), decimal.Decimal(0)],
    "dates": [dt.date(2026, 1, 2), None],
    "lists": [[1], []],
    "lists of numpy": [[np.int64(1)], []],
    "dictionaries": [{"a": 1}, {}],
    "rows": [Row(a=1), None],
    "named tuples": [Pair(1, 2), None],
    "enumerations": [Level.LOW, None],
}


def _series(values, dtype=None):
    return lambda: pd.Series(values, dtype=dtype)


BATCHES = {
    "booleans": _series([True, False]),
    "booleans and None": _series([True, None]),
    "booleans and nan": _series([True, NAN], object),
    "nullable booleans": _series([True, pd.NA], "boolean"),
    "numpy booleans": _series([np.bool_(True), None], object),
    "numbers": _series([2, 0]),
    "small numbers": _series([1, 0], "uint8"),
    "nullable numbers": _series([1, pd.NA], "Int64"),
    "objects that are numbers": _series([1, 0], object),
    "objects that are booleans and numbers": _series([True, 1], object),
    "floats": _series([0.5, -0.0]),
    "nan": _series([NAN, 1.0]),
    "texts": _series(["true", "False"]),
    "nullable texts": _series(["1", None], "string"),
    "yes": _series(["yes", "no"]),
    "categories": _series([True, False], "category"),
    "categories of texts": _series(["true", "false"], "category"),
    "Arrow's booleans": _series([True, None], pd.ArrowDtype(pa.bool_())),
    "Arrow's numbers": _series([0, 3], pd.ArrowDtype(pa.int64())),
    "moments": lambda: pd.Series(pd.to_datetime(["2026-01-02", "1970-01-01"])),
    "decimals": _series([decimal.Decimal(1), decimal.Decimal(0)]),
    "an index": lambda: pd.Index([True, False]),
    "a list": lambda: [True, False],
    "a numpy array": lambda: np.array([True, False]),
    "a DataFrame": lambda: pd.DataFrame({"a": [True, False]}),
    "an Arrow array": lambda: pa.array([True, False]),
    "one value": lambda: True,
    "too few": _series([True]),
    "too many": _series([True] * 3),
}
ARRAYS = {
    "booleans": lambda: pa.array([True, None]),
    "nulls": lambda: pa.nulls(2),
    "numbers": lambda: pa.array([2, 0]),
    "floats": lambda: pa.array([0.5, NAN]),
    "texts": lambda: pa.array(["true", "0"]),
    "large texts": lambda: pa.array(["1", None], pa.large_string()),
    "yes": lambda: pa.array(["yes", "1"]),
    "bytes": lambda: pa.array([b"true", b"false"]),
    "a dictionary": lambda: pa.array([True, False]).dictionary_encode(),
    "decimals": lambda: pa.array([decimal.Decimal(1), decimal.Decimal(0)]),
    "lists": lambda: pa.array([[True], [False]]),
    "chunks": lambda: pa.chunked_array([[True], [False]]),
    "a list": lambda: [True, False],
    "a numpy array": lambda: np.array([True, False]),
    "a Series": lambda: pd.Series([0, 1]),
    "one value": lambda: pa.scalar(True),
    "too few": lambda: pa.array([True]),
    "too many": lambda: pa.array([True] * 3),
}


def by_row(use_arrow):
    return lambda values: sf.udf(lambda i: values[i % len(values)], "boolean", useArrow=use_arrow)


def by_batch(kind, batch, *, is_iterator=False):
    """Functions of such batches that return what they are given, whatever comes."""

    def make(given):
        def of_one(ids):
            return given()

        def of_all(ids):
            for _ in ids:
                yield given()

        function, hint = (of_all, Iterator[batch]) if is_iterator else (of_one, batch)
        function.__annotations__ = {"ids": hint, "return": hint}  # by which PySpark knows its kind
        return kind("boolean")(function)

    return make


KINDS = {
    "udf": (ROWS, by_row(True)),
    "udf, pickled": (ROWS, by_row(False)),
    "pandas_udf": (BATCHES, by_batch(sf.pandas_udf, pd.Series)),
    "pandas_udf, iterator": (BATCHES, by_batch(sf.pandas_udf, pd.Series, is_iterator=True)),
    "arrow_udf": (ARRAYS, by_batch(sf.arrow_udf, pa.Array)),
    "arrow_udf, iterator": (ARRAYS, by_batch(sf.arrow_udf, pa.Array, is_iterator=True)),
}
# What Spark fails for. Each costs a worker process there, so whether this is so is asked in a slow test.
NO_ARRAYS = ["yes", "decimals", "lists", "chunks", "one value", "too few", "too many"]
NO_SERIES = ["objects that are booleans and numbers", "yes", "moments", "decimals", "a list", "a numpy array"]
NO_SERIES += ["a DataFrame", "an Arrow array", "one value", "too few", "too many"]
FAILS = {
    "udf": [
        *("wide whole numbers", "booleans and 0", "1 and booleans", "booleans and floats"),
        *("booleans and nan", "yes", "empty texts", "texts and booleans", "decimals", "dates"),
        *("lists", "lists of numpy", "dictionaries", "rows", "named tuples"),
    ],
    "udf, pickled": [
        *("numpy booleans", "numpy whole numbers", "numpy floats", "lists of numpy"),
        *("rows", "named tuples", "enumerations"),
    ],
    "pandas_udf": NO_SERIES,
    "pandas_udf, iterator": [*NO_SERIES, "an index"],
    "arrow_udf": NO_ARRAYS,
    "arrow_udf, iterator": [*NO_ARRAYS, "a list", "a numpy array", "a Series"],
}


def rows_of(case) -> int:
    return len(case) if isinstance(case, list) else 2


def kept_here(function, rows: int) -> list[int]:
    """Return the rows that a predicate made of the function keeps."""
    caller = caller_of(Predicate.of(function).spec, SparkValues("UTC"))
    try:
        outcome = caller.call([pa.array(range(rows), pa.int64())])
    finally:
        caller.close()
    assert not outcome.failures
    return np.flatnonzero(outcome.truth).tolist()


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.nightly] * ("iterator" in kind)) for kind in KINDS]
)
def test_what_spark_makes_of_results_is_what_is_made_of_them_here(spark, kind):
    """Case by case: a row passes if Spark's boolean for it is true."""
    cases, make = KINDS[kind]
    accepted = {name: case for name, case in cases.items() if name not in FAILS[kind]}
    rows = max(map(rows_of, accepted.values()))
    columns = [make(case)("id").alias(name) for name, case in accepted.items()]
    by_spark = spark.range(0, rows, 1, 1).select(*columns).toPandas()
    for name, case in accepted.items():
        assert kept_here(make(case), rows) == np.flatnonzero(by_spark[name] == True).tolist(), name  # noqa: E712


@pytest.mark.parametrize("kind", KINDS)
def test_where_spark_fails_it_is_an_error_with_the_predicates_name(spark, kind):
    cases, make = KINDS[kind]
    for name in FAILS[kind]:
        with pytest.raises(PredicateError, match=r"(?s)predicate '.*' returned .*(True, False or None)"):
            kept_here(make(cases[name]), rows_of(cases[name]))
    # As in Spark, a function over batches gives an iterator.
    listed = by_batch(sf.pandas_udf, Iterator[pd.Series])(lambda: [pd.Series([True])])
    with pytest.raises(PredicateError, match="returned a list, expected an iterator"):
        kept_here(listed, 2)
    # Spark takes some such objects for null; that rows vanish for a mistake is not worth keeping.
    with pytest.raises(PredicateError, match="a object, which does not pickle"):
        kept_here(by_row(False)([object()]), 1)


@pytest.mark.nightly
@pytest.mark.parametrize("kind", KINDS)
def test_spark_fails_where_it_is_said_to(spark, kind):
    """The list of what Spark fails for is right: a case that Spark accepts some day belongs to the others."""
    cases, make = KINDS[kind]
    accepted = []
    for name in FAILS[kind]:
        try:
            spark.range(0, rows_of(cases[name]), 1, 1).where(make(cases[name])("id")).collect()
        except Exception:  # noqa: BLE001  # whichever of Spark's
            continue
        accepted.append(name)
    assert accepted == []


def test_a_filter_keeps_what_spark_keeps(spark):
    """From end to end, with numbers for booleans; a predicate of Millrace's own stays strict."""
    numbers, df = [2, 0, 1, 0], spark.range(0, 4, 1, 1)
    given = {"pandas": _series(numbers), "arrow_": lambda: pa.array(numbers)}
    made = {kind: make(given.get(kind[:6], numbers)) for kind, (_, make) in KINDS.items()}
    names = {f"p{n}": function for n, function in enumerate(made.values())}
    plain = df.select(*(function("id").alias(kind) for kind, function in made.items())).collect()
    text = " UNION ALL ".join(f"SELECT '{kind}', id FROM t WHERE p{n}(id)" for n, kind in enumerate(made))
    query = millrace.query(text, spark=spark, tables={"t": df}, predicates=names)
    rows = [(kind, n) for kind in made for n in range(4) if plain[n][kind]]
    assert [kind for kind, _ in rows] == [kind for kind in made if kind != "udf, pickled" for _ in range(2)]
    assert sorted(map(tuple, query.df.collect())) == sorted(rows)
    for kind, function in made.items():
        kept = [row.id for row in millrace.where(df, function("id")).collect()]
        assert [(kind, n) for n in kept] == [row for row in rows if row[0] == kind]
