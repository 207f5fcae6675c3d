"""Chains of joins on Columns, as PySpark's users write them, for every kind of session."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, functions as sf

import millrace
from tests.sql.compare import bags

TABLES = {
    "a": {"id": [1, 2, 2, 3, 4, None], "k": [2, 3, 1, 4, 2, 1], "x": [5, 6, 7, 8, 9, 10]},
    "b": {"id": [1, 2, 3, 3, None, 6], "k": [3, 2, 2, 1, 4, 1], "v": [2, 1, 4, 2, 1, 3]},
    "c": {"id": [1, 2, 3, 4, 4], "w": [2, 1, 3, 3, None], "st": [{"v": 9 - n, "id": n} for n in range(5)]},
}
"""Columns of the same name have other values, so that no side can be taken for another."""


def odd(column):
    return sf.udf(lambda x: x % 2 == 1, "boolean")(column)


def frames(spark, folder) -> list[DataFrame]:
    """The tables as DataFrames."""
    for name, table in TABLES.items():
        pq.write_table(pa.table(table), f"{folder}/{name}.parquet")
    a, b, c = (spark.read.parquet(f"{folder}/{name}.parquet") for name in TABLES)
    return [a, b.withColumn("v", b.v + 0), c]  # scans, and one that is none


def equal(a, b):
    return a.join(b, a.id == b.id)


def of_filters(a, b, c):
    some = a.filter("x > 5")
    both = some.filter(a.k > 0).join(b.filter("v < 4"), [some["id"] == b["k"], b.v == a.k])
    return both.filter("x > 6").join(c, both.v == c.id)


def of_names(a, b, c):
    return a.join(c, sf.col("k") == sf.col("w")).join(b, (sf.col("v") == c.id) & (a.k == b.k))


def of_itself(a, b, c):
    most = equal(a, b).groupBy("x").agg(sf.max("v").alias("most"))
    return a.join(most, a.x == most.x).drop(most.x).join(a.select("id", "k"), "id").join(c, most.most == c.id)


TAKEN = {
    "filters": of_filters,
    "names": of_names,
    "drop": lambda a, b, c: equal(a, b).drop(b.id, a.k).filter("id > 1 and k < 3").join(c, "id"),
    "outer": lambda a, b, c: equal(a, b).select("x", "v").join(c, sf.col("v") == c.id, "left"),
    "steps": lambda a, b, c: equal(a, b).withColumn("z", a.k + b.k).filter(odd(b.v)).select("z", b.id),
}
"""Millrace has its part in them in every session."""
RESOLVED = {
    "itself": of_itself,
    "select": lambda a, b, c: equal(a, b).join(c, b.k == c.id).select(c.w, b.k, a.k, "x", "st.v"),
    "aliases": lambda a, b, c: equal(c, a.alias("st")).filter("st.k < 3").select("st.x", "st.*", c.id),
    "groups": lambda a, b, c: equal(a, b).groupBy(b.k).agg(sf.sum(a.k), sf.max("v")),
}
"""They name columns of what was joined, which Spark Connect does not look for below a union."""
LEFT = {
    "hidden": lambda a, b, c: a.join(b, "id").limit(99).withColumn("z", b.k).select(b.id, "z"),
    "literal": lambda a, b, c: a.join(b, (a.id == b.id) & (sf.lit("id") == sf.lit("id"))),
    "expression": lambda a, b, c: a.join(b, a.id == b.id + 1),
    "null-safe": lambda a, b, c: a.join(b, a.id.eqNullSafe(b.id)),
}
"""Spark's alone: what they compare is not known, or what they name is not among the columns."""


def differing(spark, folder, taken, rows_of=bags) -> dict[str, object]:
    """The chains whose columns or rows are not plain Spark's, and those wrongly taken or left.

    ``rows_of`` collects them: all in one job, or one by one where Spark finds no such column below a union.
    """
    tables = frames(spark, folder)
    chains = {**TAKEN, **RESOLVED, **LEFT}
    plain = {name: chain(*tables) for name, chain in chains.items()}
    with millrace.enable(spark, options={"take_all": True}):
        ours = {name: chain(*tables) for name, chain in chains.items()}
        parts = {name: has_part(frame) for name, frame in ours.items()}
    wanted, found = rows_of(plain), rows_of(ours)
    return {
        name: (wanted[name], found[name], parts[name])
        for name in chains
        if (ours[name].columns, found[name]) != (plain[name].columns, wanted[name])
        or not wanted[name]
        or parts[name] != (name in taken)
    }


def has_part(frame) -> bool:
    try:
        millrace.explain(frame)
    except millrace.MillraceError as error:
        return "that Millrace returned" in str(error)  # several
    return True
