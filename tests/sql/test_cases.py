"""Every kind of query gives Spark's rows, and the blocks it should give."""

from __future__ import annotations

import pytest

from tests.sql import cases
from tests.sql.compare import taken

CASES = [pytest.param(*case, id=name) for name, case in cases.read().items()]


@pytest.mark.parametrize(("text", "blocks"), CASES[::3])
def test_files(same, files, text, blocks):
    """Tables by path: the tasks read the files themselves."""
    assert taken(same(text, files)) == blocks


@pytest.mark.parametrize(("text", "blocks"), CASES[1::3])
def test_frames(same, views, text, blocks):
    """The same tables as DataFrames: Spark reads them."""
    assert taken(same(text, views)) == blocks


@pytest.mark.parametrize(("text", "blocks"), CASES[2::3])
def test_views(same, text, blocks):
    """The same tables as the session's temporary views."""
    assert taken(same(text)) == blocks
