"""Changes of a hub's queries are put together, whoever reads and writes them meanwhile."""

from __future__ import annotations

import json
from unittest.mock import patch

import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from millrace.engine.plan.expressions import ColumnRef
from millrace.streams.hub import folder as folders
from millrace.streams.hub.folder import Folder
from millrace.streams.hub.plan import Announce
from millrace.streams.hub.query import StandingQuery
from millrace.streams.hub.registry import Change, Registry

JOIN = {"on": "a JOIN b"}
SCHEMA = pa.schema([("n", pa.int64())])


def query(name: str) -> StandingQuery:
    return StandingQuery(0, name, (), (), (ColumnRef("a", "n"),), SCHEMA, ("a", "b"))


@pytest.mark.parametrize("left", ["", '{"format": 1, "number": 2, "que'])
@pytest.mark.parametrize("turn", [1, -1])
def test_a_damaged_change_is_none(tmp_path, left, turn):
    """A power failure left it so; the hub goes on without it, and so do its cells."""
    folder = Folder(tmp_path)
    folder.begin(JOIN)
    told = {"select": "n", "where": None, "sink": None}
    folder.add(query("first"), told)
    folder.add(query("lost"), told)
    (folder.changes / "00000002.json").write_text(left)
    folder = Folder(tmp_path)
    folder.add(query("third"), told)
    assert [each.name for each in folder.list()] == ["first", "third"]
    paths = [path for path in sorted(folder.changes.iterdir())[::turn] if left or path.stat().st_size]
    texts = pa.record_batch({"value": [path.read_text() for path in paths]})
    announced = [row for rows in Announce((7,))(iter([texts])) for row in rows.column("block").to_pylist()]
    changes = [Change.from_json(json.loads(block)) for block in announced]
    registry = Registry()
    for number, change in enumerate(changes):  # one that overtook another waits for it
        registry = Registry.from_text(registry.after([change], number, None).to_text())
    assert {each.query.name for each in registry.queries} == {"first", "third"} and not registry.waiting
    for number in range(1, 4):
        folder.note_made(number, 0)
    (tmp_path / "made" / "00000003.json").write_text(left)
    with patch.object(folders, "_MERGED", 3):
        folder.put_together(2)
    assert [each.name for each in Folder(tmp_path).list()] == ["first", "third"]


steps = st.lists(
    st.tuples(
        st.sampled_from(["add", "add", "remove", "make", "make"]),
        st.integers(0, 2),  # who does it: processes see what the others did late, or never
        st.integers(0, 5),
    ),
    min_size=1,
    max_size=60,
)


@settings(max_examples=60, deadline=None)
@given(steps)
def test_who_reads_late_sees_the_same_queries(tmp_path_factory, given_steps):
    """Numbers are never given twice, and files do not grow with the changes that have been."""
    path = tmp_path_factory.mktemp("hub")
    with patch.object(folders, "_MERGED", 3):
        everyone = [Folder(path) for _ in range(3)]
        everyone[0].begin(JOIN)
        stand, made, batch, numbers = {}, {}, 0, []
        for what, who, which in given_steps:
            folder = everyone[who]
            if what == "add":
                change = folder.add(query(f"q{len(numbers)}"), {"select": "n", "where": None, "sink": None})
                numbers.append(change.number)
                stand[change.number] = change.query.name
            elif what == "remove" and stand:
                gone = list(stand)[which % len(stand)]
                del stand[gone]
                numbers.append(folder.remove(gone).number)
            elif what == "make":
                batch += 1
                for number in numbers:
                    if number not in made:
                        made[number] = batch
                        folder.note_made(number, batch)
                folder.put_together(batch - 2)
        assert numbers == list(range(1, len(numbers) + 1))
        for folder in (*everyone, Folder(path)):
            listed = {each.id: each.name for each in folder.list() if each.state != "leaving"}
            assert listed == stand
            running = {each.id for each in folder.list() if each.state == "running"}
            assert running == {number for number in stand if number in made}
        recent = sum(made.get(number, batch + 1) >= batch - 2 for number in numbers)
        assert len(list(everyone[0].changes.iterdir())) <= recent + 3 + len(given_steps)
