"""Sessions that have been stopped, whose every call would raise something else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millrace.errors import InputError
from millrace.spark.parallelism import is_connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def alive(spark: SparkSession) -> SparkSession:
    """Return a session unless it has stopped.

    Raises:
        InputError: It has.
    """
    try:
        spark.conf.get("spark.sql.session.timeZone")
        if not is_connect(spark):
            spark.sparkContext.defaultParallelism  # noqa: B018  # settings outlive the rest
    except Exception as error:
        raise InputError(
            f"the Spark session does not answer ({type(error).__name__}): if it was stopped, make a new one "
            "with SparkSession.builder.getOrCreate()"
        ) from error
    return spark
