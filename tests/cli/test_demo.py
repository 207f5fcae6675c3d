"""``millrace demo`` at a scale that takes seconds."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import unquote, urlparse

import pytest
from rich.console import Console

from millrace.cli import demo
from millrace.errors import InputError
from millrace.reports.pages.files import GENERATOR


@pytest.mark.nightly
def test_the_demo_shows_both_sides_and_a_page(run, tpch_tiny):
    """Same rows, a link to the report page of a query, and all of it as JSON."""
    folder = Path(tpch_tiny["orders"]).parent
    done = run("demo", "--scale", "0.01", "--data", str(folder), "--json", "-")
    assert done.exit_code == 0, done.stderr
    sides = json.loads(done.stdout)
    assert {side["name"] for side in sides} == {"filter", "stairs", "q05"}
    assert all(side["unequal"] is None and side["report"]["totals"]["cells"] for side in sides)
    link = next(word for word in done.stderr.split() if word.startswith("file://"))
    assert GENERATOR in Path(unquote(urlparse(link).path)).read_text()[:1000]


def test_rows_are_compared_as_multisets():
    """However they are ordered; floats within a rounding, everything else exactly."""
    rows = [(1, 0.1 + 0.2, None), (1, 0.5, "x"), (1, 0.5, "x")]
    assert demo.difference(reversed(rows), [(1, 0.3, None), *rows[1:]]) is None
    assert demo.difference(rows, rows[:2]) == "3 rows, not 2"
    for other in ((1, 0.30001, None), (2, 0.3, None), (1, 0.3, "None"), (1, None, None)):
        assert demo.difference(rows, [other, *rows[1:]]) is not None


def test_a_folder_of_others_is_left_alone(tmp_path):
    """No data is made where something is."""
    (tmp_path / "mine").touch()
    with pytest.raises(InputError, match="name an empty folder"):
        demo.prepare(0.01, tmp_path, Console())
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
