"""Code that is written already: the session's own methods go through Millrace while it is enabled.

python examples/enabled_session.py
"""

from pyspark.sql import DataFrame, SparkSession, functions as sf

import millrace
import millrace.api.accessor  # gives DataFrames df.millrace

spark = SparkSession.builder.getOrCreate()  # before functions: Spark reads their type in a session


@sf.udf("boolean")
def is_round(total):
    """Any function of Python."""
    return total % 10 == 0


def revenue(orders: DataFrame, customers: DataFrame) -> DataFrame:
    """Stand for code of somebody else, who has never heard of Millrace."""
    large = orders.filter("total > 10").filter(is_round("total"))
    return (
        large.join(customers, "customer").groupBy("city").agg(sf.sum("total").alias("total")).orderBy("city")
    )


def main() -> None:
    """Run it both ways."""
    orders = spark.range(10_000).select(
        (sf.col("id") % 300).alias("customer"), (sf.col("id") % 90).alias("total")
    )
    customers = spark.range(300).selectExpr("id AS customer", "id % 4 AS city")
    plain = revenue(orders, customers).collect()
    with millrace.enable(spark):
        ours = revenue(orders, customers).collect()
        filtered = orders.filter(is_round("total")).filter("total > 10")
        filtered.count()
        print(filtered.millrace.report())
    print("same rows:", ours == plain)


if __name__ == "__main__":
    main()
