"""Lookup tables over functions, and the same rows as DataFrames for plain Spark."""

from __future__ import annotations

import datetime as dt

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


METRIC_COLUMNS = "host string, at timestamp, n bigint, v int"
EVENT_COLUMNS = "id int, host string, since timestamp, until timestamp, low int, high bigint"


def _at(minute):
    return None if minute is None else dt.datetime(2024, 1, 1, 10, minute, tzinfo=dt.UTC)


METRICS = [("a", _at(n), n, v) for v, n in enumerate((0, 5, 5, 9, 10, 59, None))]
METRICS += [("b", _at(5), 5, 7), ("c", _at(0), 0, 8), (None, _at(5), 5, 9)]
INTERVALS = [("a", 0, 5), ("a", 5, 10), ("a", 5, 5), ("a", 9, 2), ("a", None, 9), ("a", 5, 10)]
INTERVALS += [("b", 0, 59), (None, 0, 9), ("c", 1, 9), ("q", 0, 9)]
EVENTS = [(id_, host, _at(low), _at(high), low, high) for id_, (host, low, high) in enumerate(INTERVALS)]


def ranger(place):
    """Return a function that gives the metrics of a host, if it is given, in an interval of a column."""

    def find(*key):
        *host, low, high = key
        known = [row for row in METRICS if row[place] is not None and [*row[: len(host)]] == host]
        return [row for row in known if low <= row[place] <= high]

    return millrace.function(find)


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
        "events": plain(spark)["events"],
        "metrics": millrace.lookup("metrics", METRIC_COLUMNS, ["host"], ranger(1), between=["at"]),
        "ticks": millrace.lookup("ticks", METRIC_COLUMNS, [], ranger(2), between=["n"]),
    }


def plain(spark):
    prices = spark.createDataFrame(PRICES, PRICE_COLUMNS).coalesce(1)
    orders = spark.createDataFrame(ORDERS, "id int, sku string, region string, n int").coalesce(1)
    cats = spark.createDataFrame(CATS, CAT_COLUMNS).coalesce(1)
    metrics = spark.createDataFrame(METRICS, METRIC_COLUMNS).coalesce(1)
    events = spark.createDataFrame(EVENTS, EVENT_COLUMNS).coalesce(1)
    same = {"pairs": prices, "either": prices, "scanned": prices, "listed": prices, "c": cats}
    same |= {"events": events, "metrics": metrics, "ticks": metrics}
    return {"o": orders, "limited": orders.limit(3), "prices": prices, "cats": cats, **same}


def answered():
    """The queries that have an answer, by a name made of their file's and their place."""
    return {
        f"{name}-{number}": text
        for name in ("between", "bound", "constants", "outer", "nested")
        for number, (_, text) in enumerate(cases.read(f"lookups/{name}"))
    }
