"""Columns that are calls of PySpark's functions say so, whoever is imported first."""

from __future__ import annotations

import subprocess
import sys

import pytest
from pyspark.sql import functions as sf

from millrace.applied import noted

ORDERS = {
    "millrace first": "import millrace; from pyspark.sql import functions as sf",
    "pyspark first": "from pyspark.sql import functions as sf; import millrace",
    "connect first": "import pyspark.sql.connect.udf, millrace; from pyspark.sql import functions as sf",
}


@pytest.mark.parametrize("imports", ORDERS.values(), ids=ORDERS)
def test_functions_are_watched_whatever_is_imported_first(imports):
    """Both of PySpark's classes are wrapped, once, and everything else about them stays."""
    code = (
        f"{imports}; import pyspark.sql.udf, pyspark.sql.connect.udf\n"
        "for module in (pyspark.sql.udf, pyspark.sql.connect.udf):\n"
        "    call = module.UserDefinedFunction.__call__\n"
        "    marks = [hasattr(each, '_millrace_call') for each in (call, call.__wrapped__)]\n"
        "    print(*marks, call.__name__)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["True False __call__"] * 2


def test_a_call_is_noted_with_its_arguments(spark):
    """Function, arguments and names; a Column of another origin has no note."""
    even = sf.udf(lambda x: x % 2 == 0, "boolean")
    column = sf.col("id")
    note = noted(even(column))
    assert note is not None
    assert note.function.func is even.func
    assert note.arguments == (column,) or note.arguments[0] is column
    assert noted(even(x="id")).named == {"x": "id"}
    assert noted(even.asNondeterministic()("id")).function.deterministic is False
    assert noted(column) is None
    assert noted(even("id") & even("id")) is None
    assert noted("text") is None
