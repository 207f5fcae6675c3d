"""What is told of a DataFrame, and of one derived from it; and errors in the words of the query."""

from __future__ import annotations

import logging
import re
import traceback

import pytest
from pyspark.errors import AnalysisException

import millrace
from millrace.errors import MillraceWarning, OptionError
from millrace.sql.session import errors
from tests.sql.compare import bag

TEXT = "select a.id, b.v from a, b where a.id = b.id"


PHYSICAL = "== Physical Plan =="
MODES = {"extended": ["== Analyzed Logical Plan ==", PHYSICAL], "simple": [PHYSICAL], "cost": ["sizeInBytes"]}


def test_modes_of_an_explanation(spark, files, views):
    """Spark's plan comes in the form asked for, behind Millrace's own."""
    query = millrace.query(TEXT, spark=spark, tables=files)
    derived, kept = query.df.limit(3), millrace.where(views["a"], "id > 1")
    for mode, parts in MODES.items():
        for shown in (query.explain(mode), millrace.explain(derived, mode), millrace.explain(kept, mode)):
            assert all(part in shown for part in parts)
        assert "block b0" in query.explain(mode)
    with pytest.raises(OptionError, match="mode of explain is 'verbose'"):
        query.explain("verbose")


def test_the_report_of_what_is_derived(spark, files):
    """Figures belong to the run, whichever DataFrame it was an action of."""
    counted = millrace.sql(TEXT, spark=spark, tables=files).groupBy("id").count()
    rows = sum(row["count"] for row in counted.collect())
    assert millrace.report(counted).totals.output_tuples == rows
    first, second = (millrace.sql(TEXT, spark=spark, tables=files) for _ in range(2))
    both = first.union(second)
    assert len(both.collect()) == 2 * rows
    assert millrace.report(both).totals.output_tuples == 2 * rows
    # What stands behind a view counts too.
    other = millrace.sql(TEXT + " ORDER BY a.id LIMIT 5", spark=spark, tables=files)
    other.createOrReplaceTempView("counted_by_another")
    joined = first.join(spark.table("counted_by_another"), "id")
    assert "part 2 of 2" in millrace.explain(joined)
    spark.catalog.dropTempView("counted_by_another")


def test_what_a_prompt_shows_is_short(spark, files, capsys):
    """Queries, explanations and reports show themselves in a line, or as text."""
    query = millrace.query(TEXT, spark=spark, tables=files)
    assert re.fullmatch(r"<Query: 1 block\(s\), 0 filter\(s\), columns <.*>; .*>", repr(query))
    query.df.collect()
    query.show(1)
    assert "only showing top 1 row" in capsys.readouterr().out
    assert re.fullmatch(r"<RunReport: 1 block\(s\), \d+ cell\(s\), [\d,]+ rows; .*>", repr(query.report()))
    assert repr(query.explain()).startswith("block b0: ")


def test_an_error_comes_without_records_and_frames_of_planning(spark, files, monkeypatch):
    """Spark logs what it raises, and planning asks it several times: users see it once."""
    logger = logging.getLogger("SQLQueryContextLogger")
    record = logging.LogRecord(logger.name, logging.ERROR, __file__, 1, "told", None, None)
    logged = []
    as_written = errors.as_written

    def spy(*given):
        logged.append(logger.filter(record))
        return as_written(*given)

    monkeypatch.setattr(errors, "as_written", spy)
    with pytest.raises(AnalysisException) as found:
        millrace.sql("select a.nothing from a join b on a.id = b.id", spark=spark, tables=files)
    assert logged == [False]
    assert logger.filter(record)
    frames = traceback.extract_tb(found.value.__traceback__)
    assert not [frame for frame in frames if "millrace/sql" in frame.filename]


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("select * from orderz o join b on o.id = b.id", "'orders'"),
        ("select uper(o.s) from orders o join b on o.id = b.id", "'upper'"),
        ("select o.id fro orders o join b on o.id = b.id", "FROM"),
        ("select o.id from orders o join b on o.id = b.id ordr by 1", "ORDER"),
    ],
)
def test_errors_suggest_what_may_be_meant(spark, files, text, meant):
    """A table of the caller's, a function of Spark's, a keyword; Spark itself suggests columns.

    Spark's parser has the last word about syntax, in the user's text.
    """
    with pytest.raises(AnalysisException, match=rf"did you mean .*{meant}") as found:
        millrace.query(text, spark=spark, tables={"orders": files["a"], "b": files["b"]})
    assert "__millrace" not in str(found.value)
    assert (found.value.getCondition() == "PARSE_SYNTAX_ERROR") == meant.isupper()


@pytest.mark.parametrize(
    ("text", "line", "column"),
    [
        ("select a.id, nothing from a, b where a.id = b.id", 1, 13),
        ("select\n  a.id\nfrom a join b on a.id = b.id\nwhere b.nothing > 1", 4, 6),
        ("select nosuch(a.id) from a join b on a.id = b.id", 1, 7),
        ("select a.id from a join b on a.id = b.id join nowhere n on n.id = a.id", 1, 46),
    ],
)
def test_errors_tell_the_place_in_the_users_text(spark, files, text, line, column):
    """Tables stand under names of ours in what Spark sees; its errors do not show them."""
    with pytest.raises(AnalysisException) as found:
        millrace.query(text, spark=spark, tables=files)
    message = str(found.value)
    assert f"line {line} pos {column}" in message
    shown = message.split("== SQL ==\n")[1].split("\n")
    assert shown[:line] == text.split("\n")[:line] and shown[line] == "-" * column + "^^^"
    assert "__millrace" not in message


NAMES = "keep match left filter first any is_ok exists map struct date array".split()  # noqa: SIM905


def test_predicates_of_any_name(spark, views):
    """A function is renamed before the query is parsed, so that no name means anything else."""
    made = [millrace.predicate(lambda x: x == 2, name=name) for name in NAMES]
    select = "select '{0}' as name, id from a where {0}(id) and k > 5"
    found = millrace.query(
        " union all ".join(map(select.format, NAMES)), spark=spark, tables=views, predicates=made
    )
    assert [one.calls for one in found.filters] == [(f"{name}(id)",) for name in NAMES]
    rows = spark.sql("select id from a where id = 2 and k > 5").collect()
    assert bag(found.df) == {repr((name, 2)): len(rows) for name in NAMES}
    items = ", ".join(f"{name}(id)" for name in NAMES)
    shown = millrace.sql(f"select {items}, * from a", spark=spark, tables=views, predicates=made)
    assert shown.columns[: len(NAMES)] == [f"{name}(id)" for name in NAMES]


def test_a_query_that_is_not_read_warns_of_its_predicates(spark, views):
    """Spark calls them for every row then, which would go unnoticed."""
    made = millrace.predicate(lambda x: x == 2, name="keep")
    with pytest.warns(MillraceWarning, match=r"Spark calls keep for every row: pipe syntax"):
        found = millrace.sql(
            "from a |> where keep(id) |> select id", spark=spark, tables=views, predicates=[made]
        )
    assert found.count() == 2
