"""The site says what the code is: a whole reference, code that runs, a gallery of the committed results."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import millrace
from lab.experiments import registry

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
GUIDES = [DOCS / "index.md", *sorted((DOCS / "guides").glob("*.md"))]
MOST_BYTES = 60_000


def test_the_reference_has_every_public_name():
    """Once each, and nothing that there is not."""
    text = (DOCS / "reference.md").read_text().replace("millrace.api.session.sql", "millrace.sql")
    names = re.findall(r"^::: millrace\.([\w.]+)$", text, re.MULTILINE)
    namespaces = ("models", "monitor", "streams")
    public = set(millrace.__all__) - {*namespaces}
    public |= {f"{each}.{name}" for each in namespaces for name in getattr(millrace, each).__all__}
    assert sorted(names) == sorted(public)


def test_code_of_the_guides_is_that_of_examples():
    """No block of Python stands there that is not run: each is a file of ``examples/``."""
    assert len(GUIDES) > 4
    for path in GUIDES:
        for block in re.findall(
            r"^``` ?\{? ?\.?py.*?\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL
        ):
            found = re.fullmatch(r'--8<-- "(examples/\w+\.py)"\n', block)
            assert found, f"{path.name}: {block}"
            assert (ROOT / found[1]).is_file()


def test_the_gallery_is_of_the_results():
    """Its text is what the table and the claims make of it, and every drawing is there, and small."""
    made = runpy.run_path(str(DOCS / "gallery.py"))["page"]()
    assert (DOCS / "gallery.md").read_text() == made
    drawn = {path.stem: path.stat().st_size for path in (DOCS / "gallery").glob("*.svg")}
    assert drawn.keys() == {each.id for each in registry.EXPERIMENTS.values() if not each.wall}
    assert max(drawn.values()) <= MOST_BYTES
