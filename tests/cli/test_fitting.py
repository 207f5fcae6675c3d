"""Tables fit their terminal, and no digit is cut."""

from __future__ import annotations

import io
import re

import pytest
from rich.cells import cell_len
from rich.console import Console, RenderableType

from lab.benchmarks import show
from lab.benchmarks.harness import Outcome
from millrace.cli import render
from millrace.cli.console import consoles
from millrace.cli.fitting import Column, Fitted
from millrace.reports.run_report import RunReport
from tests.reports.pages.reports import SHAPE, Planned, drifting, filtered

WIDTHS = (40, 60, 79, 80, 81, 99, 120, 200)


def printed(view: RenderableType, width: int) -> str:
    """Return what a terminal of that width shows; no line is longer than it, and every border is closed."""
    out = io.StringIO()
    Console(file=out, width=width, force_terminal=True, color_system=None).print(view)
    text = re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue())
    assert all(cell_len(line) <= width for line in text.splitlines())
    edges = {"┏": "┓", "┃": "┃", "┡": "┩", "│": "│", "└": "┘"}
    assert all(line.rstrip()[-1] == edges[line[0]] for line in text.splitlines() if line[:1] in edges)
    return text


@pytest.mark.parametrize("width", WIDTHS)
def test_columns_give_way_before_digits_are_cut(width):
    """Whatever is shown of numbers is whole; what has no room is named; what matters most is there."""
    numbers = [f"{7 * 10**n:,}" for n in range(3, 12)]
    columns = [Column("what it is", rank=0)]
    columns += [Column(f"figure {n}", number=True, rank=n) for n in range(len(numbers))]
    text = printed(Fitted(columns, [("a name of several words", *numbers)] * 3, "a title"), width)
    assert "…" not in text
    table, _, gone = text.partition("no room for")
    assert "figure 0" not in gone
    for n, number in enumerate(numbers):
        whole = len(re.findall(rf"(?<![\d,]){number}(?![\d,])", table))
        assert whole == (0 if f"figure {n}" in " ".join(gone.split()) else 3)


@pytest.mark.parametrize("width", WIDTHS)
def test_rows_of_a_query_are_all_there(width):
    """No column of a result is left out: where they do not fit beside each other, they stand below."""
    names = [f"column_{n}" for n in range(12)]
    text = printed(render.rows_table(names, [tuple(range(10**8, 10**8 + 12))]), width)
    assert [name for name in names if name not in text] == []
    assert [n for n in range(10**8, 10**8 + 12) if str(n) not in text] == []


@pytest.mark.parametrize("width", WIDTHS)
def test_reports_fit(width):
    """The tables of a report show every total and each module's time, whole."""
    joined = RunReport({"b0": [drifting()], "b1": [drifting()]}, Planned({"b0": SHAPE}))
    for report in (joined, filtered()):
        text = printed(render.report_view(report), width)
        assert "…" not in text
        flat = re.sub(r"[^\w.,%]", "", text)
        for _, module in report.modules():
            assert f"{module.seconds:.3f}" in flat
        assert f"{report.totals.tuples_routed:,}" in flat


@pytest.mark.parametrize("width", WIDTHS)
def test_benchmarks_fit(width):
    """A benchmark's ratio stays when its details have to go."""
    row = {
        "query": "q01",
        "blocks": 3,
        "millrace_s": 1.234,
        "spark_s": 2.345,
        "ratio": 0.526,
        "spread": 0.123,
    }
    row |= {f"detail_{n}": 123_456_789 + n for n in range(6)}
    outcome = Outcome("tpch", 1.0, 5, {"geomean_ratio": 0.526}, [row] * 2)
    out = io.StringIO()
    show.show(outcome, Console(file=out, width=width))
    text = out.getvalue()
    assert all(cell_len(line) <= width for line in text.splitlines())
    assert "…" not in text
    assert text.count("0.526") == 3


def test_logs_are_plain_and_wide(monkeypatch, capsys):
    """Without a terminal nothing is coloured and no line is broken at 80; ``COLUMNS`` says otherwise."""
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    assert consoles()[0].width >= 120
    consoles()[0].print("[red]word[/red]")
    assert capsys.readouterr().out == "word\n"
    monkeypatch.setenv("COLUMNS", "77")
    assert consoles()[1].width == 77


@pytest.mark.parametrize("width", WIDTHS)
def test_words_fold_and_borders_close(width):
    """Several columns of words share what room there is."""
    names = ("id", "title", "source", "clock")
    rows = [("an-id-of-one-word", "a title that has " * 3, "a source, " * 6, "virtual")] * 3
    text = printed(Fitted([Column(name, rank=n) for n, name in enumerate(names)], rows), width)
    assert text.count("an-id-of-one-word") == 3
