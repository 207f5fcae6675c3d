"""Queries tell what they did, in text, in notebooks and on pages, and never show a value of a row."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

import millrace
from millrace.errors import ExecutionError
from millrace.spark import reports

SECRETS = ("anna@example.org", "boris@example.org")


@pytest.mark.nightly
def test_a_query_in_a_notebook(spark):
    """Before a run it shows what is planned, afterwards also what was done; settings are there."""
    people = spark.createDataFrame([(1, SECRETS[0]), (2, SECRETS[1])], "id int, mail string")
    orders = spark.createDataFrame([(1, 10), (1, 20), (2, 30)], "person int, total int")
    text = "select p.mail, o.total, rank() over (order by o.total) r from p join o on p.id = o.person"
    tables, options = {"p": people, "o": orders}, {"cells": 1, "take_all": True}
    query = millrace.query(text, spark=spark, tables=tables, options=options)
    planned = query._repr_html_()
    assert "<details open><summary>block b0" in planned
    assert "millrace-part" not in planned
    with pytest.raises(ExecutionError):
        query.report()
    assert len(query.df.collect()) == 3
    assert "millrace-part" in query._repr_html_()
    explained = query.explain()
    assert explained.splitlines()[:3] == millrace.explain(query.df).splitlines()[:3]
    assert "Spark&#x27;s plan" in explained._repr_html_()
    report = query.report()
    assert report.planned.shapes["b0"].joins[0][2] == "p.id = o.person"
    assert report.planned.settings == options and sum(one.tuples_out for _, one in report.joins()) == 3
    shown = report.to_html() + query._repr_html_() + report.to_json()
    assert not [secret for secret in SECRETS if secret in shown]


def test_a_filter_and_a_lookup(spark, tmp_path):
    """Calls, keys and failures by kind are there; keys, messages and rows are not."""

    def find(mail):
        if mail == SECRETS[1]:
            raise ValueError(mail)
        return [{"mail": mail, "score": 1}]

    function = millrace.function(find, retries=0)
    scores = millrace.lookup("scores", "mail string, score int", ["mail"], function, on_error="null")
    people = spark.createDataFrame([(secret,) for secret in SECRETS], "mail string")
    known = millrace.predicate(lambda mail: mail.startswith("anna"), name="known")
    never = millrace.predicate(lambda mail: len(mail) > 3, name="long")
    frame = millrace.where(people, known("mail"), never("mail"))
    assert frame.count() == 1
    report = millrace.report(frame)
    text = "select p.mail, s.score from p join s on p.mail = s.mail"
    query = millrace.query(text, spark=spark, tables={"p": people, "s": scores})
    assert len(query.df.collect()) == 2
    looked = query.report()
    assert (looked.lookups[0].keys, looked.lookups[0].failed) == (2, 1)
    for one in (report, looked):
        page = one.save(tmp_path / "report.html").read_text()
        assert not [secret for secret in SECRETS if secret in page + one.to_json() + one._repr_html_()]
    assert "1 of 2 keys of scores were not looked up (ValueError: 1)" in looked.to_html()
    assert json.loads(looked.to_json())["lookups"][0]["failures"] == [["ValueError", 1]]
    assert "Predicate(known(mail))" in report.to_html()


def test_figures_are_those_of_the_latest_run(spark):
    """A run of fewer tasks keeps none of those before; what Spark does not do again still counts."""
    orders = spark.range(400, numPartitions=4).selectExpr("id", "id % 40 AS person")
    people = spark.range(40, numPartitions=2).withColumnRenamed("id", "person")
    text = "select o.id from o join p on o.person = p.person"
    options = {"cells": 8, "placement": "hypercube"}
    query = millrace.query(text, spark=spark, tables={"o": orders, "p": people}, options=options)
    whole, again = (_counts(query, query.df.collect) for _ in range(2))
    assert whole == again
    assert (whole["cells"], whole["rows"]) == (8, 400)
    few = _counts(query, query.df.limit(200).collect)
    assert 0 < few["cells"] < 8
    assert 200 <= few["rows"] < 400
    assert few["cuts"] == whole["cuts"] > 0
    assert _counts(query, query.df.rdd.count) == whole


def test_figures_of_executions_at_once_are_the_later_ones():
    """Whatever order they come in, and none is kept beside another: a loop of actions takes no more room."""
    keep, entries = reports._Latest().addInPlace, {}
    for execution, task in ((1, "cell 0"), (2, "cell 0"), (2, "cell 1"), (1, "cell 1"), (1, "cell 2")):
        keep(entries, {("run", task): (execution, f"{execution}".encode())})
    assert reports._latest(SimpleNamespace(value=entries), "run") == {"cell 0": b"2", "cell 1": b"2"}
    for execution in range(3, 100):
        keep(entries, {("run", "cell 0"): (execution, b"")})
    assert len(entries) == 3


def _counts(query, action):
    """Tasks of each kind and rows that a query's report has after an action."""
    action()
    (figures,) = query.report().blocks.values()
    cells = [each for each in figures if each.cell >= 0]
    rows = sum(each.output_tuples for each in cells)
    return {"cells": len(cells), "cuts": len(figures) - len(cells), "rows": rows}


def test_a_filters_figures_are_those_of_the_latest_run(spark):
    """Spark needs the first partitions only; the others' figures are of the run before."""
    frame = millrace.where(spark.range(0, 80, 1, 8), millrace.predicate(lambda n: n >= 0, name="all")("id"))
    frame.count()
    assert len(millrace.report(frame).blocks["filter"]) == 8
    frame.limit(45).collect()
    assert [each.cell for each in millrace.report(frame).blocks["filter"]] == [0, 1, 2, 3, 4]
