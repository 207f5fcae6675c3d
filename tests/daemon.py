"""Spark's own daemon of Python workers, with what all of them import imported before they are forked.

Tests start hundreds: each that fails ends its worker, and imports are most of what a small task takes.
Sessions of their own start workers as users' sessions do.
"""

from __future__ import annotations

from importlib import import_module

from pyspark.daemon import manager

SHARED = ("pandas", "pyarrow.compute", "numba", "pyspark.sql.pandas.serializers", "pyspark.worker")

if __name__ == "__main__":
    for name in (*SHARED, "millrace.spark.tasks"):
        import_module(name)
    manager()
