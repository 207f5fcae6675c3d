"""Figure 7: the TPC-H query, where statistics mislead at first, on data as TPC-H's generator makes them.

(i) What each architecture works in all, (ii) what moving state costs and spares, if it is forbidden before x
percent of the orders, and (iii) what has come of all work by when. Deshpande & Hellerstein 2004, section 5.2:
customer ⋈ orders ⋈ lineitem with ``c_nationkey = 1``, ``c_acctbal > 9000`` and ``l_shipdate > 1996-01-01``,
where lineitem comes by ship date. The distributions are those of the TPC-H specification, section 4.2.3: 25
nations, balances from -999.99 to 9999.99, ten orders a customer by two thirds of the customers, ordered from
1992-01-01 to 1998-08-02, with one to seven lines each, shipped within 121 days.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pyarrow as pa

from lab.experiments.experiment import Curve, Outcome, Panel, Settings
from lab.experiments.lab.arriving import Arriving, Stream
from lab.experiments.lab.block import block
from lab.experiments.lab.costs import Prices
from lab.experiments.lab.run import share_of
from lab.experiments.lab.work import COST, HELD, STILL, Query, Work, always, never
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


BEST, WORST, JOINS, STEMS = "SHJ, best plan", "SHJ, worst plan", "EddyJoins", "SteMs"
STAIRS, EAGER, HASTY = "STAIRs", "STAIRs, eager", "hasty"


def works_of(settings: Settings, looks: int) -> dict[str, Work]:
    """Run every side, looking at the time about so often."""
    tpch = query(settings)
    migration, eager = ("never", "never") if settings.ablated == STILL else (None, "eager")
    held = always if settings.ablated == HELD else never
    sides = {
        BEST: ("static", None, CUSTOMER_FIRST),
        STAIRS: ("stairs", migration, LINEITEM_FIRST),
        EAGER: ("stairs", eager, LINEITEM_FIRST),
        JOINS: ("joins", None, LINEITEM_FIRST),
        STEMS: ("stems", None, LINEITEM_FIRST),
        WORST: ("static", None, LINEITEM_FIRST),
    }
    return {
        name: tpch.work(architecture, moving, order=order, held=held, looks=looks)
        for name, (architecture, moving, order) in sides.items()
    }


def in_all(settings: Settings) -> Outcome:
    """Compare what is worked in all."""
    works = works_of(settings, looks=32)
    seconds = {name: work.seconds for name, work in works.items()}
    figures = {
        "stairs_vs_best": seconds[STAIRS] / seconds[BEST],
        "eager_vs_best": seconds[EAGER] / seconds[BEST],
        "eddyjoins_vs_stairs": seconds[JOINS] / seconds[STAIRS],
        "stems_vs_stairs": seconds[STEMS] / seconds[STAIRS],
        "worst_vs_best": seconds[WORST] / seconds[BEST],
        "behind": min(seconds[JOINS], seconds[STEMS]) / seconds[STAIRS],
        "next_worst": seconds[WORST] / max(value for name, value in seconds.items() if name != WORST),
        "switch": share_of(works[JOINS].figures, "orders", "lineitem"),
    }
    return Outcome([Panel.bars("Execution cost", COST, seconds, "work")], figures)


def over_time(settings: Settings) -> Outcome:
    """Compare when a half and three quarters of the results were there."""
    works = works_of(settings, looks=200)
    del works[EAGER]
    figures = {}
    for share in (0.5, 0.75):
        at = {name: reached(work, share) for name, work in works.items()}
        figures[f"stairs_vs_best_{share:.0%}"] = at[STAIRS] / at[BEST]
        others = [when for name, when in at.items() if name not in (BEST, STAIRS)]
        figures[f"next_vs_stairs_{share:.0%}"] = min(others) / at[STAIRS]
    curves = [Curve(name, *zip(*work.curve, strict=True)) for name, work in works.items()]
    return Outcome([Panel("Output over time", COST, "result tuples", curves, "steps")], figures)


def reached(work: Work, share: float) -> float:
    """Return the seconds after which a share of the results was there."""
    seconds, rows = (np.array(each, float) for each in zip(*work.curve, strict=True))
    return float(np.interp(share * rows[-1], rows, seconds))


def moving_late(settings: Settings) -> Outcome:
    """Compare what moving state costs and spares, if it is forbidden before x percent of the orders."""
    tpch = query(settings)
    orders = tpch.streams["orders"].table.num_rows
    shares = np.linspace(0, 1, settings["points"])
    eager, default = ("never", "never") if settings.ablated == STILL else ("eager", None)
    if settings.ablated == HASTY:
        default = "eager"
    sides = {JOINS: ("joins", None), EAGER: ("stairs", eager), STAIRS: ("stairs", default)}

    def before(until: float, arriving: Arriving) -> bool:
        return arriving.read["orders"] < until

    works = {
        name: [
            tpch.work(*side, order=LINEITEM_FIRST, held=partial(before, share * orders)) for share in shares
        ]
        for name, side in sides.items()
    }
    seconds = {name: np.array([work.seconds for work in each]) for name, each in works.items()}
    moved = np.array([Prices().moving(work.figures) for work in works[EAGER]])
    early = shares <= 0.5
    # An order waits for four lines, each of which spares three operations if it has moved. To move it takes
    # two, and one more for each line that it has met: that pays as long as a quarter of the lines is to come.
    later = (shares > 0.58) & (shares < 0.72)
    lead = seconds[JOINS] / seconds[EAGER]
    figures = {
        "migration_share": moved[0] / seconds[EAGER][0],
        "lead_at_switch": lead[0],
        "lead_at_end": lead[-1],
        "least_lead": lead[early | later].min(),
        "lead_lost": lead[0] - lead[-1],
        "steady": max(np.ptp(each[early]) / each[0] for each in seconds.values()),
        "worst_default_vs_eddyjoins": (seconds[STAIRS] / seconds[JOINS]).max(),
    }
    curves = {**seconds, "of it moving, eager": moved}
    label = "nothing may be changed before so many orders, %"
    return Outcome([Panel.over("Cost of state migration", label, COST, 100 * shares, curves)], figures)
