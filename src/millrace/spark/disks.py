"""Whether a path means the same file to this process and to Spark."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from pyspark.errors import PySparkException

from millrace.spark.parallelism import is_connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SEEN: WeakKeyDictionary[SparkSession, dict[bool, bool]] = WeakKeyDictionary()


def shares_disks(spark: SparkSession) -> bool:
    """Return whether Spark's driver has this machine's files; a Spark Connect server may run elsewhere."""
    return not is_connect(spark) or _sees(spark, schemeless=False)


def paths_are_local(spark: SparkSession) -> bool:
    """Return whether Spark, too, takes a path without a scheme for one of this machine's files."""
    return _sees(spark, schemeless=True)


def _sees(spark: SparkSession, *, schemeless: bool) -> bool:
    """Tell whether Spark finds a new file of this machine; asked once a session."""
    known = _SEEN.setdefault(spark, {})
    if schemeless not in known:
        with tempfile.TemporaryDirectory(prefix="millrace-") as folder:
            file = Path(folder) / "seen.txt"
            file.touch()
            path = str(file) if schemeless else file.as_uri()
            try:
                found = spark.read.text(path).inputFiles()
            except PySparkException:
                found = []
        known[schemeless] = any(uri.startswith("file:") for uri in found)
    return known[schemeless]
