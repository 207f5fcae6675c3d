"""What does not pay is left to Spark, and said."""

from __future__ import annotations

import pytest

from millrace.front import worth

TEXT = "select a.id, b.v from a join b on a.id = b.id"


@pytest.fixture
def started(monkeypatch):
    """Starting Python takes half a second; rows are counted as outside of tests."""
    monkeypatch.setattr(worth, "MANY", 200_000)
    monkeypatch.setattr(worth, "start_seconds", lambda spark: 0.5)


@pytest.mark.parametrize("how", ["files", "views"])
def test_a_join_of_few_rows_is_left_to_spark(same, started, request, how):
    """Whether Spark or the tasks would read them; the option takes it all the same."""
    tables = request.getfixturevalue(how)
    found = same(TEXT, tables)
    assert not found.blocks
    assert "joining 13 rows is not worth a stage in Python, which pays from 5,000 on" in found.explain()
    assert len(same(TEXT, tables, {"least_rows": 13}).blocks) == 1
    assert len(same(TEXT, tables, {"least_rows": 0}).blocks) == 1


@pytest.mark.parametrize(("rows", "blocks"), [(49_000, 0), (51_000, 1)])
def test_between_few_and_many_the_start_of_python_decides(spark, same, started, tmp_path, rows, blocks):
    """Half a second is worth 100,000 rows, which two readings of the table have or have not."""
    path = str(tmp_path / "many")
    spark.range(rows).coalesce(1).write.parquet(path)
    spark.read.parquet(path).createOrReplaceTempView("many")
    text = "select count(*) n from many l join many r on l.id = r.id where l.id < 10"
    assert len(same(text, {"many": path}).blocks) == blocks


def test_rows_that_spark_has_already_do_not_count(same, started, files):
    """A join of two aggregates is Spark's; so is one above blocks, which stay."""
    grouped = "with g as (select a.id, count(*) n from a join b on a.k = b.k group by a.id) "
    found = same(grouped + "select l.n from g l join g r on l.id = r.id + 1", files, {"least_rows": 10})
    assert [block.join.aliases for block in found.blocks] == [("a", "b")]
    assert "joining 0 rows" in found.explain()
