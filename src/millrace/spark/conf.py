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

    Attributes:
        asked: What was asked for so far: the values by key and default.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self.asked: dict[tuple[str, str | None], str] = {}
        self._set = dict(spark.conf.getAll) if is_connect(spark) else None

    def get(self, key: str, default: str | None = None) -> str:
        """Return a setting's value, where it is not set ``default``, or without one Spark's own."""
        value = self.asked.get((key, default))
        if value is None:
            if default is not None and self._set is not None:
                value = self._set.get(key, default)
            else:
                value = str(
                    self._spark.conf.get(key) if default is None else self._spark.conf.get(key, default)
                )
            self.asked[key, default] = value
        return value

    def is_on(self, key: str, default: str = "false") -> bool:
        """Tell whether a setting is true."""
        return self.get(key, default).lower() == "true"
