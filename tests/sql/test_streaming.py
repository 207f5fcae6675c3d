"""Results as they come: every row once, the result's columns, errors, and an end when nobody wants more."""

from __future__ import annotations

from collections import Counter
from itertools import islice

import pyarrow as pa
import pytest

from millrace import query, to_batches
from millrace.errors import OptionError
from tests.session import wait_for
from tests.sql import cases
from tests.sql.compare import bag


def rows_of(batches) -> Counter[str]:
    columns = ([column.to_pylist() for column in batch.columns] for batch in batches)
    return Counter(repr(row) for each in columns for row in zip(*each, strict=True))


@pytest.mark.parametrize(
    ("source", "text"), [(head, text) for head, texts in cases.lines("batches").items() for text in texts]
)
def test_every_row_comes_once(spark, views, source, text):
    """Plain columns of a block come from it; anything more is Spark's to do."""
    found = query(text, spark=spark, tables=views)
    assert (found.direct is not None) == (source == "block")
    batches = list(found.to_batches())
    assert rows_of(batches) == bag(spark.sql(text))
    assert all(batch.schema.names == spark.sql(text).columns for batch in batches)


def test_batches_have_a_size_at_most(spark):
    """None leaves them as they come."""
    frame = spark.range(0, 1000, 1, 2)
    batches = list(to_batches(frame, 64))
    assert max(batch.num_rows for batch in batches) <= 64
    assert sorted(pa.Table.from_batches(batches)["id"].to_pylist()) == list(range(1000))
    for wrong in (0, True, 1.5):
        with pytest.raises(OptionError, match="expected a whole number above 0"):
            to_batches(frame, wrong)


def test_a_failure_comes_out(spark):
    """What the job raised is raised where rows are read."""
    frame = spark.sql("select cast(raise_error('broken on purpose') as int) as x from range(3)")
    with pytest.raises(Exception, match="broken on purpose"):
        list(to_batches(frame))


def test_rows_come_while_the_job_runs_and_closing_cancels_it(spark):
    """A job of endless rows gives the first ones, and ends when the iterator is closed."""

    def endless(batches):
        for batch in batches:
            while True:
                yield batch

    stream = to_batches(spark.range(0, 8, 1, 1).mapInArrow(endless, "id long"))
    first = list(islice(stream, 3))
    stream.close()
    assert wait_for(lambda: not spark.sparkContext.statusTracker().getActiveJobsIds())
    assert [batch.num_rows > 0 for batch in first] == [True] * 3
    assert sum(batch.num_rows for batch in to_batches(spark.range(1))) == 1
