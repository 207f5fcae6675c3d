"""Columns that are calls of PySpark's functions say so, from the first use of Millrace's own."""

from __future__ import annotations

import subprocess
import sys

import pytest
from pyspark.sql import functions as sf

import millrace
from millrace.errors import MillraceWarning
from millrace.spark.patches import watch
from tests.gate import sampled

USES = {
    "where": "import millrace; from pyspark.sql import functions as sf; millrace.where",
    "from": "from millrace import where; from pyspark.sql import functions as sf",
    "session": "import millrace; millrace.Session",
    "join": "import millrace; millrace.join",
    "connect": "import pyspark.sql.connect.udf, millrace; millrace.filter",
}


def marks(code):
    """Which of PySpark's classes are wrapped after some code, in a process of its own."""
    asked = (
        f"{code}\nimport sys, pyspark.sql.udf\n"
        "modules = [sys.modules.get(name) for name in ('pyspark.sql.udf', 'pyspark.sql.connect.udf')]\n"
        "calls = [m.UserDefinedFunction.__call__ for m in modules if m is not None]\n"
        "print([(hasattr(each, '__wrapped__'), each.__name__) for each in calls])\n"
    )
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.mark.parametrize("use", sampled(USES, 2))
def test_functions_are_watched_from_the_first_use_on(use):
    """Both of PySpark's classes are wrapped, if they are loaded, and everything else about them stays."""
    count = 2 if use == "connect" else 1
    assert marks(USES[use]) == str([(True, "__call__")] * count)


def test_importing_millrace_changes_nothing_of_pyspark():
    """Only the use of some of its functions does."""
    rooms = "millrace.engine.runs.eddy_run, millrace.api.session, millrace.api.enabling"
    assert marks(f"import millrace, {rooms}, pyspark.sql.udf") == "[(False, '__call__')]"


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
