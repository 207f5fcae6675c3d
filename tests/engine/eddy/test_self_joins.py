"""Self-joins: relations that are the same data share one SteM, and the answer stays DuckDB's."""

from __future__ import annotations

import pyarrow as pa
import pytest

from millrace.engine.spec import JoinSpec, RelationSpec
from millrace.errors import InputError
from millrace.options import POLICY_NAMES, Options
from tests.engine.eddy.access_cases import IndexPlan, Plan, run
from tests.engine.eddy.blocks import block
from tests.engine.eddy.oracle import Case, with_self_joins

SCHEMA = pa.schema([("k", pa.int64()), ("j", pa.int64())])


def pairs_of(keys: list[tuple[int | None, int | None]], roles: str, equalities: list[str]) -> Case:
    table = pa.table({"k": [k for k, _ in keys], "j": [j for _, j in keys]}, schema=SCHEMA)
    return with_self_joins(block(dict.fromkeys(roles, table), equalities))


def test_a_base_tuple_is_kept_once_and_bounced_for_each_role() -> None:
    """There is one SteM with the tuples, on which every role's join column is indexed."""
    case = pairs_of([(n, n + 1) for n in range(40)], "abc", ["a.j = b.k", "b.j = c.k"])
    eddy = run(case, {}, Options(online=True)).eddy
    (state,) = eddy.figures().state
    assert (state.name, state.tuples, state.inserted) == ("SteM(a)", 40, 40)
    built = [m for m in eddy.figures().modules if m.action == "build"]
    assert sum(m.tuples_in for m in built) == 40
    first, *others = eddy._state.stems
    assert all(stem.store is first.store and stem.base is first.base for stem in others)


def test_an_index_serves_all_roles() -> None:
    """Bindings that several roles ask for are asked once, and all roles see the answer."""
    table = pa.table({"k": [1, 2, 3], "j": [2, 3, 1]}, schema=SCHEMA)
    seeds = pa.table({"k": [1, 1, 2]}, schema=pa.schema([("k", pa.int64())]))
    case = block({"s": seeds, "a": table, "b": table}, ["s.k = a.k", "a.j = b.k"])
    case = with_self_joins(case)
    for policy in POLICY_NAMES:
        made = {"a": Plan(source=False, indexes=(IndexPlan(("k",), 1.0),))}
        got = run(case, made, Options(policy=policy, batch_size=1))
        assert got.rows == case.expected()
        assert len(got.indexes[0].bindings) == 3


@pytest.mark.parametrize(
    ("relations", "message"),
    [
        ([RelationSpec("a", SCHEMA), RelationSpec("b", SCHEMA, same_as="x")], "no earlier relation"),
        ([RelationSpec("a", SCHEMA, same_as="b"), RelationSpec("b", SCHEMA)], "no earlier relation"),
        ([RelationSpec("a", SCHEMA), RelationSpec("b", pa.schema([]), same_as="a")], "same columns"),
        ([RelationSpec("a", SCHEMA), RelationSpec("b", SCHEMA, distinct=True, same_as="a")], "same columns"),
        (
            [RelationSpec("a", SCHEMA), *(RelationSpec(x, SCHEMA, same_as=y) for x, y in ("ba", "cb"))],
            "no earlier relation",
        ),
    ],
)
def test_what_cannot_be_shared_is_refused(relations: list[RelationSpec], message: str) -> None:
    """The spec says so when it is made."""
    with pytest.raises(InputError, match=message):
        JoinSpec(tuple(relations))
