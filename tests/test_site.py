"""The site says what the code is: a whole reference, and code that runs."""

from __future__ import annotations

import re
from pathlib import Path

import millrace

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
GUIDES = [DOCS / "index.md", *sorted((DOCS / "guides").glob("*.md"))]


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
