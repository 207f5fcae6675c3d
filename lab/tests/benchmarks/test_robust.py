"""Random orders of joins: what is measured, and that every side counts the same."""

from __future__ import annotations

import pytest
from rich.console import Console

from lab.benchmarks import harness, robust
from lab.benchmarks.robust_cases import CASES, CYCLIC, cases
from lab.benchmarks.show import ticking
from millrace.errors import OptionError
from millrace.options import Options


def test_there_are_twenty_trees_and_five_cycles() -> None:
    """Every case is connected; a tree has an equality less than relations."""
    found = list(cases(0.002))
    assert len(found) == 25 and len(CYCLIC) == 5
    for case in found:
        assert (len(case.joins) < len(case.tables)) == (case.name not in CYCLIC)
        orders = case.orders(20)
        assert 3 <= len(orders) == len(set(orders)) <= 20
        assert all(sorted(order) == sorted(case.tables) for order in orders)


@pytest.mark.spark
def test_a_small_run(spark, monkeypatch) -> None:
    """DuckDB, Spark and every order count the same, or it raises; filters that travel make fewer tuples."""
    monkeypatch.setattr(harness, "MIN_ROUNDS", 1)
    names = ("exploding1", "triangle_small")
    with ticking(Console(stderr=True), robust.runs(names, 1, 3)) as ticker:
        outcome = robust.bench(spark, names, 0.02, 1, ticker, orders=3)
    assert [row["case"] for row in outcome.rows] == sorted(names, key=list(CASES).index)
    assert set(outcome.targets) <= set(outcome.figures)
    assert all(row["fewest_made"] <= row["most_made"] for row in outcome.rows)


def test_transfers_make_fewer_tuples_in_the_worst_order() -> None:
    """What explodes in the order as drawn is a fraction of it when filters have travelled first."""
    (case,) = cases(0.05, ["exploding2"])
    made: dict[str, int] = {}
    order = ("hub", "a0", "a1", "link", "last")
    sides = {
        transfer: robust._side(
            case, Options(policy="fixed", order=order, transfer=transfer), made, str(transfer)
        )
        for transfer in (True, False)
    }
    assert sides[True]() == sides[False]()
    assert 20 * made["True"] < made["False"]


def test_an_unknown_case_is_told() -> None:
    """With what there is."""
    with pytest.raises(OptionError, match="star4"):
        robust.parse_cases("star44")
