"""The session that a query runs in, where the caller names none."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

from pyspark.sql import SparkSession

from millrace.errors import InputError


def session_of(spark: Any, tables: Mapping[Any, Any]) -> SparkSession:
    """Return the session given, that of a DataFrame among the tables, the active one, or a new one."""
    if spark is None:
        frames = [each for each in tables.values() if hasattr(each, "sparkSession")]
        found = frames[0].sparkSession if frames else SparkSession.getActiveSession()
        return found or _new_session()
    if not hasattr(spark, "sql") or not hasattr(spark, "conf"):
        raise InputError(
            f"spark is given as {type(spark).__name__}: expected a SparkSession; tables and options go by "
            "name, such as tables={'orders': 'orders.parquet'}"
        )
    session: SparkSession = spark
    return session


def _new_session() -> SparkSession:
    """Make a session whose workers run this Python: the one on the PATH may lack what they need."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    return SparkSession.builder.getOrCreate()
