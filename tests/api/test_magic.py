"""``%%millrace``: which DataFrames of a notebook a cell's query may name."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from pyspark.errors import AnalysisException

from millrace.api import magic
from millrace.errors import InputError


@pytest.fixture(scope="module")
def shell(spark):
    numbers = spark.range(3)
    spark.range(5).createOrReplaceTempView("seen")
    yield SimpleNamespace(
        user_ns={"df": numbers, "DF": spark.range(1), "seen": numbers, "text": "df", "_df": numbers}
    )
    spark.catalog.dropTempView("seen")


@pytest.mark.parametrize(
    ("cell", "rows"),
    [
        ("select 1", 1),  # what a cell does not name is no table of it
        ("select * from df", 3),
        ("select * from DF", 1),
        ("select * from seen", 5),  # the session has one of that name
    ],
)
def test_variables_are_tables_where_a_cell_names_them(shell, cell, rows):
    """The session's own tables come first, and of two names that differ by case the one as written."""
    assert len(magic.run(shell, "", cell)) == rows


def test_a_flag_that_is_none_is_refused(shell):
    """The message has the flags that there are."""
    with pytest.raises(InputError, match="usage: %%millrace"):
        magic.run(shell, "--nothing", "select 1")


def test_an_error_is_its_message(shell):
    """IPython asks an error what to show, and hears what Spark says rather than frames of Millrace."""
    found = {}
    shell.register_magic_function = lambda function, kind, name: found.update({name: function})
    magic.load_ipython_extension(shell)
    with pytest.raises(AnalysisException) as caught:
        found["millrace"]("", "select no_such from df")
    (shown,) = caught.value._render_traceback_()
    assert "no_such" in shown and "Traceback" not in shown
