"""Tables and functions for queries that mean something else under a setting of the session."""

from __future__ import annotations

from pathlib import Path

TABLES = {
    "sa": "VALUES (1, 'x', DATE'2020-01-01', 0.5BD, 'a\\\\'), (2, 'y', DATE'12020-01-01', 1.5BD, 'b'), "
    "(2, 'y', DATE'2020-01-01', 2.5BD, 'a') AS t(id, s, d, n, p)",
    "sb": "VALUES (1, 10, CAST(0 AS DECIMAL(38, 37))), "
    "(2, 20, CAST('1.0000000000000000000000000000000000001' AS DECIMAL(38, 37))), "
    "(2, 20, CAST(NULL AS DECIMAL(38, 37))) AS t(id, v, w)",
    "sn": "VALUES (1), (NULL) AS t(id)",
}


def register(spark, folder: Path) -> None:
    """Make the tables views of a session, and functions that have names of Spark's own."""
    for name, text in TABLES.items():
        path = str(folder / name)
        spark.sql(f"SELECT * FROM {text}").write.parquet(path)
        spark.read.parquet(path).createOrReplaceTempView(name)
    for name, kind in (("year", "DATE"), ("length", "STRING")):
        spark.sql(f"CREATE TEMPORARY FUNCTION {name}(x {kind}) RETURNS INT RETURN 7")


def parsed(text: str) -> dict[str, str]:
    """Read settings that are written ``key=value;key=value``."""
    return dict(pair.split("=") for pair in text.split(";") if pair)
