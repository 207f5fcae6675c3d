"""A session's settings, each asked for once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millrace.spark.parallelism import is_connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class SessionConf:
    """The settings of a session while one query is planned.

    Classic Spark is asked for them one by one, which takes less than copying all; Spark Connect once for
    all that are set, for each question is a request.

    Args:
        spark: The session.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._known: dict[str, str] = {}
        self._all = is_connect(spark)
        if self._all:
            self._known = dict(spark.conf.getAll)

    def get(self, key: str, default: str) -> str:
        """Return a setting's value, ``default`` where it is not set."""
        if key not in self._known and not self._all:
            self._known[key] = str(self._spark.conf.get(key, default))
        return self._known.get(key, default)

    def is_on(self, key: str, default: str = "false") -> bool:
        """Tell whether a setting is true."""
        return self.get(key, default).lower() == "true"
