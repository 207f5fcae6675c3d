"""One Spark session and one small TPC-H for the whole run."""

from __future__ import annotations

import logging
import os
import sys

import pytest

from millrace.benchmarks import postgres as postgresql, tpch_data


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what needs the shared session: `make test` runs these tests beside the others."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)


@pytest.fixture(scope="session")
def spark():
    """A classic Spark session with two cores, small shuffles and a fixed time zone."""
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    # They print every error that Spark raises, with its stack, beside raising it.
    for logger in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        logging.getLogger(logger).setLevel(logging.CRITICAL)
    session = (
        SparkSession.builder.master("local[2]")
        .appName("millrace tests")
        .config("spark.driver.memory", "2g")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.sql.shuffle.partitions", "4")
        .config("spark.sql.session.timeZone", "UTC")
        # Every query is new and small: compiling, by Spark and by the JVM, does not pay.
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1")
        .config("spark.sql.codegen.wholeStage", "false")
        .config("spark.sql.codegen.factoryMode", "NO_CODEGEN")
        .getOrCreate()
    )
    yield session
    session.stop()


@pytest.fixture(scope="session")
def tpch_tiny(tmp_path_factory) -> dict[str, str]:
    """TPC-H at scale 0.01: the path of each table's Parquet file, by table name."""
    return tpch_data.ensure(0.01, tmp_path_factory.mktemp("tpch") / "sf001")


@pytest.fixture(scope="session")
def postgres():
    """A PostgreSQL server in a temporary folder."""
    with postgresql.postgres() as server:
        yield server
