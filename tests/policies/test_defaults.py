"""What the documents say of default policies is what eddies do."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pytest

from millrace.architectures.choice import policy_of
from millrace.expressions import Call, Column, ColumnRef
from millrace.options import ARCHITECTURES, Options, Research
from millrace.predicates import PredicateSpec
from millrace.spec import Equality, JoinSpec, OutputColumn, RelationSpec

TABLE = Path(__file__).parents[2] / "docs" / "policies.md"
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
