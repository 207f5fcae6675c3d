"""``millrace demo`` at a scale that takes seconds."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import unquote, urlparse

from millrace.pages.files import GENERATOR


def test_the_demo_shows_both_sides_and_a_page(run, tpch_tiny):
    """Same rows, a link to the report page of a query, and all of it as JSON."""
    folder = Path(tpch_tiny["orders"]).parent
    done = run("demo", "--scale", "0.01", "--data", str(folder), "--json", "-")
    assert done.exit_code == 0, done.stderr
    sides = json.loads(done.stdout)
    assert {side["name"] for side in sides} == {"stairs", "q03", "q05", "q10"}
    assert all(side["unequal"] is None and side["report"]["totals"]["cells"] for side in sides)
    link = next(word for word in done.stderr.split() if word.startswith("file://"))
    assert GENERATOR in Path(unquote(urlparse(link).path)).read_text()[:1000]
