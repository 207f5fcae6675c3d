"""Relations beside a block, asked for matches or left-joined, under the options that bear on them.

Their rows are in ``cases/small/semijoins.sql`` and ``cases/small/outer.sql``.
"""

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
WIDENED = (
    "select a.id, b.v, c.w, x.s from a join b x on a.id = x.id left join b on b.k = a.k and b.id <> a.id "
    "left join c on c.k = b.k where a.s is null or x.v > 1"
)


@pytest.mark.parametrize("architecture", ["joins", "stairs", "static"])
def test_every_architecture_asks_and_widens(same, files, architecture):
    """Also dealt over several cells, by a key that is null in some rows."""
    options = Options(architecture=architecture, placement="hypercube", cells=3, online=True)
    for text, blocks in ((ANTI, "a b -c"), (EITHER, "c x+|a b -c/+subquery"), (WIDENED, "a x ?b ?c")):
        assert taken(same(text, files, options)) == blocks


@pytest.mark.parametrize(
    ("text", "blocks"),
    [(ASKED, "a b +c"), (ANTI, "a b -c"), (EITHER, "c x+|a b -c/+subquery"), (WIDENED, "a x ?b ?c")],
)
def test_relations_beside_a_block_keep_to_a_budget(same, files, text, blocks):
    """They are looked through for matches, and left-joined, by partition."""
    found = same(text, files, Options(memory_budget=300, batch_size=1))
    assert taken(found) == blocks
    written = {module.name for _, module in found.report().modules() if module.action == "write"}
    assert "Spill(c)" in written
    assert text != EITHER or any("subquery" in name for name in written)


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
    query = "(select c.id from c, b x where c.id = x.id)"
    found = same(f"select q.id from {query} q, b where q.id = b.id and q.id in {query}", files)
    assert taken(found) == "c x|c x+|q b +subquery"


def test_they_are_explained(same, files):
    """Where the relation is read, what it is joined on, and why another one stays."""
    text = same(f"{WIDENED.replace(' where', ' left join c z on z.id < a.id where')}", files).explain()
    assert "left-joined" in text
    assert "LEFT JOIN b ON a.k = b.k AND b.id <> a.id" in text
    assert "LEFT JOIN z: no equality ties it to the block" in text
    more = "where a.k not in (select id from b) and not exists (select 1 from b where b.id < a.id)"
    assert "no equality ties it to the block" in same(f"{ANTI} {more}", files).explain()


@pytest.mark.parametrize(("text", "blocks"), [(ANTI, "a b"), (WIDENED, "a x ?b")])
def test_a_hint_leaves_the_join_to_spark(same, files, text, blocks):
    assert taken(same(text.replace("select", "select /*+ broadcast(c) */", 1), files)) == blocks
