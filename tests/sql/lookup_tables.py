"""Lookup tables over functions, and the same rows as DataFrames for plain Spark."""

from __future__ import annotations

import millrace
from tests.sql import cases

PRICES = [
    ("a", 1.0, "EU", 1),
    ("a", 2.0, "US", 1),
    ("b", 3.0, "EU", 2),
    ("c", 4.0, None, 3),
    ("z", 9.0, "EU", 9),
]
CATS = [(1, "one", "a"), (2, "two", "b"), (3, "three", None), (5, "five", "z")]
ORDERS = [
    (1, "a", "EU", 1),
    (2, "a", "US", 1),
    (3, "b", "EU", 2),
    (4, None, "EU", None),
    (5, "q", "US", 7),
    (6, "c", "EU", 3),
]
PRICE_COLUMNS = "sku string, price double, region string, k int"
CAT_COLUMNS = "k int, name string, nxt string"


def finder(rows, columns, places):
    """Return a function that gives the rows whose columns at some places have the values."""
    names = [column.split()[0] for column in columns.split(", ")]

    def find(*values):
        found = [row for row in rows if all(row[p] == v for p, v in zip(places, values, strict=True))]
        return [dict(zip(names, row, strict=True)) for row in found]

    return millrace.function(find, name="find")


def lister(rows):
    """Return a function that gives all rows."""
    names = [column.split()[0] for column in PRICE_COLUMNS.split(", ")]
    return millrace.function(lambda: [dict(zip(names, row, strict=True)) for row in rows], scan=True)


def declared(spark):
    """The lookup tables by name, and an ordinary table."""
    by_sku, by_pair = (finder(PRICES, PRICE_COLUMNS, places) for places in ((0,), (0, 2)))
    by_k = finder(PRICES, PRICE_COLUMNS, (3,))
    prices = plain(spark)["prices"]
    return {
        "o": plain(spark)["o"],
        "limited": plain(spark)["o"].limit(3),
        "prices": millrace.lookup("prices", PRICE_COLUMNS, ["sku"], by_sku),
        "pairs": millrace.lookup("pairs", PRICE_COLUMNS, ["sku", "region"], by_pair),
        "either": millrace.lookup("either", PRICE_COLUMNS, [["sku"], ["k"]], [by_sku, by_k]),
        "scanned": millrace.lookup("scanned", PRICE_COLUMNS, ["sku"], by_sku, scan=prices.union(prices)),
        "listed": millrace.lookup("listed", PRICE_COLUMNS, ["sku"], by_sku, scan=lister(PRICES * 2)),
        "c": plain(spark)["c"],
        "cats": millrace.lookup("cats", CAT_COLUMNS, ["k"], finder(CATS, CAT_COLUMNS, (0,))),
    }


def plain(spark):
    prices = spark.createDataFrame(PRICES, PRICE_COLUMNS).coalesce(1)
    orders = spark.createDataFrame(ORDERS, "id int, sku string, region string, n int").coalesce(1)
    cats = spark.createDataFrame(CATS, CAT_COLUMNS).coalesce(1)
    same = {"pairs": prices, "either": prices, "scanned": prices, "listed": prices, "c": cats}
    return {"o": orders, "limited": orders.limit(3), "prices": prices, "cats": cats, **same}


def answered():
    """The queries that have an answer, by a name made of their file's and their place."""
    return {
        f"{name}-{number}": text
        for name in ("bound", "constants", "outer", "nested")
        for number, (_, text) in enumerate(cases.read(f"lookups/{name}"))
    }
