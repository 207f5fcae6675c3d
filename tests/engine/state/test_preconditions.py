"""Demotion and promotion refuse what is not legal, change nothing then, and say what would be legal.

The preconditions are those of Deshpande & Hellerstein 2004, section 3.1.1.
"""

from __future__ import annotations

import numpy as np
import pytest

from millrace.errors import StateError
from tests.engine.state.rig import EQUALITIES, Rig, Tables, three


@pytest.fixture
def moved() -> Rig:
    """The example with r1s1 and s3 in S.b, and s1 and s2 in S.a."""
    rig = three()
    rig.arrive("r1")
    rig.arrive("s1 s2", s="rs", rs="st")
    rig.arrive("s3", s="st")
    return rig


@pytest.mark.parametrize(
    ("kept", "why"),
    [
        ("rs", "the same tuple"),
        ("rst", "more than the tuple"),
        ("t", "something else"),
        ("r", "without the STAIR's relation"),
        ("", "nothing"),
    ],
)
def test_demotion_wants_a_smaller_part_with_the_owner(moved: Rig, kept: str, why: str) -> None:
    """Section 3.1.1: t' is a sub-tuple of t that contains the component of the STAIR's relation."""
    before = moved.state()
    with pytest.raises(StateError, match=r"\(r\)\(s\).*STAIR\(s.b\)"):
        moved.demote("s", "st", kept, "r1s1")
    assert moved.state() == before, why


def test_demotion_wants_a_connected_part() -> None:
    """A part that the tree does not hold together is no tuple that a join could have made."""
    tables: Tables = {"r": {"a": [1]}, "s": {"a": [1], "b": [1]}, "t": {"b": [1], "c": [1]}, "u": {"c": [1]}}
    rig = Rig(tables, ["r.a = s.a", "s.b = t.b", "t.c = u.c"])
    rig.arrive("r1")
    rig.arrive("s1", s="rs", rs="st")
    rig.arrive("t1", t="st", st="rs", rst="tu")
    assert rig.held("t", "tu") == ["r1s1t1"]
    with pytest.raises(StateError, match=r"\(r\)\(t\)"):
        rig.demote("t", "tu", "rt", "r1s1t1")


def test_promotion_wants_a_join_that_leads_out(moved: Rig) -> None:
    """Section 3.1.1: the tuple contains the one relation of the join and not the other."""
    before = moved.state()
    with pytest.raises(StateError, match=r"HashJoin\(s.b = t.b\).*HashJoin\(r.a = s.a\)"):
        moved.promote("s", "st", "st", "s3")
    with pytest.raises(StateError, match=r"HashJoin\(r.a = s.a\).*\[\]"):
        moved.promote("s", "st", "rs", "r1s1")
    with pytest.raises(StateError, match=r"99.*HashJoin\(r.a = s.a\)"):
        moved.stairs.promote(moved.edge("st"), 1, moved.signature("s"), 99)
    assert moved.state() == before


@pytest.mark.parametrize("primitive", ["demote", "promote"])
def test_both_want_tuples_that_are_there(moved: Rig, primitive: str) -> None:
    """The STAIR exists, it has such a segment, and the positions are of different tuples in it."""
    move, last = (
        getattr(moved.stairs, primitive),
        {"demote": moved.span("s"), "promote": moved.edge("rs")}[primitive],
    )
    edge, signature = moved.edge("st"), moved.signature("rs" if primitive == "demote" else "s")
    with pytest.raises(StateError, match=r"relation number 0 .*\(0, 1\).*\(1, 2\)"):
        move(edge, 0, signature, last)
    with pytest.raises(StateError, match="edge 99"):
        move(99, 1, signature, last)
    with pytest.raises(StateError, match=r"STAIR\(t.b\)"):
        move(edge, 2, signature, last)
    with pytest.raises(StateError, match=r"STAIR\(s.b\).*\(t\).*\(s\)"):
        move(edge, 1, moved.signature("t"), last)
    for positions in ([1], [-1], [0, 0]):
        with pytest.raises(StateError, match=r"STAIR\(s.b\)"):
            move(edge, 1, signature, last, np.asarray(positions))
    before = moved.state()
    move(edge, 1, signature, last, np.empty(0, np.int64))
    assert moved.state() == before, "no position, no move"


def test_what_was_taken_out_cannot_be_moved_again(moved: Rig) -> None:
    """A position whose tuple was removed is no tuple's."""
    rig = Rig({"r": {"a": [1]}, "s": {"a": [1] * 5, "b": [2] * 5}, "t": {"b": [2]}}, EQUALITIES)
    rig.arrive("s1 s2 s3 s4 s5", s="rs")
    (place,) = rig.positions("s", "rs", "s2")
    rig.promote("s", "rs", "st", "s2")
    with pytest.raises(StateError, match="different tuples it holds"):
        rig.stairs.promote(rig.edge("rs"), 1, rig.signature("s"), rig.edge("st"), np.asarray([place]))
