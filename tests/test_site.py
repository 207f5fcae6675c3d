"""The site says what the code is: a whole reference, code that runs, and files that are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import millrace
from tests.test_layers import FLOORS

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PACKAGE = ROOT / "src" / "millrace"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
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


def missing(text: str) -> list[str]:
    """Return the paths in backticks that are neither in the repository nor in the package."""
    paths = re.findall(r"`([\w./-]+(?:\.py|/))`", text)
    return [path for path in paths if not ((ROOT / path).exists() or (PACKAGE / path).exists())]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_files_that_pages_name_are_there(path):
    """A page names a file or a folder by its path from the repository's root, or from the package's."""
    assert missing(path.read_text()) == []


@pytest.mark.broken_rule
def test_a_file_that_is_gone_is_seen():
    """The rule above refuses what it is about."""
    assert missing("`engine/router/eddy.py`, `lab/`, `engine/eddy.py`, `front/`") == [
        "engine/eddy.py",
        "front/",
    ]


def test_the_architecture_has_every_floor():
    """Its table of rooms is the list that holds imports, from top to bottom."""
    layers = (
        (DOCS / "architecture.md").read_text().partition("## Layers")[2].partition("\nInside `engine`")[0]
    )
    rows = re.findall(r"^\| (`.*?) \|", layers, re.MULTILINE)
    assert [set(re.findall(r"`(\w+)`", row)) for row in rows] == [set(floor) for floor in reversed(FLOORS)]
