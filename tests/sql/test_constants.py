"""Constants that are evaluated here have Spark's values."""

from __future__ import annotations

import itertools

from sqlglot import parse_one

from millrace.sql.expr.constants import _evaluate

DAYS = ("1994-01-31", "2020-02-29", "1900-03-01", "1582-10-04", "0001-01-31", "9999-12-01", "1999-12-31")
MOVES = (("1", "year"), ("4", "years"), ("1", "month"), ("13", "MONTH"), ("90", "day"), ("0", "day"))


def test_dates_are_moved_as_spark_moves_them(spark):
    """By years, months and days, forwards and back; what is not evaluated here is asked of Spark."""
    shapes = (
        "date '{0}' + interval '{1}' {2}",
        "date '{0}' - interval {1} {2}",
        "interval '{1}' {2} + date '{0}'",
    )
    texts = [s.format(day, *move) for s, day, move in itertools.product(shapes, DAYS, MOVES)]
    ours = {text: _evaluate(parse_one(text, dialect="spark"), lambda node: None) for text in texts}
    done = {text: found for text, found in ours.items() if found is not None}
    items = ", ".join(f"try_cast({text} as string), typeof({text})" for text in done)
    values = list(spark.sql(f"select {items}").first())
    expected = dict(zip(done, zip(values[::2], values[1::2], strict=True), strict=True))
    assert {text: (str(found.value), found.type.simpleString()) for text, found in done.items()} == expected
    assert len(done) > len(texts) / 2
