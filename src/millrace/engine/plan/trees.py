"""Spanning trees of the query graph: which pairs of relations binary joins are made on.

Join operators and STAIRs work along the edges of one spanning tree. Avnur & Hellerstein 2000, section
3, leave the choice to a pre-optimizer; conjuncts that close a cycle are verified on the tuples that
joins along the tree return. A tree may be exchanged for another while the query runs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, islice

from millrace.engine.plan.graph import QueryGraph, members
from millrace.engine.plan.spec import JoinSpec
from millrace.errors import InputError


@dataclass(frozen=True)
class Edge:
    """A join of two relations.

    Attributes:
        number: Its place among all pairs of relations, the same in every tree.
        ends: The two relations' numbers.
        classes: Attribute classes that both have a column in; none for a cross product.
    """

    number: int
    ends: tuple[int, int]
    classes: tuple[int, ...]


@dataclass(frozen=True)
class JoinTree:
    """A spanning tree of so many relations; its edges, one fewer, go by their numbers."""

    relations: int
    edges: tuple[Edge, ...]

    @cached_property
    def _sides(self) -> dict[int, tuple[int, int]]:
        """Per edge, the spans that it separates: that of its first end and that of its second."""
        sides = {}
        for edge in self.edges:
            spans = _connect(_singles(self.relations), [each for each in self.edges if each != edge])
            sides[edge.number] = spans[edge.ends[0]], spans[edge.ends[1]]
        return sides

    @cached_property
    def by_number(self) -> dict[int, Edge]:
        return {edge.number: edge for edge in self.edges}

    def border(self, span: int) -> tuple[int, ...]:
        """Return the edges that lead out of a span."""
        if span not in self._borders:
            leading = (e.number for e in self.edges if sum(span >> end & 1 for end in e.ends) == 1)
            self._borders[span] = tuple(leading)
        return self._borders[span]

    @cached_property
    def _borders(self) -> dict[int, tuple[int, ...]]:
        return {}

    def near(self, edge: int, span: int) -> int:
        """Return the edge's end inside a connected span that the edge leads out of."""
        a, b = self.by_number[edge].ends
        return a if span >> a & 1 else b

    def far(self, edge: int, span: int) -> int:
        """Return the edge's end outside the span."""
        a, b = self.by_number[edge].ends
        return b if span >> a & 1 else a

    def beyond(self, edge: int, span: int) -> int:
        """Return the span of everything on the other side of the edge."""
        first, second = self._sides[edge]
        return second if span & first else first

    def reached(self, start: int, span: int) -> int:
        """Return the part of a span that the tree holds together with one of its relations."""
        return _connect(_singles(self.relations), self._inside(span))[start]

    def is_connected(self, span: int) -> bool:
        """Whether the tree holds a span together."""
        return len(self._inside(span)) == span.bit_count() - 1

    def _inside(self, span: int) -> list[Edge]:
        return [e for e in self.edges if span >> e.ends[0] & 1 and span >> e.ends[1] & 1]


def edges_of(graph: QueryGraph) -> tuple[Edge, ...]:
    """Return every pair of relations with what joins them, cross products included."""
    pairs = combinations(range(graph.relations), 2)
    return tuple(Edge(i, (a, b), graph.bound(1 << a, b)) for i, (a, b) in enumerate(pairs))


def edge_names(spec: JoinSpec, graph: QueryGraph, leaves: int = 0) -> tuple[str, ...]:
    """Return what the joins along all pairs of relations are called, such as ``HashJoin(r.a = s.b)``.

    ``leaves`` is the span of relations that are asked by index alone.
    """
    names = []
    for edge in edges_of(graph):
        inner = [end for end in edge.ends if leaves >> end & 1]
        if inner and edge.classes:
            names.append(index_join_name(spec, graph, edge, inner[0]))
            continue
        sides = [side_name(spec, graph, edge, end) for end in edge.ends]
        names.append(f"HashJoin({' = '.join(sides)})" if edge.classes else f"RippleJoin({' × '.join(sides)})")
    return tuple(names)


def index_join_name(spec: JoinSpec, graph: QueryGraph, edge: Edge, inner: int) -> str:
    """Return what the join along an edge is called if one end is asked by its index alone."""
    (outer,) = (end for end in edge.ends if end != inner)
    return f"IndexJoin({side_name(spec, graph, edge, outer)} = {side_name(spec, graph, edge, inner)})"


def side_name(spec: JoinSpec, graph: QueryGraph, edge: Edge, end: int) -> str:
    """Return the columns that one end of an edge joins on, such as ``r.a``; its alias for a cross product."""
    alias = spec.aliases[end]
    return ", ".join(f"{alias}.{graph.classes[c].columns(end)[0]}" for c in edge.classes) or alias


def spanning_trees(graph: QueryGraph, most: int = 256) -> Iterator[JoinTree]:
    """Yield spanning trees that use no more cross products than needed, at most ``most`` of them.

    Trees come in the order of their edges' numbers, after steps that grow with a power of the number of
    relations, however many trees there are.
    """
    every, alone = edges_of(graph), _singles(graph.relations)
    linked = _connect(alone, [e for e in every if e.classes])
    useful = [e for e in every if e.classes or linked[e.ends[0]] != linked[e.ends[1]]]

    def rank(edges: Sequence[Edge]) -> int:
        """Return the most of the edges that one tree may have."""
        joined = _connect(alone, [e for e in edges if e.classes])
        products = _connect(linked, [e for e in edges if not e.classes])
        return graph.relations - len(set(joined)) + len(set(linked)) - len(set(products))

    def complete(chosen: tuple[Edge, ...], first: int) -> Iterator[tuple[Edge, ...]]:
        """Yield the trees that have the chosen edges and else only such from place ``first`` on."""
        if len(chosen) == graph.relations - 1:
            yield chosen
            return
        for place in range(first, len(useful)):
            if rank((*chosen, *useful[place:])) < graph.relations - 1:
                return
            grown = (*chosen, useful[place])
            if rank(grown) == len(grown):
                yield from complete(grown, place + 1)

    for edges in islice(complete((), 0), most):
        yield JoinTree(graph.relations, edges)


def spanning_tree(
    graph: QueryGraph, sizes: Sequence[int], leaves: int = 0, barred: Collection[int] = ()
) -> JoinTree:
    """Choose a tree without knowing selectivities (the pre-optimizer).

    Equality edges come first, those on several attributes before those on one, small relations before
    large ones. Cross products only link what nothing else does, through the smallest relations. ``sizes`` are
    the rows of each relation, as far as known. ``leaves`` is the span of relations that may only be leaves,
    and no neighbours of each other, tied by equality. Edges whose numbers are ``barred`` may not lead there.

    Raises:
        InputError: No tree has all of these as leaves.
    """
    every = edges_of(graph)
    ends = {e: (1 << e.ends[0] | 1 << e.ends[1]) & leaves for e in every}  # those that may only be leaves
    core = [e for e in every if not ends[e]]
    outer = [e for e in every if ends[e].bit_count() == 1 and e.classes and e.number not in barred]
    for relation in members(leaves):
        if not any(relation in e.ends for e in outer):
            raise InputError(
                f"relation number {relation} can only be a leaf of a join tree, but no equalities that serve "
                "lead to it from a relation that may be an inner node; architecture='stems' can join it"
            )

    def price(edge: Edge) -> tuple[bool, int, int, tuple[int, int]]:
        a, b = edge.ends
        return not edge.classes, -len(edge.classes), sizes[a] * sizes[b], edge.ends

    chosen: list[Edge] = []
    spans = _singles(graph.relations)
    # Leaves come last: what leads to them connects nothing else.
    for edge in (*sorted(core, key=price), *sorted(outer, key=price)):
        if spans[edge.ends[0]] != spans[edge.ends[1]]:
            chosen.append(edge)
            spans = _connect(spans, [edge])
    return JoinTree(graph.relations, tuple(chosen))


def _singles(relations: int) -> list[int]:
    return [1 << relation for relation in range(relations)]


def _connect(spans: list[int], edges: Sequence[Edge]) -> list[int]:
    """Return for each relation the span that spans and edges hold together with it."""
    for edge in edges:
        joined = spans[edge.ends[0]] | spans[edge.ends[1]]
        spans = [joined if span & joined else span for span in spans]
    return spans
