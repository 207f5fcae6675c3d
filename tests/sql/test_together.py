"""Queries that run together give Spark's answers, and read what they share once."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from pyspark.errors import PySparkException

import millrace
from millrace.api.together import Together
from millrace.sql import together as planning
from tests.gate import examples
from tests.sql import small_tables
from tests.sql.answers import answer_of

SELECTS = (
    ("count(*)", ""),
    ("{a}.id, {b}.v", ""),
    ("{a}.x, {b}.n, {a}.s", ""),
    ("distinct {b}.s", ""),
    ("avg({a}.n) as n, min({b}.v) as v", ""),
    ("{a}.s, count(*) as c, sum({a}.k) as k, max({a}.x) as x", "group by {a}.s"),
    ("{b}.d, count({b}.s) as c", "group by {b}.d having count(*) > 1"),
)
CONDITIONS = (
    "{a}.k > 10", "{a}.s = 'x'", "{a}.s <> 'x'", "{a}.x >= 0", "{a}.flag", "{a}.s like 'x%'", "{a}.x = 'NaN'",
    "{b}.v < 2", "{b}.s in ('x', 'y')", "{b}.s is null", "{b}.d <= date'1995-01-03'", "{b}.k + 1 > 20",
    "{a}.x < {b}.v", "{a}.k = 10 or {b}.v > 1", "{a}.d <=> {b}.d",
)  # fmt: skip
FROMS = ("{a}.id = {b}.id", "{a}.id = {b}.id", "{a}.id = {b}.id and {a}.k = {b}.k")


@st.composite
def texts(draw: st.DrawFn) -> str:
    """Draw a query over a join of two tables, under some names and in some order."""
    names = dict(zip("ab", draw(st.permutations(("p", "q"))), strict=True))
    select, groups = draw(st.sampled_from(SELECTS))
    tables = " join ".join(draw(st.permutations(("a {a}", "b {b}"))))
    where = draw(st.lists(st.sampled_from(CONDITIONS), max_size=2, unique=True))
    text = f"select {select} from {tables} on {draw(st.sampled_from(FROMS))}"
    return f"{text} {'where ' if where else ''}{' and '.join(where)} {groups}".format(**names)


@pytest.fixture(scope="module")
def differences(spark, files):
    """Say which of several queries have other answers together than Spark gives, and how many shared."""
    answers: dict[str, object] = {}
    for name, path in files.items():
        spark.read.parquet(path).createOrReplaceTempView(f"`{name}`")

    def compare(queries: list[str], **options: object) -> tuple[list[str], int]:
        options |= {"take_all": True}
        with millrace.together(queries, spark=spark, tables=files, options=options) as frames:
            shared = sum("computed once" in millrace.explain(frame) for frame in frames)
            found = [answer_of(frame) for frame in frames]
        for text in queries:
            if text not in answers:
                answers[text] = answer_of(spark.sql(text))
        return [text for text, answer in zip(queries, found, strict=True) if answer != answers[text]], shared

    return compare


@pytest.mark.law
@settings(max_examples=examples(12, 150), suppress_health_check=list(HealthCheck))
@given(st.lists(texts(), min_size=2, max_size=4))
def test_answers_are_those_of_each_query_alone(differences, queries):
    """Whatever each selects, asks of one or both tables, and calls them; nullability is Spark's too."""
    found, _ = differences(queries)
    assert not found, f"{found} of {queries}"


FIXED = [
    "select count(*) from a p join b q on p.id = q.id where p.k > 10",
    "select q.s, p.x from b q join a p on q.id = p.id where q.v < 2",
    "select a.s, sum(a.k) as k from a join b on a.id = b.id where a.k < 40 and a.x < b.v group by a.s",
]


@pytest.mark.parametrize(
    "options",
    [{"placement": "hypercube", "cells": 2}, {"memory_budget": 1 << 25}, {"architecture": "stairs"}],
)
def test_other_names_and_orders_share_a_join(differences, options):
    assert differences(FIXED, **options) == ([], len(FIXED))


BROKEN = {
    "filters of single tables are forgotten behind the OR": lambda filters, *rest: planning_query(
        dict.fromkeys(filters, ()), *rest
    ),
    "conditions on several tables are forgotten": lambda filters, _, *rest: planning_query(
        filters, (), *rest
    ),
}
planning_query = planning.SharingQuery


@pytest.mark.broken_rule
@pytest.mark.parametrize("rule", BROKEN.values(), ids=BROKEN)
def test_broken_sharing_is_caught(differences, monkeypatch, rule):
    """The law does tell."""
    monkeypatch.setattr(planning, "SharingQuery", rule)
    assert differences(FIXED)[0]


@pytest.mark.parametrize("release", [Together.close, list.clear])
def test_tables_are_read_once_until_they_are_released(spark, tmp_path, release):
    """The first action reads them for all; what Spark keeps goes with the last DataFrame, or at a word."""
    tables = small_tables.write(tmp_path)
    frames = millrace.together(FIXED, spark=spark, tables=tables, options={"take_all": True})
    again = [frame.where("true") for frame in frames]
    expected = [answer_of(frame) for frame in frames]
    for path in filter(Path.is_file, tmp_path.rglob("*")):
        path.unlink()
    assert answer_of(again[0]) == expected[0]
    release(frames)
    with pytest.raises((PySparkException, millrace.MillraceError)):
        again[1].collect()


def test_it_is_told_who_shares_and_why_others_do_not(spark, files):
    texts = [
        *FIXED[:2],
        "select b.id from b join c on b.id = c.id",
        "select a.id from a join b on a.id = b.id left join c on a.k = c.k",
        "select a.id from a join b on a.id = b.id limit 3",
        "select id from a",
    ]
    frames = millrace.together(texts, spark=spark, tables=files, options={"take_all": True})
    told = [str(millrace.explain(frame)) for frame in frames]
    assert "computed once: b0, with the join for queries 1, 2" in told[0]
    assert "a condition" not in told[1] and "q.v < 2" in told[1]
    why = (planning.ALONE, "LEFT JOIN", "LIMIT", "Spark runs all of its joins")
    assert all(reason in text for reason, text in zip(why, told[2:], strict=True))
    frames[1].collect()
    scans = [m for _, m in millrace.report(frames[0]).modules() if m.action == "scan"]
    assert sorted(m.name for m in scans) == ["Scan(p)", "Scan(q)"]
