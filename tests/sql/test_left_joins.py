"""LEFT joins of a block under the options that bear on them; their rows are in ``cases/outer.sql``."""

from __future__ import annotations

import pytest

from millrace.options import Options
from tests.sql.compare import taken

CHAINED = (
    "select a.id, b.v, c.w, x.s from a join b x on a.id = x.id left join b on b.k = a.k and b.id <> a.id "
    "left join c on c.k = b.k where a.s is null or x.v > 1"
)


@pytest.mark.parametrize("architecture", ["joins", "stairs", "static"])
def test_every_architecture_widens(same, files, architecture):
    """Also dealt over several cells, by a key that is null in some rows."""
    options = Options(architecture=architecture, placement="hypercube", cells=3, online=True)
    assert taken(same(CHAINED, files, options)) == "a x ?b ?c"


def test_a_budget_leaves_them_to_spark(same, files):
    """The relation is kept in memory as a whole."""
    found = same(CHAINED, files, Options(memory_budget=1 << 20))
    assert taken(found) == "a x"
    assert any("memory_budget" in reason for reason in found.reasons)


def test_they_are_explained(same, files):
    """Where the relation is read, what it is joined on, and why another one stays."""
    text = same(f"{CHAINED.replace(' where', ' left join c z on z.id < a.id where')}", files).explain()
    assert "left-joined" in text
    assert "LEFT JOIN b ON a.k = b.k AND b.id <> a.id" in text
    assert "LEFT JOIN z: no equality ties it to the block" in text


def test_a_hint_leaves_the_join_to_spark(same, files):
    """Its relation is named."""
    text = CHAINED.replace("select", "select /*+ broadcast(c) */", 1)
    assert taken(same(text, files)) == "a x ?b"
