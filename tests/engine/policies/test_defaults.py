"""What the documents say of default policies is what eddies do."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest

from millrace.engine.architectures.choice import architecture_of, policy_of
from millrace.engine.expressions import Call, Column, ColumnRef
from millrace.engine.spec import Equality, JoinSpec, OutputColumn, RelationSpec, Window
from millrace.engine.spill.run_of import run_of
from millrace.options import ARCHITECTURES, Options, Research
from millrace.predicates import PredicateSpec

TABLE = Path(__file__).parents[3] / "docs" / "policies.md"
SCHEMA = pa.schema([("k", pa.int64())])
KEYS = [ColumnRef(alias, "k") for alias in "ab"]


def block(*, joins: bool, called: bool) -> JoinSpec:
    spec = PredicateSpec("odd", lambda k: k % 2 == 1, "row")
    relations = tuple(RelationSpec(key.relation, SCHEMA) for key in KEYS[: 1 + joins])
    equalities = (Equality(*KEYS, pa.int64()),) if joins else ()
    calls = (Call(spec, (Column(KEYS[0]),)),) if called else ()
    return JoinSpec(relations, equalities, calls, (OutputColumn("k", KEYS[0]),))


def documented() -> dict[str, str]:
    """Return the default policies of ``docs/policies.md`` by what runs."""
    rows = re.findall(r"^\| (.*) \| `(\w+)` \|$", TABLE.read_text(), re.MULTILINE)
    return {what: policy for what, policy in rows if "alone" in what or "joins" in what}


@pytest.mark.parametrize("architecture", [name for name in ARCHITECTURES if name != "static"])
def test_defaults_are_as_documented(architecture: str) -> None:
    """For each architecture that has a policy, in the table and in the options' own words."""
    table = documented()
    options = Options(architecture=architecture)
    joined = next(row for row in table if row.startswith("joins alone") and f'"{architecture}"' in row)
    mixed, alone = (next(row for row in table if row.startswith(start)) for start in ("joins with", "pred"))
    said = " ".join(str(Research.__doc__).split())
    for row, spec in (
        (joined, block(joins=True, called=False)),
        (mixed, block(joins=True, called=True)),
        (alone, block(joins=False, called=True)),
    ):
        policy = policy_of(spec, options)
        assert table[row] == policy
        assert f'``"{policy}"``' in said


def three(**changes: object) -> JoinSpec:
    """Return a chain of three relations, the first of them with these changes."""
    relations = [RelationSpec(alias, SCHEMA) for alias in "abc"]
    relations[2] = replace(relations[2], **changes)
    keys = [ColumnRef(r.alias, "k") for r in relations]
    equalities = tuple(Equality(a, b, pa.int64()) for a, b in pairwise(keys))
    return JoinSpec(tuple(relations), equalities, count_only=True)


@pytest.mark.parametrize(
    ("spec", "settings", "given", "expected"),
    [
        (three(), {}, {}, "stems"),
        (three(), {"online": True}, {}, "stairs"),
        (three(), {"online": True, "architecture": "joins"}, {}, "joins"),
        (three(), {"online": True}, {"side_by_side": False}, "stems"),
        (three(), {}, {"side_by_side": True}, "stairs"),
        (three(), {"online": True}, {"looked_up": True}, "stems"),
        (three(same_as="a"), {"online": True}, {}, "stems"),
        (three(window=Window("k", 3)), {"online": True}, {}, "stems"),
        (block(joins=True, called=False), {"online": True}, {}, "stems"),
        (block(joins=True, called=True), {"online": True}, {}, "stems"),
    ],
)
def test_join_state_by_default(spec: JoinSpec, settings: dict, given: dict, expected: str) -> None:
    """STAIRs for joins that arrive side by side, SteMs for all else, and what is asked for."""
    choice = architecture_of(spec, Options(**settings), **given)
    assert choice.name == expected
    assert choice.because


@pytest.mark.parametrize(("online", "action"), [(False, "probe"), (True, "join")])
def test_an_eddy_has_the_join_state_that_was_chosen(online: bool, action: str) -> None:
    """And so has one under a memory budget."""
    batches = {alias: [pa.record_batch({"k": [1, 2, 3]})] for alias in "abc"}
    for budget in (None, 1 << 26):
        run = run_of(three(), batches, Options(online=online, memory_budget=budget))
        assert sum(batch.column(0)[0].as_py() for batch in run.run()) == 3
        assert {each.action for each in run.figures().modules} & {"probe", "join"} == {action}
