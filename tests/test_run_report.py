"""A report adds up what the cells did."""

from __future__ import annotations

import json

import pytest

from millrace.figures import CellFigures, ModuleFigures
from millrace.run_report import RunReport, size, total

PROBE = ModuleFigures("SteM(o)", "probe", 10, 30, 2, 0.5)
MAP = CellFigures(-1, 1.0, rows_exchanged=100, blocks_exchanged=2, bytes_exchanged=1000, peak_bytes=5)
FIRST = CellFigures(0, 2.0, (PROBE,), (("c ⋈ o", 60), ("o ⋈ c", 20)), 10, 3, 7, 70, 1, 700, 9)
SECOND = CellFigures(1, 3.0, (PROBE,), (("c ⋈ o", 20),), 20, 4, 8, 30, 1, 300, 8)


@pytest.fixture
def report() -> RunReport:
    """One block: a map task and two cells."""
    return RunReport({"b": [MAP, FIRST, SECOND]})


def test_totals(report):
    """Counts add up, exchanged rows count once, memory is the highest, time is both sum and maximum."""
    sums = report.totals
    assert (sums.cells, sums.worker_seconds, sums.slowest_seconds) == (2, 6.0, 3.0)
    assert (sums.tuples_routed, sums.intermediate_tuples, sums.output_tuples) == (30, 7, 15)
    assert (sums.rows_exchanged, sums.blocks_exchanged, sums.bytes_exchanged) == (100, 2, 1000)
    assert sums.peak_bytes == 9


def test_the_fullest_cell_tells_how_well_a_budget_was_kept():
    """Each has a budget of its own; without one there is nothing to tell."""
    report = RunReport(
        {"b": [CellFigures(i, 1.0, budget_peak_ratio=ratio) for i, ratio in enumerate((0.5, 0.87))]}
    )
    assert report.totals.budget_peak_ratio == 0.87
    assert "most held of the memory budget: 87%" in str(report)
    assert "budget" not in str(RunReport({"b": [FIRST]}))


def test_what_only_one_end_counted_is_in_the_totals():
    """Without figures of map tasks, the cells' count is taken."""
    assert total([FIRST, SECOND]).bytes_exchanged == 1000
    assert total([MAP]).bytes_exchanged == 1000
    assert total([]).slowest_seconds == 0.0


def test_orders_add_up_over_cells(report):
    """The most travelled order comes first, and shares are of the block."""
    assert [(o.order, o.tuples, o.share) for o in report.orders()] == [("c ⋈ o", 80, 0.8), ("o ⋈ c", 20, 0.2)]


def test_modules_add_up_over_cells(report):
    """One line per module and action."""
    assert report.modules() == [("b", ModuleFigures("SteM(o)", "probe", 20, 60, 4, 1.0))]


def test_json_and_text(report):
    """The dictionary survives JSON, and the text names what is in it."""
    again = json.loads(json.dumps(report.to_dict()))
    assert again["totals"]["tuples_routed"] == 30
    assert len(again["blocks"]["b"]["cells"]) == 3
    text = str(report)
    for part in (
        "1 block(s) in 2 cell(s)",
        "c ⋈ o: 80 tuples, 80%",
        "SteM(o) probe: 20 in",
        "map task",
        "cell 1",
    ):
        assert part in text


def test_an_empty_report_has_a_text():
    """A query of which nothing was taken has a report too."""
    assert "0 block(s)" in str(RunReport())


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (2.5e6, "2.5 MB"), (3e9, "3.0 GB")]
)
def test_sizes_are_for_people(count, text):
    """Decimal units."""
    assert size(count) == text
