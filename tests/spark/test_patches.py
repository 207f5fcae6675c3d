"""Columns that are calls of PySpark's functions say so, from the first use of Millrace's own."""

from __future__ import annotations

import subprocess
import sys

import pytest
from pyspark.sql import functions as sf

import millrace
from millrace.errors import MillraceWarning
from millrace.spark.patches import watch

IMPORTS = """
import millrace.api.enabling, millrace.api.session, millrace.engine.runs.eddy_run
import pyspark.sql.connect.udf, pyspark.sql.udf

def calls():
    for module in (pyspark.sql.udf, pyspark.sql.connect.udf):
        call = module.UserDefinedFunction.__call__
        print(call.__name__, hasattr(call, "__wrapped__"))

calls()
from millrace import filter
calls()
"""


def test_importing_millrace_changes_nothing_of_pyspark():
    """The use of some of its functions does: both classes are wrapped, and all else about them stays."""
    done = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["__call__", "False"] * 2 + ["__call__", "True"] * 2


def test_a_call_that_was_not_noted_is_told(spark):
    """The rows are right, and a warning says why the function is called for all of them and what to do."""
    watch()
    even = sf.udf(lambda x: x % 2 == 0, "boolean")
    column = even("id")
    del column.__dict__["_millrace_note"]
    with pytest.warns(MillraceWarning, match="called by Spark for every row.*as \\(function"):
        frame = millrace.where(spark.range(4), column)
    assert frame.count() == 2
    with pytest.warns(MillraceWarning, match="condition 2 is called by Spark"):
        assert millrace.where(spark.range(4), "id > 0", even("id") | (sf.col("id") == 3)).count() == 2
    assert millrace.where(spark.range(4), (even, "id"), sf.isnotnull("id")).count() == 2
