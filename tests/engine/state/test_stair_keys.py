"""What STAIRs match by: several attributes, hashes that collide, and nothing at all."""

from __future__ import annotations

import pytest

from tests.engine.eddy.answers import weak_hashes
from tests.engine.state.rig import Rig, Tables


def test_keys_of_several_columns() -> None:
    """A join on two attributes is one STAIR on both; agreeing on one of them is not enough."""
    tables: Tables = {
        "r": {"a": [1, 1, 2], "c": [1, 2, 1]},
        "s": {"a": [1, 1], "c": [1, 3], "b": [5, 5]},
        "t": {"b": [5]},
    }
    rig = Rig(tables, ["r.a = s.a", "r.c = s.c", "s.b = t.b"])
    assert rig.stair("r", "rs").name == "STAIR(r.a, r.c)"
    rig.arrive("r1 r2 r3")
    rig.arrive("s1 s2", s="rs", rs="st")
    assert rig.held("s", "st") == ["r1s1"]
    rig.arrive("t1", st="rs")
    assert rig.results == ["r1s1t1"]


@pytest.mark.parametrize("columns", ["a", "ac"])
@weak_hashes()
def test_hashes_that_collide_are_told_apart(columns: str) -> None:
    """Strings are found by hashes and verified, in routing, promotion and demotion alike."""
    keys = ["aa", "bb", "cc", "dd", "cc", "ee"]
    tables: Tables = {
        "r": {column: list(keys) for column in columns},
        "s": {**{column: list(keys[:4]) for column in columns}, "b": [1, 2, 1, 2]},
        "t": {"b": [1]},
    }
    rig = Rig(tables, [*(f"r.{c} = s.{c}" for c in columns), "s.b = t.b"])
    rig.arrive("r1 r2 r3 r4 r5 r6")
    rig.arrive("s1 s2", s="rs", rs="st")
    rig.arrive("s3 s4", s="st")
    codes = rig.stair("r", "rs").codes(next(iter(rig.stair("r", "rs").contents())))
    assert codes is not None
    assert len(set(codes.tolist())) <= 2, "this test is of colliding hashes"
    assert rig.held("s", "st") == ["r1s1", "r2s2", "s3", "s4"]
    rig.promote("s", "st", "rs", "s3", "s4")
    assert rig.held("s", "st") == ["r1s1", "r2s2", "r3s3", "r4s4", "r5s3"]
    rig.demote("s", "st", "s", "r3s3")
    assert rig.held("s", "st") == ["r1s1", "r2s2", "r4s4", "s3"]
    rig.arrive("t1", st="rs")
    assert sorted(rig.results) == ["r1s1t1", "r3s3t1", "r5s3t1"]


def test_a_cross_product_is_joined_step_by_step() -> None:
    """STAIRs without an attribute: whatever comes meets everything on the other side."""
    rig = Rig({"r": {"a": [1, 2]}, "s": {"b": [1, 1, 1]}}, [])
    rig.arrive("r1")
    rig.arrive("s1 s2")
    rig.arrive("r2")
    rig.arrive("s3")
    assert sorted(rig.results) == ["r1s1", "r1s2", "r1s3", "r2s1", "r2s2", "r2s3"]
    assert rig.stair("r", "rs").segments[rig.signature("r")].index is None
