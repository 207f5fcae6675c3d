"""Relations beside a block under the options that bear on them; their rows are in ``cases/semijoins.sql``."""

from __future__ import annotations

import pytest

from millrace.options import Options
from tests.sql.compare import taken

ASKED = "select a.id, b.k from a, b where a.id = b.id and exists (select 1 from c where c.k = a.k)"
EITHER = (
    "select a.id, b.k from a, b where a.id = b.id and (b.v > 2 or "
    "not exists (select 1 from c where c.k = a.k) or "
    "exists (select * from c, b x where c.id = x.id and c.k = b.k and x.v <> a.x))"
)
ANTI = "select a.id, b.k from a join b on a.id = b.id left anti join c on c.k = a.k and c.id <> b.id"


@pytest.mark.parametrize("architecture", ["joins", "stairs", "static"])
def test_every_architecture_asks(same, files, architecture):
    """Also dealt over several cells, by a key that is null in some rows."""
    options = Options(architecture=architecture, placement="hypercube", cells=3, online=True)
    assert taken(same(ANTI, files, options)) == "a b -c"
    assert taken(same(EITHER, files, options)) == "c x+|a b -c/+subquery"


def test_a_budget_joins_what_is_a_set_and_leaves_the_rest(same, files):
    """What is looked through for matches is kept in memory as a whole."""
    options = Options(memory_budget=1 << 20)
    assert taken(same(ASKED, files, options)) == "a b c"
    found = same(ANTI, files, options)
    assert taken(found) == "a b"
    assert any("memory_budget" in reason for reason in found.reasons)
    found = same(EITHER, files, options)
    assert taken(found) == "c x+|a b"
    assert any("memory_budget" in reason for reason in found.reasons)


@pytest.mark.parametrize("how", ["exists (select *", "k not in (select c.k"])
def test_only_what_is_compared_leaves_a_block_inside(same, files, how):
    """Each combination once; without partial aggregates each row."""
    text = f"select id from a where {how} from c, b x where c.id = x.id and c.k = a.k) or id = 4"
    found = same(text, files)
    assert [column.source.column for column in found.blocks[0].join.output] == ["k"]
    assert found.blocks[0].aggregate is not None
    found = same(text, files, Options(partial_aggregates=False))
    assert found.blocks[0].aggregate is None


def test_a_repeated_query_is_not_a_set_elsewhere(same, files):
    """The same text as a relation keeps its duplicates."""
    query = "(select c.id from c, b x where c.id = x.id)"
    found = same(f"select q.id from {query} q, b where q.id = b.id and q.id in {query}", files)
    assert taken(found) == "c x|c x+|q b +subquery"


def test_why_one_stays_is_explained(same, files):
    """Nothing is asked that no equality ties to the block."""
    found = same(
        f"{ANTI} where a.k not in (select id from b) and not exists (select 1 from b where b.id < a.id)",
        files,
    )
    assert "no equality ties it to the block" in found.explain()


def test_a_hint_leaves_the_join_to_spark(same, files):
    """Its relation is named."""
    text = ANTI.replace("select", "select /*+ broadcast(c) */", 1)
    assert taken(same(text, files)) == "a b"
