"""Everything in ``examples/`` runs, and shows what it says."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "examples"
SHOWN = {
    "costly_calls.py": ["costs 10.00", "2000 complaints", "fewer calls"],
    "costly_filter.py": ["792 mails are kept", "rows over time: looks_like_spam → in_our_language"],
    "enabled_session.py": ["same rows: True", "is_round"],
    "join_of_files.py": ["Norway", "block b0", "page: "],
    "lookups.py": ["780 of 1000 orders have a price", "sku-13"],
    "results_as_they_come.py": ["50000 rows in all"],
    "streams.py": ["micro-batch 2 has 6000 rows in", "cells made anew"],
}
NIGHT = ["streams.py"]  # it takes most of a minute
NOTEBOOKS = {
    "filters.ipynb": ["True", "slow"],
    "joins.ipynb": ["city", "Did you mean", "-------^^^"],
}


def test_every_example_is_tested():
    """No file of the folder is left out."""
    files = {path.name for path in FOLDER.iterdir() if path.suffix in (".py", ".ipynb")}
    assert files == {*SHOWN, *NOTEBOOKS}


@pytest.mark.parametrize(
    "name",
    [*sorted(SHOWN.keys() - NIGHT), *(pytest.param(name, marks=pytest.mark.nightly) for name in NIGHT)],
)
def test_scripts(spark, name, monkeypatch, capsys, tmp_path):
    """As a program, on the session that the tests share."""
    monkeypatch.setattr(sys, "argv", [name, str(tmp_path)])
    runpy.run_path(str(FOLDER / name), run_name="__main__")
    shown = capsys.readouterr().out
    for text in SHOWN[name]:
        assert text in shown


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the Jupyter client's own
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_notebooks(name, tmp_path, monkeypatch):
    """In a kernel of their own: no cell fails, none shows a log record, and results show themselves."""
    import nbformat
    from nbclient import NotebookClient

    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)  # as in an environment that is activated
    notebook = nbformat.read(FOLDER / name, as_version=4)
    NotebookClient(notebook, timeout=200, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    shown = "\n".join(str(output.get("data", output.get("text", ""))) for output in outputs)
    for text in NOTEBOOKS[name]:
        assert text in shown
    assert "QueryContextLogger" not in shown
