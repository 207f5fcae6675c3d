"""STAIRs tuple by tuple: the examples of the STAIRs paper.

The running example is R join S join T on ``r.a = s.a`` and ``s.b = t.b`` (Deshpande & Hellerstein 2004,
figures 4 to 6). What is expected was worked out from the definitions in section 3.1.
"""

from __future__ import annotations

import pytest

from millrace.errors import StateError
from tests.engine.state.rig import three


def test_migration_reverses_a_routing_decision() -> None:
    """Figure 6: afterwards the state is what it would have been had all of S gone to S join T at once."""
    rig, other = three(), three()
    for each in (rig, other):
        each.arrive("r1 r2 r3")
        each.arrive("t1 t2 t3")
    rig.arrive("s1 s2", s="rs", rs="st")
    rig.arrive("s3", s="st", st="rs")
    ends = {"r in rs": ["r1", "r2", "r3"], "t in st": ["t1", "t2", "t3"]}
    assert rig.state() == ends | {
        "s in rs": ["s1", "s2", "s3t2", "s3t3"],
        "s in st": ["r1s1", "r2s1", "r3s2", "s3"],
    }
    rig.demote("s", "st", "s", "r1s1", "r2s1", "r3s2")
    rig.promote("s", "rs", "st", "s1", "s2")
    assert rig.state() == ends | {"s in rs": ["s1t1", "s3t2", "s3t3"], "s in st": ["s1", "s2", "s3"]}
    assert (rig.stair("s", "st").demoted, rig.stair("s", "rs").promoted) == (3, 2)
    assert (rig.stairs.moved, rig.stairs.recomputed, rig.stairs.enforcing) == (5, 1, True)
    rig.check()
    other.arrive("s1 s2", s="st", st="rs")
    other.arrive("s3", s="st", st="rs")
    assert other.state() == rig.state()


@pytest.mark.broken_rule
def test_a_local_invariant_fails_that_very_example() -> None:
    """s1 in S.a and, demoted, in S.b: without B+, r2 makes r2s1 beside s1, and t1 both results twice."""
    for enforced, held, results in (
        (True, ["s1"], ["r1s1t1", "r2s1t1"]),
        (False, ["r2s1", "s1"], ["r1s1t1", "r2s1t1", "r2s1t1"]),
    ):
        rig = three()
        rig.arrive("r1")
        rig.arrive("s1", s="rs")
        rig.demote("s", "st", "s", "r1s1")
        rig.check()
        if not enforced:
            rig.stairs.enforcing = False
            with pytest.raises(AssertionError, match=r"invariant B\+: \(s#0\) in .* and \(s#0\) in .* agree"):
                rig.check()
            rig.is_checked = False
        rig.arrive("r2", rs="st")
        assert rig.held("s", "st") == held
        rig.arrive("t1", st="rs")
        assert sorted(rig.results) == results


def test_ended_relations_close_stairs() -> None:
    """Nobody comes to look in S.a once R has ended, nor in S.b once T has; results stay complete."""
    rig = three()
    rig.arrive("r1 r2 r3")
    rig.arrive("s1 s2", s="rs", rs="st")
    rig.end("r")
    assert (rig.held("s", "rs"), rig.held("s", "st")) == ([], ["r1s1", "r2s1", "r3s2"])
    rig.arrive("s3", s="rs", rs="st")
    assert rig.held("s", "rs") == []
    rig.end("s")
    rig.arrive("t1 t2 t3")
    assert rig.held("t", "st") == [] and len(rig.results) == 6
    rig.end("t")
    assert not any(rig.state().values())


# Demotion and promotion refuse what is not legal, change nothing then, and say what would be legal.


@pytest.mark.parametrize(
    ("primitive", "to", "name", "named"),
    [
        # Section 3.1.1: t' is a sub-tuple of t that contains the component of the STAIR's relation.
        *(("demote", kept, "r1s1", r"\(r\)\(s\).*STAIR\(s.b\)") for kept in ("rs", "rst", "t", "r", "")),
        # The tuple contains the one relation of the join and not the other.
        ("promote", "st", "s3", r"HashJoin\(s.b = t.b\).*HashJoin\(r.a = s.a\)"),
        ("promote", "rs", "r1s1", r"HashJoin\(r.a = s.a\).*\[\]"),
    ],
)
def test_what_a_tuple_may_become(primitive: str, to: str, name: str, named: str) -> None:
    """Demotion wants a smaller part with the owner, promotion a join that leads out."""
    rig = three()  # with r1s1 and s3 in S.b, and s1 and s2 in S.a
    rig.arrive("r1")
    rig.arrive("s1 s2", s="rs", rs="st")
    rig.arrive("s3", s="st")
    before = rig.state()
    with pytest.raises(StateError, match=named):
        getattr(rig, primitive)("s", "st", to, name)
    assert rig.state() == before
