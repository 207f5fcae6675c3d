"""Spanning trees: all of them and nothing else, what their edges separate, and the pre-optimizer's choice."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import nullcontext
from functools import cache
from itertools import combinations, pairwise

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from millrace.engine.plan.graph import QueryGraph
from millrace.engine.plan.spec import JoinSpec
from millrace.engine.plan.trees import JoinTree, spanning_tree, spanning_trees
from millrace.errors import InputError
from tests.engine.eddy.invariants import attribute_classes
from tests.engine.eddy.oracle import block
from tests.engine.laws import examples

COLUMNS = "xyz"


def spec_of(relations: int, equalities: list[str]) -> JoinSpec:
    """Return a block over ``a``, ``b``, … with equalities such as ``a.x = b.x``."""
    empty = pa.schema([(column, pa.int64()) for column in COLUMNS]).empty_table()
    return block(dict.fromkeys("abcdefghijklmnop"[:relations], empty), equalities, count_only=True).spec


@st.composite
def specs(draw: st.DrawFn, most: int = 6, columns: str = COLUMNS) -> JoinSpec:
    """Draw a block of so many relations at most: connected, cyclic or not, with classes of any size."""
    relations = draw(st.integers(1, most))
    pairs = list(combinations("abcdef"[:relations], 2))
    equalities = []
    for a, b in draw(st.lists(st.sampled_from(pairs), max_size=7)) if pairs else []:
        x, y = draw(st.sampled_from(columns)), draw(st.sampled_from(columns))
        equalities.append(f"{a}.{x} = {b}.{y}")
    return spec_of(relations, equalities)


def joined(spec: JoinSpec) -> set[tuple[int, int]]:
    """Return the pairs of relations that some equality, or several together, tie to each other."""
    pairs = (pair for columns in attribute_classes(spec) for pair in combinations(columns, 2))
    return {(one, other) for (one, _), (other, _) in pairs if one != other}


def components(relations: int, pairs: Iterable[tuple[int, int]]) -> list[list[int]]:
    """Return which relations the pairs hold together."""
    groups = [[r] for r in range(relations)]
    for a, b in pairs:
        one, other = (next(g for g in groups if end in g) for end in (a, b))
        if one is not other:
            groups.remove(other)
            one += other
    return groups


@cache
def all_trees(relations: int) -> list[tuple[tuple[int, int], ...]]:
    """Return, by trying all sets of edges, the trees over so many relations."""
    sets = combinations(combinations(range(relations), 2), relations - 1)
    return [edges for edges in sets if len(components(relations, edges)) == 1]


def trees_of(spec: JoinSpec, leaves: int = 0, barred: Collection[int] = ()) -> set[frozenset]:
    """Return, by trying all trees, those with as few cross products as can be.

    A relation that may only be a leaf hangs on one edge, which is no cross product and not barred, and not on
    another such relation.
    """
    relations, tied = len(spec.relations), joined(spec)
    every = list(combinations(range(relations), 2))
    outer = [r for r in range(relations) if leaves >> r & 1]
    serve = {e for i, e in enumerate(every) if e in tied and i not in barred and not {*e} <= {*outer}}

    def is_legal(tree: tuple[tuple[int, int], ...]) -> bool:
        hanging = [[edge for edge in tree if leaf in edge] for leaf in outer]
        return all(len(e) == 1 and e[0] in serve for e in hanging)

    found = [tree for tree in all_trees(relations) if is_legal(tree)]
    fewest = min((len({*tree} - tied) for tree in found), default=0)
    return {frozenset(tree) for tree in found if len({*tree} - tied) == fewest}


def ends_of(tree: JoinTree) -> frozenset[tuple[int, int]]:
    return frozenset(edge.ends for edge in tree.edges)


@examples(100)
@given(specs(), st.just(0) | st.integers(0, 63), st.sets(st.integers(0, 14), max_size=2))
def test_spanning_trees_are_all_there_are(spec: JoinSpec, leaves: int, barred: set[int]) -> None:
    """Each once, none with more cross products than needed; the choice has leaves, or it is an error."""
    graph = QueryGraph.of(spec)
    leaves &= graph.everything
    found = list(spanning_trees(graph, 2000))  # a complete graph of six has 6^4 trees
    expected = trees_of(spec)
    assert len(found) == len(expected)
    assert {ends_of(tree) for tree in found} == expected
    assert list(spanning_trees(graph, 7)) == found[:7], "as many as are asked for"
    legal = trees_of(spec, leaves, barred)
    with nullcontext() if legal else pytest.raises(InputError, match="relation number"):
        assert ends_of(spanning_tree(graph, [1] * graph.relations, leaves, barred)) in legal
    assert all(bool(edge.classes) == (edge.ends in joined(spec)) for tree in found for edge in tree.edges)


def test_trees_are_found_without_trying_all_sets_of_edges() -> None:
    """Eight relations on one attribute and a chain of eight more: 36 edges, 5 billion sets of 15."""
    clique = [f"{a}.x = {b}.x" for a, b in pairwise("abcdefgh")]
    chain = [f"{a}.{'yz'[i % 2]} = {b}.{'yz'[i % 2]}" for i, (a, b) in enumerate(pairwise("hijklmnop"))]
    graph = QueryGraph.of(spec_of(16, clique + chain))
    assert len(list(spanning_trees(graph))) == 256


@examples(50)
@given(specs(), st.data())
def test_edges_separate_what_lies_on_their_two_sides(spec: JoinSpec, data: st.DataObject) -> None:
    """Border, near, far and beyond of every span, against what is left of the tree without the edge."""
    graph = QueryGraph.of(spec)
    tree = data.draw(st.sampled_from(list(spanning_trees(graph, 20))))
    for span in range(1, graph.everything + 1):
        within = {e.ends for e in tree.edges if span >> e.ends[0] & 1 and span >> e.ends[1] & 1}
        inside = [g for g in components(graph.relations, within) if span >> g[0] & 1]
        assert tree.is_connected(span) == (len(inside) == 1)
        crossing = [e for e in tree.edges if (span >> e.ends[0] & 1) != (span >> e.ends[1] & 1)]
        assert sorted(tree.border(span)) == sorted(e.number for e in crossing)
        if len(inside) != 1:
            continue
        for edge in crossing:
            near, far = edge.ends if span >> edge.ends[0] & 1 else edge.ends[::-1]
            assert (tree.near(edge.number, span), tree.far(edge.number, span)) == (near, far)
            cut = {e.ends for e in tree.edges if e != edge}
            there = next(g for g in components(graph.relations, cut) if far in g)
            assert tree.beyond(edge.number, span) == sum(1 << r for r in there)


@examples(75)
@given(specs(), st.lists(st.integers(0, 20), min_size=6, max_size=6))
def test_the_pre_optimizer_prefers_attributes_then_small_relations(spec: JoinSpec, sizes: list[int]) -> None:
    """No tree has fewer products, then more attributes joined on, then smaller relations at its joins.

    A spanning tree that is least edge by edge (a minimum spanning tree) is least in the sorted list of its
    edges' prices as well, hence no other tree's list comes before its own.
    """
    graph = QueryGraph.of(spec)

    def prices(tree: JoinTree) -> list[tuple[bool, int, int]]:
        ends = [(edge.classes, *edge.ends) for edge in tree.edges]
        return sorted((not classes, -len(classes), sizes[a] * sizes[b]) for classes, a, b in ends)

    tree, found = spanning_tree(graph, sizes), list(spanning_trees(graph, 2000))
    assert ends_of(tree) in map(ends_of, found)
    assert prices(tree) == min(map(prices, found))
