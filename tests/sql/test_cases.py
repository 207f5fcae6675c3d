"""Every kind of query gives Spark's rows, and the blocks it should give."""

from __future__ import annotations

import pytest

from tests.sql import cases

KINDS = ("JOINS", "FILTERS", "OUTER", "USING", "NESTED", "SUBQUERIES", "LEFT")
CASES = [pytest.param(*case, id=f"{kind}-{n}") for kind in KINDS for n, case in enumerate(getattr(cases, kind))]


def taken(found) -> str:
    names = []
    for block in found.blocks:
        aliases = ["__in" if a.startswith("__in") else a for a in block.join.aliases]
        names.append(" ".join(aliases))
    return "|".join(names)


@pytest.mark.parametrize(("text", "blocks"), CASES)
def test_files(same, files, text, blocks):
    """Tables by path: the tasks read the files themselves."""
    assert taken(same(text, files)) == blocks


@pytest.mark.parametrize(("text", "blocks"), CASES[::2])
def test_frames(same, views, text, blocks):
    """The same tables as DataFrames: Spark reads them."""
    assert taken(same(text, views)) == blocks


@pytest.mark.parametrize(("text", "blocks"), CASES[1::2])
def test_views(same, text, blocks):
    """The same tables as the session's temporary views."""
    assert taken(same(text)) == blocks
