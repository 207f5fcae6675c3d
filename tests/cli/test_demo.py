"""``millrace demo`` at a scale that takes seconds."""

from __future__ import annotations

import io
import json
from pathlib import Path
from urllib.parse import unquote, urlparse

from rich.console import Console

from millrace.cli import demo_stream
from millrace.reports.micro_batch import MicroBatch, StreamFigures
from millrace.reports.pages.files import GENERATOR
from millrace.streams.reporting import StreamReport


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


def test_the_table_of_a_stream_fits_a_terminal():
    """Every stream has its state and the order that most of its tuples take now."""
    streams = tuple(
        StreamFigures(alias, rows, 7, 3, rows - 3, 100_000, 40_000, 55_000, 4, 1_700_000_003_000_000)
        for alias, rows in (("o", 1000), ("p", 1200), ("s", 900))
    )
    batch = MicroBatch(
        query="q", run="r", name="live", batch=4, timestamp="2025-01-01T00:00:00Z", seconds=1.5, rows=3100,
        late=21, results=345, expired=9, held=3091, bytes=300_000, restored=0, rebuilt=0, worked=0.5,
        watermark=1_700_000_000_000_000, streams=streams, orders=(("o → p → s", 900), ("p → o", 100)),
    )  # fmt: skip
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(demo_stream.table(StreamReport((batch,), active=True)))
    text = console.export_text()
    assert max(map(len, text.splitlines())) <= 80
    assert "345 results; watermark 3.0 s behind the newest row" in " ".join(text.split())
    assert "1,200" in text and "most of o: o → p → s (100%)" in text and "no room" not in text
    assert demo_stream.line(batch) == (
        "micro-batch 4: 1.50 s; 3,100 rows; 21 late; 345 results; watermark 3.0 s behind; 3,091 tuples kept "
        "(o 997, p 1,197, s 897); 300.0 kB in memory; 165.0 kB of log; o → p → s; p → o"
    )
