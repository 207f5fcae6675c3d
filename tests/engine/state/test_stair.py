"""STAIRs tuple by tuple: the examples of the STAIRs paper, batches and resumable probes.

The running example is R join S join T on ``r.a = s.a`` and ``s.b = t.b`` (Deshpande & Hellerstein 2004,
figures 4 to 6). What is expected was worked out from the definitions in section 3.1.
"""

from __future__ import annotations

import random

import numpy as np
import pytest

from millrace.engine.state import stairs
from millrace.engine.trees import spanning_trees
from tests.engine.state.rig import EQUALITIES, Rig, Tables, split, three


def test_a_join_is_two_stairs() -> None:
    """Figure 4: a STAIR at each end of each join, those on S are separate."""
    rig = three()
    names = sorted(stair.name for _, stair in rig.stairs.stairs())
    assert names == ["STAIR(r.a)", "STAIR(s.a)", "STAIR(s.b)", "STAIR(t.b)"]
    join = rig.stairs.joins[rig.edge("rs")]
    assert join.dual(rig.stair("r", "rs")) is rig.stair("s", "rs")
    assert join.dual(rig.stair("s", "rs")) is rig.stair("r", "rs")


def test_stairs_on_one_attribute_are_separate() -> None:
    """Section 3.1: even if both joins are on the same attribute there are two STAIRs on S."""
    rig = Rig({"r": {"a": [1]}, "s": {"a": [1]}, "t": {"a": [1]}}, ["r.a = s.a", "s.a = t.a"])
    middle = max(range(3), key=lambda r: len(rig.stairs.tree.border(1 << r)))
    of_middle = [stair for _, stair in rig.stairs.stairs() if stair.owner == middle]
    assert len(of_middle) == 2
    assert of_middle[0] is not of_middle[1]


def test_routing_to_a_join_inserts_and_probes() -> None:
    """Dual Routing: s1 goes to R join S, what it makes there to S join T."""
    rig = three()
    rig.arrive("r1")
    rig.arrive("t1")
    rig.arrive("s1", s="rs")
    assert rig.state() == {"r in rs": ["r1"], "s in rs": ["s1"], "s in st": ["r1s1"], "t in st": ["t1"]}
    assert rig.results == ["r1s1t1"]


def test_tuples_at_a_time_cost_what_the_definitions_say() -> None:
    """Each routing is one insertion and one probe; each match that is no result is intermediate.

    r1, r2 and t1 are routed once each: 3. s1 goes to R join S: 1, makes r1s1 and r2s1, which go to
    S join T: 2, and each makes a result there. s3 goes to S join T: 1, and makes nothing. t2 goes to
    S join T: 1, makes s3t2, which goes to R join S: 1, and makes two results there.
    """
    rig = three()
    for name in ("r1", "r2", "t1"):
        rig.arrive(name)
    rig.arrive("s1", s="rs")
    rig.arrive("s3", s="st")
    rig.arrive("t2", st="rs")
    assert rig.probes == 9
    assert rig.intermediate == 3
    inserted = {stair.name: stair.inserted for _, stair in rig.stairs.stairs()}
    assert inserted == {"STAIR(r.a)": 2, "STAIR(s.a)": 2, "STAIR(s.b)": 3, "STAIR(t.b)": 2}
    assert sorted(rig.results) == ["r1s1t1", "r1s3t2", "r2s1t1", "r2s3t2"]


def test_demotion_replaces_a_tuple_by_its_part() -> None:
    """Figure 5: demotion(S.b, r1s1, s1)."""
    rig = three()
    rig.arrive("r1")
    rig.arrive("s1 s2", s="rs")
    rig.arrive("s3", s="st")
    assert rig.held("s", "st") == ["r1s1", "s3"]
    rig.demote("s", "st", "s", "r1s1")
    assert rig.state() == {"r in rs": ["r1"], "s in rs": ["s1", "s2"], "s in st": ["s1", "s3"], "t in st": []}
    assert rig.stair("s", "st").demoted == 1
    assert rig.stairs.moved == 1
    assert rig.stairs.enforcing
    rig.check()


def test_promotion_replaces_a_tuple_by_its_matches() -> None:
    """Figure 5: promotion(S.b, s3, S.a) leaves r1s3 and r2s3 in S.b, and s3 itself in S.a."""
    rig = three()
    rig.arrive("r1 r2 r3")
    rig.arrive("s2", s="rs")
    rig.arrive("s3", s="st")
    assert rig.held("s", "st") == ["r3s2", "s3"]
    rig.promote("s", "st", "rs", "s3")
    assert rig.state() == {
        "r in rs": ["r1", "r2", "r3"],
        "s in rs": ["s2", "s3"],
        "s in st": ["r1s3", "r2s3", "r3s2"],
        "t in st": [],
    }
    assert rig.stair("s", "st").promoted == 1
    assert rig.stairs.recomputed == 2
    rig.check()


def test_promotion_without_a_match_leaves_nothing() -> None:
    """Step 4 puts back what there is: s2 matches no r so far, and is found in S.a when one comes."""
    rig = three()
    rig.arrive("t1")
    rig.arrive("s2", s="st")
    rig.promote("s", "st", "rs", "s2")
    assert rig.state() == {"r in rs": [], "s in rs": ["s2"], "s in st": [], "t in st": ["t1"]}
    rig.arrive("r3", rs="st")
    assert rig.held("s", "st") == ["r3s2"]


def test_migration_reverses_a_routing_decision() -> None:
    """Figure 6: afterwards the state is what it would have been had all of S gone to S join T at once."""
    rig = three()
    rig.arrive("r1 r2 r3")
    rig.arrive("t1 t2 t3")
    rig.arrive("s1 s2", s="rs", rs="st")
    rig.arrive("s3", s="st", st="rs")
    assert rig.state() == {
        "r in rs": ["r1", "r2", "r3"],
        "s in rs": ["s1", "s2", "s3t2", "s3t3"],
        "s in st": ["r1s1", "r2s1", "r3s2", "s3"],
        "t in st": ["t1", "t2", "t3"],
    }
    rig.demote("s", "st", "s", "r1s1", "r2s1", "r3s2")
    rig.promote("s", "rs", "st", "s1", "s2")
    assert rig.state() == {
        "r in rs": ["r1", "r2", "r3"],
        "s in rs": ["s1t1", "s3t2", "s3t3"],
        "s in st": ["s1", "s2", "s3"],
        "t in st": ["t1", "t2", "t3"],
    }
    rig.check()
    other = three()
    other.arrive("r1 r2 r3")
    other.arrive("t1 t2 t3")
    other.arrive("s1 s2", s="st", st="rs")
    other.arrive("s3", s="st", st="rs")
    assert other.state() == rig.state()


def test_a_local_invariant_is_not_enough() -> None:
    """s1 in S.a and, demoted, in S.b: without B+, r2 would make r2s1 beside s1, and t1 both results twice."""
    rig = three()
    rig.arrive("r1")
    rig.arrive("s1", s="rs")
    rig.demote("s", "st", "s", "r1s1")
    assert rig.held("s", "rs") == rig.held("s", "st") == ["s1"]
    rig.arrive("r2", rs="st")
    assert rig.held("s", "st") == ["s1"]
    rig.arrive("t1", st="rs")
    assert sorted(rig.results) == ["r1s1t1", "r2s1t1"]


@pytest.mark.broken_rule
def test_a_local_invariant_fails_that_very_example() -> None:
    """The same with insertions that do not merge: r2s1t1 comes twice."""
    rig = three()
    rig.arrive("r1")
    rig.arrive("s1", s="rs")
    rig.demote("s", "st", "s", "r1s1")
    rig.check()
    rig.stairs.enforcing = False
    with pytest.raises(
        AssertionError, match=r"invariant B\+: \(s#0\) in .* and \(s#0\) in .* agree on \(s\)"
    ):
        rig.check()
    rig._invariants.check = lambda: None  # type: ignore[method-assign]
    rig.arrive("r2", rs="st")
    assert rig.held("s", "st") == ["r2s1", "s1"]
    rig.arrive("t1", st="rs")
    assert sorted(rig.results) == ["r1s1t1", "r2s1t1", "r2s1t1"]


def test_what_agrees_is_demoted_to_what_it_shares() -> None:
    """Invariant B after demotion of r1s1: r2s1 agrees with s1, so s1 stands for both."""
    rig = three()
    rig.arrive("r1 r2")
    rig.arrive("s1", s="rs")
    assert rig.held("s", "st") == ["r1s1", "r2s1"]
    rig.demote("s", "st", "s", "r1s1")
    assert rig.held("s", "st") == ["s1"]
    assert rig.stair("s", "st").demoted == 2


def test_neither_of_two_that_agree_need_contain_the_other() -> None:
    """sab and sac share sa (appendix A.1): with a of them in the middle, both become what they share."""
    tables: Tables = {
        "s": {"x": [1], "y": [1], "z": [1]},
        "a": {"x": [1]},
        "b": {"y": [1]},
        "t": {"z": [1]},
    }
    rig = Rig(tables, ["s.x = a.x", "s.y = b.y", "s.z = t.z"])
    rig.arrive("a1")
    rig.arrive("b1")
    rig.arrive("s1", s="as", sa="st")
    assert rig.held("s", "st") == ["s1a1"]
    batch = next(iter(rig.stair("s", "st").contents()))
    rig.promote("s", "st", "bs", "s1a1")
    assert rig.held("s", "st") == ["s1a1b1"]
    rig.demote("s", "st", "sb", "s1a1b1")
    assert rig.held("s", "st") == ["s1b1"]
    rig.stair("s", "st").merge(batch)
    assert rig.held("s", "st") == ["s1"]
    rig.check()


def test_ended_relations_close_stairs() -> None:
    """Nobody comes to look in S.a once R has ended, nor in S.b once T has; results stay complete."""
    rig = three()
    rig.arrive("r1 r2 r3")
    rig.arrive("s1 s2", s="rs", rs="st")
    rig.end("r")
    assert rig.state()["s in rs"] == []
    assert rig.state()["s in st"] == ["r1s1", "r2s1", "r3s2"]
    rig.arrive("s3", s="rs", rs="st")
    assert rig.state()["s in rs"] == []
    rig.end("s")
    rig.arrive("t1 t2 t3")
    assert rig.state()["t in st"] == []
    assert len(rig.results) == 6
    rig.end("t")
    assert not any(rig.state().values())


def test_another_tree_holds_the_same_base_tuples() -> None:
    """On a cycle, state along another tree is made of base tuples; no result comes again, none is lost."""
    tables: Tables = {
        "r": {"a": [1, 1], "c": [3, 4]},
        "s": {"a": [1], "b": [2]},
        "t": {"b": [2, 2], "c": [3, 4]},
    }
    rig = Rig(tables, ["r.a = s.a", "s.b = t.b", "t.c = r.c"])
    ends = {edge.ends for edge in rig.stairs.tree.edges}
    assert len(ends) == 2
    middle = next(alias for i, alias in enumerate("rst") if all(i in pair for pair in ends))
    leaves = [alias for alias in "rst" if alias != middle]
    first, second = (middle + leaf if middle < leaf else leaf + middle for leaf in leaves)
    rig.arrive("r1", r=first)
    rig.arrive("s1", s=second)
    rig.arrive("t1", t=first, rs=first, rt=second, st=second)
    assert rig.results == ["r1s1t1"]
    other = next(t for t in spanning_trees(rig.graph) if {e.ends for e in t.edges} != ends)
    rig.stairs.rebuild(other, lambda span: other.border(span)[0])
    assert {edge.ends for edge in rig.stairs.tree.edges} != ends
    assert not rig.stairs.enforcing
    rig.check()
    assert rig.results == ["r1s1t1"]


# Batches and resumable probes


def fixed(rig: Rig, batch: int, seed: int) -> None:
    """Let the example's tuples arrive in batches, all of S to R join S."""
    draw = random.Random(seed)
    left = {alias: [f"{alias}{i + 1}" for i in range(7)] for alias in "rst"}
    while any(left.values()):
        alias = draw.choice([a for a in left if left[a]])
        names, left[alias] = left[alias][:batch], left[alias][batch:]
        rig.arrive(" ".join(names), s="rs", rs="st", st="rs")


def many(limit: int = 1000) -> Rig:
    draw = random.Random(5)
    keys = [draw.randint(0, 2) for _ in range(28)]
    tables: Tables = {"r": {"a": keys[:7]}, "s": {"a": keys[7:14], "b": keys[14:21]}, "t": {"b": keys[21:]}}
    return Rig(tables, EQUALITIES, limit)


@pytest.mark.parametrize("limit", [1, 2, 1000])
@pytest.mark.parametrize("batch", [1, 2, 7])
def test_batches_make_the_same_state(batch: int, limit: int) -> None:
    """With a fixed routing neither the order of arrival nor batches nor limits change state or costs.

    All of S goes to R join S: S.a holds S, S.b holds what R and S join to, and each of them was made, hence
    inserted and probed with, once.
    """
    rig = many(limit)
    fixed(rig, batch, seed=batch)
    r, s, t = (rig._tables[alias].to_pylist() for alias in "rst")
    pairs = [f"r{i + 1}s{j + 1}" for i, x in enumerate(r) for j, y in enumerate(s) if x["a"] == y["a"]]
    results = [
        f"{p}t{k + 1}" for p in pairs for k, z in enumerate(t) if s[int(split(p)[1][1:]) - 1]["b"] == z["b"]
    ]
    assert rig.state() == {
        "r in rs": [f"r{i}" for i in range(1, 8)],
        "s in rs": [f"s{i}" for i in range(1, 8)],
        "s in st": sorted(pairs),
        "t in st": [f"t{i}" for i in range(1, 8)],
    }
    assert sorted(rig.results) == sorted(results)
    assert rig.intermediate == len(pairs)
    assert rig.probes == 21 + len(pairs)
    assert sum(stair.inserted for _, stair in rig.stairs.stairs()) == rig.probes


def test_a_probe_goes_on_where_it_stopped() -> None:
    """With room for one match, a probe of two tuples over two segments returns each match once."""
    rig = three()
    rig.arrive("r1 r2")
    rig.arrive("s1", s="rs", rs="st")
    rig.arrive("s3", s="st")
    stair = rig.stair("s", "st")
    assert len(stair.segments) == 2
    rig.arrive("t1", st="rs")
    rig = three(limit=1)
    rig.arrive("r1 r2")
    rig.arrive("s1", s="rs", rs="st")
    rig.arrive("s3", s="st")
    rig.arrive("t1 t2 t3", st="rs")
    assert sorted(rig.results) == ["r1s1t1", "r1s3t2", "r1s3t3", "r2s1t1", "r2s3t2", "r2s3t3"]


def test_promotion_in_pieces_puts_everything_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Matches that do not fit in one piece are put back piece by piece."""
    monkeypatch.setattr(stairs, "_PIECE", 1)
    rig = three()
    rig.arrive("r1 r2 r3")
    rig.arrive("s1 s2 s3", s="st")
    rig.promote("s", "st", "rs", "s1", "s2", "s3")
    assert rig.held("s", "st") == ["r1s1", "r1s3", "r2s1", "r2s3", "r3s2"]
    assert rig.stairs.recomputed == 5


def test_what_was_taken_out_is_not_found() -> None:
    """Places of removed tuples stay empty until more than half of a segment is; neither is ever matched."""
    tables: Tables = {"r": {"a": [1] * 3}, "s": {"a": [1] * 5, "b": [2] * 5}, "t": {"b": [2]}}
    rig = Rig(tables, EQUALITIES)
    rig.arrive("s1 s2 s3 s4 s5", s="rs")
    segment = rig.stair("s", "rs").segments[rig.signature("s")]
    rig.promote("s", "rs", "st", "s2", "s4")
    assert (segment.size, segment.live, segment.dead) == (5, 3, 2)
    assert rig.held("s", "rs") == ["s1", "s3", "s5"]
    rig.arrive("r1", rs="st")
    assert rig.held("s", "st") == ["r1s1", "r1s3", "r1s5", "s2", "s4"]
    rig.promote("s", "rs", "st", "s1")
    fresh = rig.stair("s", "rs").segments[rig.signature("s")]
    assert (fresh.size, fresh.live, fresh.dead) == (2, 2, 0), "rebuilt without its empty places"
    rig.arrive("t1", st="rs")
    assert sorted(rig.results) == [f"r1s{i}t1" for i in range(1, 6)]
    rig.promote("s", "rs", "st", "s3", "s5")
    assert rig.signature("s") not in rig.stair("s", "rs").segments


def test_agreement_is_found_before_and_after_insertions() -> None:
    """The index by what is shared is made when it is first asked for, and brought up to date."""
    rig = three()
    rig.arrive("s1 s2", s="rs")
    stair = rig.stair("s", "rs")
    segment = stair.segments[rig.signature("s")]
    both = segment.batch(stair._stores)
    assert [part.tolist() for part in segment.agreeing(both.take(np.asarray([1])))] == [[0], [1]]
    rig.arrive("s3", s="rs")
    three_of_them = segment.batch(stair._stores)
    found = sorted(zip(*(part.tolist() for part in segment.agreeing(three_of_them)), strict=True))
    assert found == [(0, 0), (1, 1), (2, 2)]


def test_stairs_tell_what_they_hold() -> None:
    """Figures count tuples held and what went through; row numbers and indexes are the memory."""
    rig = three()
    assert rig.stair("s", "rs").nbytes == 0
    rig.arrive("s1 s2 s3", s="rs")
    rig.promote("s", "rs", "st", "s1")
    figures = rig.stair("s", "rs").figures()
    assert (figures.tuples, figures.inserted, figures.promoted, figures.demoted) == (2, 3, 1, 0)
    assert figures.nbytes == rig.stair("s", "rs").nbytes > 0
