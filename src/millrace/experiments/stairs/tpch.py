"""The paper's illustrative query on data as TPC-H's generator makes them, from a seed.

Deshpande & Hellerstein 2004, section 5.2: customer ⋈ orders ⋈ lineitem with ``c_nationkey = 1``,
``c_acctbal > 9000`` and ``l_shipdate > 1996-01-01``, where lineitem comes by ship date. The distributions are
those of the TPC-H specification, section 4.2.3: 25 nations, balances from -999.99 to 9999.99, ten orders a
customer by two thirds of the customers, ordered from 1992-01-01 to 1998-08-02, with one to seven lines each,
shipped within 121 days.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from millrace.experiments.experiment import Settings
from millrace.experiments.lab.arriving import Stream
from millrace.experiments.lab.block import block
from millrace.experiments.lab.work import Query
from millrace.options import Order

CUSTOMERS = 150_000
"""At scale factor 1."""

_ORDER_DAYS, _SHIP_DAYS = 2406, 121
_SHIPPED_AFTER = 1461
"""1996-01-01, in days since 1992-01-01."""

CUSTOMER_FIRST: Order = (("customer", "orders"), "lineitem")
LINEITEM_FIRST: Order = ("customer", ("orders", "lineitem"))
"""The two plans there are."""


def query(settings: Settings) -> Query:
    """Make the data, at a scale factor of TPC-H."""
    draw = np.random.default_rng(settings.seed)
    customers = max(30, round(CUSTOMERS * settings["scale"]))
    chosen = (draw.integers(0, 25, customers) == 1) & (draw.uniform(-999.99, 9999.99, customers) > 9000)
    chosen[1] = True  # so that there is a result, however small the scale
    orders = 10 * customers
    with_orders = np.flatnonzero(np.arange(customers) % 3)
    placed_by = draw.choice(with_orders, orders)
    ordered = draw.integers(0, _ORDER_DAYS, orders)
    lines = np.repeat(np.arange(orders), draw.integers(1, 8, orders))
    shipped = ordered[lines] + draw.integers(1, _SHIP_DAYS + 1, len(lines))
    by_date = np.argsort(shipped, kind="stable")
    late = shipped[by_date] > _SHIPPED_AFTER
    tables = {
        "customer": pa.table({"c_custkey": np.arange(customers)}),
        "orders": pa.table({"o_orderkey": np.arange(orders), "o_custkey": placed_by}),
        "lineitem": pa.table({"l_orderkey": lines[by_date]}),
    }
    passing = {"customer": chosen, "lineitem": late}
    streams = {
        alias: Stream(table, table.num_rows, passing=passing.get(alias)) for alias, table in tables.items()
    }
    # What an optimizer expects from the catalogue: bounds, distinct values, and no correlation.
    expected = {"customer": 1000 / 11_000 / 25, "lineitem": 1 - _SHIPPED_AFTER / (_ORDER_DAYS + _SHIP_DAYS)}
    rows = {alias: round(expected.get(alias, 1.0) * table.num_rows) for alias, table in tables.items()}
    equalities = ("customer.c_custkey = orders.o_custkey", "orders.o_orderkey = lineitem.l_orderkey")
    results = int(np.count_nonzero(chosen[placed_by[lines[by_date][late]]]))
    return Query(block(tables, *equalities, rows=rows), streams, settings["batch"], results)
