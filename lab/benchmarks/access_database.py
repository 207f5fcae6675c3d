"""The database part of the access benchmark: a real PostgreSQL, looked up by key or read by Spark's JDBC."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import millrace
from lab.benchmarks.access_sides import QUERY, SCHEMA, Rows
from lab.benchmarks.postgres import SECRET, Postgres, postgres

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAR = "MILLRACE_BENCH_JDBC"
"""Environment variable that names PostgreSQL's JDBC driver, a jar file."""

_JARS = ("/usr/share/java/postgresql.jar",)  # where Debian's package libpostgresql-jdbc-java puts it


def jdbc_jar() -> str | None:
    """Return where PostgreSQL's JDBC driver is, None where there is none."""
    named = os.environ.get(JAR)
    return next((jar for jar in ([named] if named else _JARS) if Path(jar).is_file()), None)


@contextmanager
def items(rows: int) -> Iterator[Postgres]:
    """Start PostgreSQL with a table ``item`` of so many rows; its password is in the environment meanwhile.

    Raises:
        SetupError: The package that brings PostgreSQL is missing.
    """
    with postgres() as server:
        server.run(
            "CREATE TABLE item AS SELECT k::bigint AS k, 'value ' || (k::bigint * 7919) % 10007 AS v, "
            f"repeat('x', 100) AS payload FROM generate_series(0, {rows - 1}) AS k",
            "ALTER TABLE item ADD PRIMARY KEY (k)",
        )
        os.environ[SECRET] = server.password
        try:
            yield server
        finally:
            del os.environ[SECRET]


def by_lookup(spark: SparkSession, rows: Rows, server: Postgres) -> Callable[[], tuple[float, ...]]:
    """Return what looks the rows' keys up, some hundred in a statement."""
    table = millrace.lookup("p", SCHEMA, bind=["k"], via=millrace.database(server.url, "item"))

    def run() -> tuple[float, ...]:
        found = millrace.sql(QUERY, spark, {"r": rows.frame(spark), "p": table}).collect()
        rows.check("database", [tuple(row) for row in found])
        return ()

    return run


def by_jdbc(spark: SparkSession, rows: Rows, server: Postgres) -> Callable[[], tuple[float, ...]]:
    """Return what reads the table by Spark's JDBC source and joins it in Spark."""
    options = {
        "url": f"jdbc:postgresql://127.0.0.1:{server.port}/postgres",
        "dbtable": "item",
        "user": "postgres",
        "password": server.password,
        "driver": "org.postgresql.Driver",
    }

    def run() -> tuple[float, ...]:
        table = spark.read.format("jdbc").options(**options).load()
        found = rows.frame(spark).join(table, "k").select("id", "k", "v").collect()
        rows.check("Spark's JDBC", [tuple(row) for row in found])
        return ()

    return run
