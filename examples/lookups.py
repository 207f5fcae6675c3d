"""A join with rows that can only be asked for by key: each key once, several at a time, failures told.

python examples/lookups.py
"""

import asyncio

from pyspark.sql import SparkSession, functions as sf

import millrace

PRICES = {f"sku-{n}": 100 + n for n in range(40)}


async def price(sku: str) -> list[dict[str, object]]:
    """Stand for a service: slow, and without some of the keys."""
    await asyncio.sleep(0.01)
    if sku == "sku-13":
        raise ValueError("this price is a secret")
    return [{"price": PRICES[sku]}] if sku in PRICES else []


def main() -> None:
    """Price 1,000 orders of 50 articles."""
    spark = SparkSession.builder.getOrCreate()
    orders = spark.range(1_000).select("id", sf.concat(sf.lit("sku-"), sf.col("id") % 50).alias("sku"))
    prices = millrace.lookup(
        "prices",
        "sku string, price bigint",
        bind=["sku"],
        via=millrace.function(price, max_in_flight=8, retries=0),
        on_error="null",
    )
    query = millrace.query(
        "SELECT o.id, o.sku, p.price FROM orders o LEFT JOIN prices p ON o.sku = p.sku",
        tables={"orders": orders, "prices": prices},
    )
    rows = query.df.collect()
    print(sum(row.price is not None for row in rows), "of", len(rows), "orders have a price")
    print(query.lookups()[0])
    print(query.failed_keys().to_pylist())


if __name__ == "__main__":
    main()
