"""Pipelines of DataFrames as PySpark's users write them, for every kind of session."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, Window, functions as sf

from millrace.spark.frames import handles_of


def shop(spark, folder) -> dict[str, DataFrame]:
    """Tables as a script reads them: nulls among the keys, dots and quotes in names and texts."""
    day = dt.date(2026, 1, 1)
    rows = {
        "sales": (
            "id long, item int, who string, n int, price decimal(9,2), day date",
            [
                (i, i % 7 or None, f"w{i % 5}", i % 4, Decimal(i * 3 % 100), day + dt.timedelta(i % 40))
                for i in range(300)
            ],
        ),
        "items": (
            "item long, `na.me` string, kind string",
            [(i, f"it's {i}", "ab"[i % 2]) for i in range(6)],
        ),
        "people": (
            "who string, age int, tags array<string>, home struct<zip: int, city: string>",
            [(f"w{i}", 20 + i, ["x", "__a12"], (i, f"c{i}")) for i in range(4)],
        ),
    }
    for name, (schema, values) in rows.items():
        spark.createDataFrame(values, schema).write.parquet(f"{folder}/{name}")
    read = {name: spark.read.parquet(f"{folder}/{name}") for name in rows}
    read["sales"].write.csv(f"{folder}/csv", header=True)
    read["csv"] = spark.read.csv(f"{folder}/csv", header=True, inferSchema=True)
    return read


def star(s, i, p, _):
    priced = s.withColumn("total", sf.col("price") * sf.col("n")).drop("price")
    joined = priced.join(i, "item").withColumnRenamed("na.me", "title").join(p, "who", "left")
    return joined.groupBy("title", "age").agg(sf.sum("total").alias("sum"), sf.countDistinct("who"))


def of_itself(s, i, p, _):
    best = s.groupBy("item").agg(sf.max("price").alias("best"))
    return (
        s.join(best, "item")
        .where("price = best")
        .join(i, s.item == i.item)
        .select(s.id, best.best, "`na.me`")
    )


def windowed(s, i, p, _):
    latest = Window.partitionBy("who").orderBy(sf.desc("day"), "id")
    ranked = s.withColumn("r", sf.row_number().over(latest)).withColumn("k", sf.rank().over(latest))
    return (
        ranked.filter("r <= 2")
        .join(p, "who")
        .select("id", "r", "k", "home.city", sf.col("tags")[1].alias("t"))
    )


def nested(s, i, p, _):
    top = s.orderBy(sf.desc("price"), "id").limit(50)
    return top.join(i, "item").where(sf.col("kind") == "a").select("id", sf.lit("__a3 t0.x").alias("text"))


def of_unions(s, i, p, _):
    both = s.select("id", "item").union(s.select("item", sf.col("n").alias("id")))
    return both.join(i, "item").groupBy("kind").agg(sf.sum("id").alias("s"), sf.count("*").alias("n"))


def preserved(s, i, p, _):
    kinds = i.withColumn("known", sf.lit(True)).withColumn("kind", sf.coalesce("kind", sf.lit("?")))
    return (
        p.join(s.where("n > 2"), "who", "right")
        .join(kinds, "item", "left")
        .select("id", "age", "known", "kind")
    )


def twice(s, i, p, _):
    a, b = s.alias("a"), s.alias("b")
    near = a.join(b, (sf.col("a.item") == sf.col("b.item")) & (sf.col("a.id") < sf.col("b.id")))
    return near.select("a.id", sf.col("b.id").alias("ID")).groupBy("a.id").count()


def cleaned(s, i, p, _):
    fixed = s.fillna({"item": 0}).replace("w1", "w2", ["who"]).dropDuplicates(["who", "item", "n"])
    return fixed.join(i, "item").groupBy("who").agg(sf.count("*").alias("n"))


def dated(s, i, p, _):
    month = s.withColumn("month", sf.date_trunc("month", "day")).withColumn("y", sf.year("day"))
    late = month.where(
        (sf.col("day") + sf.expr("interval 3 days") > "2026-01-09") & sf.col("item").isin(1, 2, 3)
    )
    return late.join(i, "item").groupBy("month", "y", sf.to_date("month").alias("d")).agg(sf.avg("price"))


def asked(s, i, p, _):
    some, other = (sf.udf(lambda x, by=by: x is not None and x % by == 0, "boolean") for by in (2, 3))
    both = s.filter(some("n") & other("id")).join(i, "item").filter(~some("item") | (sf.col("n") > 1))
    return both.groupBy("kind").count()


PIPELINES = {
    **{
        each.__name__: each
        for each in (star, of_itself, windowed, nested, of_unions, preserved, twice, cleaned, dated, asked)
    },
    "from csv": lambda s, i, p, c: c.join(i, "item").groupBy("kind", "n").agg(sf.min("day")),
    "exists": lambda s, i, p, _: s.join(i.where("kind = 'a'"), "item", "semi").join(p, "who", "anti"),
    "both sides": lambda s, i, p, _: s.join(p, "who").join(i, "item", "full").groupBy("kind").count(),
    "distinct": lambda s, i, p, _: s.join(i, "item").select("who", "kind").distinct(),
    "constant": lambda s, i, p, _: s.join(i, "item").withColumn("one", sf.lit(1)).groupBy("one").count(),
    "counted": lambda s, i, p, _: s.join(i, "item").agg(sf.count(sf.lit(1))),
    "unread": lambda s, i, p, _: (
        s.join(i, "item").crossJoin(p.agg(sf.round(sf.avg("age"), 2).alias("m"))).select("id")
    ),
    "kept": lambda s, i, p, _: s.join(sf.broadcast(i), "item").select("id", "kind").coalesce(1),
    "same names": lambda s, i, p, _: s.join(i, s.item == i.item).join(p, s.who == p.who),
    "expression": lambda s, i, p, _: s.join(i, s.item + 1 == i.item).select("id", "kind"),
}

TABLES = {
    "a": {"id": [1, 2, 2, 3, 4, None], "k": [2, 3, 1, 4, 2, 1], "x": [5, 6, 7, 8, 9, 10]},
    "b": {"id": [1, 2, 3, 3, None, 6], "k": [3, 2, 2, 1, 4, 1], "v": [2, 1, 4, 2, 1, 3]},
    "c": {"id": [1, 2, 3, 4, 4], "w": [2, 1, 3, 3, None], "st": [{"v": 9 - n, "id": n} for n in range(5)]},
}
"""Columns of the same name have other values, so that no side can be taken for another."""


def abc(spark, folder) -> list[DataFrame]:
    """The tables as DataFrames; the first is a view too."""
    for name, table in TABLES.items():
        pq.write_table(pa.table(table), f"{folder}/{name}.parquet")
    a, b, c = (spark.read.parquet(f"{folder}/{name}.parquet") for name in TABLES)
    a.createOrReplaceTempView("va")
    return [a, b.withColumn("v", b.v + 0), c]  # scans, and one that is none


def odd(column):
    return sf.udf(lambda x: x % 2 == 1, "boolean")(column)


def equal(a, b):
    return a.join(b, a.id == b.id)


def of_filters(a, b, c):
    some = a.filter("x > 5")
    both = some.filter(a.k > 0).join(b.filter("v < 4"), [some["id"] == b["k"], b.v == a.k])
    return both.filter("x > 6").join(c, both.v == c.id)


def of_its_groups(a, b, c):
    most = equal(a, b).groupBy("x").agg(sf.max("v").alias("most"))
    return a.join(most, a.x == most.x).drop(most.x).join(a.select("id", "k"), "id").join(c, most.most == c.id)


def of_aliases(a, b, c):
    one, other = a.alias("one"), b.alias("other")
    joined = one.join(other, sf.col("one.id") == sf.col("other.k")).select("one.x", "other.*")
    return joined.groupBy("k").agg({"v": "max"}).withColumnRenamed("max(v)", "most").filter("most > 0")


def of_literals(a, b, c):
    constants = [1.5, -3, 1 << 40, "a'\\b", None, True, Decimal("1.20"), dt.date(2026, 2, 28), float("nan")]
    shown = [sf.lit(each).alias(f"c{n}") for n, each in enumerate(constants)]
    some = a.join(b, "id").select(a.x.cast("string"), b.v.cast("decimal(9,2)").alias("d"), *shown)
    return some.filter(
        sf.lit(dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)) > sf.lit("2025-01-01").cast("timestamp")
    )


def of_windows(a, b, c):
    near = Window.partitionBy("k").orderBy(sf.desc("x"), "id").rowsBetween(-1, Window.currentRow)
    ranks = sf.row_number().over(Window.partitionBy("k").orderBy("x")) + 1
    return a.join(c, "id").withColumn("s", sf.sum("x").over(near)).withColumn("r", ranks).filter("r < 3")


def mapped(df):
    """Return what SQL cannot say, over a DataFrame."""
    return df.mapInArrow(lambda batches: batches, df.schema)


def of_itself_mapped(a, b, c):
    both = mapped(a.join(b, "id").select("x", "v"))
    one, other = both.alias("one"), both.alias("other")
    joined = one.join(other, sf.expr("one.v = other.v"))
    return joined.select("one.x", sf.col("other.x").alias("w"))


COLUMNS = {
    "filters": of_filters,
    "names": lambda a, b, c: a.join(c, sf.col("k") == sf.col("w")).join(
        b, (sf.col("v") == c.id) & (a.k == b.k)
    ),
    "drop": lambda a, b, c: equal(a, b).drop(b.id, a.k).filter("id > 1 and k < 3").join(c, "id"),
    "outer": lambda a, b, c: equal(a, b).select("x", "v").join(c, sf.col("v") == c.id, "left"),
    "steps": lambda a, b, c: equal(a, b).withColumn("z", a.k + b.k).filter(odd(b.v)).select("z", b.id),
    "groups of itself": of_its_groups,
    "select": lambda a, b, c: equal(a, b).join(c, b.k == c.id).select(c.w, b.k, a.k, "x", "st.v"),
    "aliased": lambda a, b, c: equal(c, a.alias("st")).filter("st.k < 3").select("st.x", "st.*", c.id),
    "groups": lambda a, b, c: equal(a, b).groupBy(b.k).agg(sf.sum(a.k), sf.max("v")),
    "literal": lambda a, b, c: a.join(b, (a.id == b.id) & (sf.lit("id") == sf.lit("id"))),
    "aliases": of_aliases,
    "literals": of_literals,
    "windows": of_windows,
    "right": lambda a, b, c: a.join(b, ["id", "k"], "right").select("id", "k", "x", "v"),
    "chosen": lambda a, b, c: a.join(b, ["k"], "semi").join(c, "id", "anti"),
    "texts": lambda a, b, c: a.join(b, "id").selectExpr(
        "ID",
        "x + 1 y",
        "upper(string(v)) u",
        "case when v > 1 then 'it''s' else \"q\" end",
        "count(*) over () n",
    ),
    "parts": lambda a, b, c: a.join(c, "id").select(c.st["v"], "st.id", c.st.v.alias("z")),
    "sums": lambda a, b, c: a.join(b, "id").select(sf.sum("x").alias("s"), sf.count("*").alias("n")),
    "view": lambda a, b, c: (
        a.sparkSession.table("va").join(b, "id").filter("va.x > 1").groupBy("va.k").count()
    ),
    "conditions": lambda a, b, c: a.join(b, "id").filter(
        a.x.between(5, 8) & ~b.v.isin(1, 9) & a.k.isNotNull()
    ),
    "orders": lambda a, b, c: a.join(b, "id").orderBy(sf.desc("x"), "v").limit(3),
    "renamed": lambda a, b, c: equal(a, b).toDF(*"pqrstu").filter("p > 1"),
    "same names": lambda a, b, c: equal(a, b).select("*").drop("id"),
    "any": lambda a, b, c: a.join(b, "id").groupBy("x").agg(sf.collect_set("v").alias("v")).select("x"),
    "random": lambda a, b, c: a.withColumn("r", sf.rand(3)).join(b, "id").select("id", "x", "v"),
    "asked for more": lambda a, b, c: (
        a.join(b, "id")
        .filter(sf.udf(lambda x: x + 1, "int")("x") > 3)
        .select(sf.udf(lambda v: f"<{v}>")("v").alias("o"))
    ),
    "numbered": lambda a, b, c: a.join(b, "id").select("x", sf.monotonically_increasing_id() >= 0),
    "named in a text": lambda a, b, c: (
        a.join(b, "id").select(sf.expr("x AS y"), a.x, "v").drop(a.x).where("y > 1")
    ),
    "ordinal": lambda a, b, c: a.join(b, "id").orderBy(sf.expr("2"), "x").limit(2).select("x", "v"),
    "named rows": lambda a, b, c: a.withColumnRenamed("x", "y").join(b, "id").selectExpr("to_json((y, v)) j"),
    "counted": lambda a, b, c: a.join(c, "id").select(sf.expr("count(x, *)").alias("n")),
    "starred": lambda a, b, c: (
        a.alias("one").join(b.alias("b"), "id").select("b.*").distinct().groupBy("k").count()
    ),
    "bits": lambda a, b, c: a.select(sf.bitmap_construct_agg(sf.bitmap_bit_position("x")).alias("m")).join(
        b, sf.lit(1) == b.k
    ),
    "most": lambda a, b, c: (
        a.join(a.groupBy("k").agg(sf.max("x").alias("m")), "k").where("x = m").select(a.id)
    ),
    "other case": lambda a, b, c: a.join(b, "ID").select("X", "V").withColumn("x", sf.lit(1)),
    "hidden": lambda a, b, c: a.join(b, "id").limit(99).withColumn("z", b.k).select(b.id, "z"),
    "lateral": lambda a, b, c: a.join(b, "id").select(sf.col("x").alias("q"), (sf.col("q") + 1).alias("r")),
    "null-safe": lambda a, b, c: a.join(b, a.id.eqNullSafe(b.id)),
    "exploded": lambda a, b, c: a.join(b, "id").select("x", sf.explode(sf.array("v", "x")).alias("e")),
    "few of many": lambda a, b, c: (
        a.join(b, "id").select("x", sf.udf(lambda v: f"<{v}>")("v").alias("o")).groupBy("o").count()
    ),
    "pivoted": lambda a, b, c: a.join(b, "id").groupBy("x").pivot("v", [1, 2]).agg(sf.count("id")),
    "mapped": lambda a, b, c: (
        a.join(b, "id").select("x", "v").mapInArrow(lambda rows: rows, "x long, v long").filter("x > 5")
    ),
    "struct": lambda a, b, c: a.join(b, "id").select(sf.struct("x", "v").alias("s")).repartition(3),
    "filled": lambda a, b, c: (
        a.join(b, "id", "left").fillna(0, ["v"]).filter("v > 0").select("x", "v").dropna()
    ),
    "twice": lambda a, b, c: (
        a.join(b, "id")
        .withColumn("o", odd("x"))
        .select("x", "o")
        .join(
            c.join(b, "id").withColumn("x", sf.col("w") + 4).withColumn("p", odd("w")).select("x", "p"),
            "x",
            "full",
        )
    ),
    "computed": lambda a, b, c: a.join(b, "id").withColumn("o", odd("x")),
    "above": lambda a, b, c: mapped(a.join(b, "id").select("x", "v")).join(c, sf.col("v") == c.w),
    "both below": lambda a, b, c: mapped(equal(a, b).select("x", "v")).join(
        mapped(b.join(c, b.v == c.w).select("w", b.k)), sf.col("v") == sf.col("k")
    ),
    "three deep": lambda a, b, c: (
        mapped(mapped(a.join(b, "id").select("x", "v")).join(c, sf.col("v") == c.w).select("x", "w"))
        .join(b, sf.col("w") == b.k)
        .groupBy("x")
        .agg(sf.sum("v"))
    ),
    "mapped itself": of_itself_mapped,
    "random below": lambda a, b, c: (
        a.join(b, "id").withColumn("r", sf.rand(3)).filter("r >= 0").join(c, "id").select("x", "w")
    ),
}
"""Whatever Columns compare and name, and wherever they were taken of."""
BLOCKS = {"mapped": 1, "above": 2, "both below": 3, "three deep": 3, "mapped itself": 3, "random below": 1}
"""How many blocks eddies run of a pipeline: above what SQL cannot say, and below it."""


def blocks(df: DataFrame) -> int:
    """Return how many blocks eddies run of what Millrace made."""
    return sum(len(query.blocks) for query in handles_of(df))


LEFT = {"null-safe", "numbered"}
"""Millrace has no part in them: nothing is joined by equality, or the order of rows counts."""
LEFT_ON_CONNECT = LEFT | {"any", "hidden", "starred"}
"""What stands above a join names columns of what was joined, or takes any of several rows."""
