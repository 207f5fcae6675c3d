"""Invariants A, B and B+ of the STAIRs, by brute force over all connected spans and all base tuples.

Deshpande & Hellerstein 2004, appendix A, as :mod:`millrace.engine.stairs.invariants` words them. Nothing that
the join state computes is taken for granted: attribute classes come from the block's equalities, matches from
the values of columns, and what may still arrive from the sources' ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from millrace.engine.plan.evaluation import evaluate
from millrace.engine.plan.expressions import Call, Predicate, columns_of, relations_of
from millrace.engine.plan.spec import JoinSpec
from millrace.engine.plan.trees import JoinTree
from millrace.engine.stairs.invariants import Stairs
from tests.engine.eddy.oracle import USERS, canonical

Rows = tuple[int, ...]
"""A tuple: row numbers of its components, in the order of relations."""


class Stored(NamedTuple):
    """The tuples of one segment of a STAIR at an edge, of a relation; as often as they are stored."""

    edge: int
    owner: int
    name: str
    span: int
    tuples: tuple[Rows, ...]


class Invariants:
    """Checks the STAIRs of one block at points of stasis."""

    def __init__(self, spec: JoinSpec, stairs: Stairs) -> None:
        self._spec = spec
        self._stairs = stairs
        self._classes = attribute_classes(spec)
        number = {alias: i for i, alias in enumerate(spec.aliases)}
        self._residuals = [(p, sum(1 << number[a] for a in relations_of(p))) for p in spec.residuals]
        self._values: list[dict[str, list[Any]]] = [{n: [] for n in r.schema.names} for r in spec.relations]
        self._times: list[list[int | None]] = [[] for _ in spec.relations]
        self._results: dict[int, tuple[tuple[range, ...], list[Rows]]] = {}
        self._proper: set[tuple[int, Rows]] = set()

    def check(self) -> None:
        """Check everything that ought to hold of the state as it is.

        Raises:
            AssertionError: Something does not; it says which tuple, where, and what was expected.
        """
        self._arrive()
        stored = self._stored()
        for segment in stored:
            self._check_section(segment)
        self._check_presence(stored)
        for segment in stored:
            self._check_once(segment)
        for one, other in combinations(stored, 2):
            self._check_apart(one, other)

    # What has arrived, and what it joins to

    def _arrive(self) -> None:
        """Take note of base tuples that have come since the last check."""
        for stem in self._stairs._stems:
            window, times = self._spec.relations[stem.number].window, self._times[stem.number]
            for values in (*self._values[stem.number].values(), times):
                # What has been evicted before it was looked at is gone, and nobody asks for it.
                values += [None] * (stem.store.first - len(values))
            new = np.arange(len(times), stem.store.rows)
            for name, values in self._values[stem.number].items() if len(new) else ():
                values += map(canonical, stem.store.gather(name, new).to_pylist())
            if window is None:
                times += [None] * len(new)
            elif len(new):
                arrived = stem.store.gather(window.column, new)
                whole = arrived.cast(pa.int32()) if pa.types.is_date32(arrived.type) else arrived
                times += whole.cast(pa.int64()).to_pylist()

    def _rows(self, relation: int) -> range:
        """Return the numbers of the rows that have arrived and have not been evicted."""
        store = self._stairs._stems[relation].store
        return range(store.first, store.rows)

    def results(self, span: int) -> list[Rows]:
        """Return every result, so far, of joining the relations of a span that the tree connects.

        Pairs that a residual predicate or a window of the span rejects are not among them: nobody needs them.
        """
        arrived = tuple(self._rows(r) for r in members(span))
        known = self._results.get(span)
        if known is not None and known[0] == arrived:
            return known[1]
        last = next(r for r in members(span) if span == 1 << r or self._tree.is_connected(span & ~(1 << r)))
        rest = span & ~(1 << last)
        found = [
            merge(one, rest, row, last)
            for one in (self.results(rest) if rest else [()])
            for row in self._matching(one, rest, last)
        ]
        found = [one for one in found if self._is_together(one, span)]
        for predicate, needed in self._residuals:
            if found and needed & span == needed and needed >> last & 1:
                truths = self._truths(predicate, found, span)
                found = [one for one, truth in zip(found, truths, strict=True) if truth is True]
        self._results[span] = arrived, found
        return found

    def _matching(self, one: Rows, span: int, relation: int) -> Iterator[int]:
        """Yield the rows of another relation that agree with a tuple on every attribute class."""
        wanted = []
        for columns in self._classes:
            mine = [column for r, column in columns if r == relation]
            bound = [(r, column) for r, column in columns if span >> r & 1]
            if mine:
                known = [self._value(one, span, r, column) for r, column in bound]
                wanted.append(([self._values[relation][column] for column in mine], known))
        for row in self._rows(relation):
            if all(
                len({*known, *(column[row] for column in mine)}) == 1 and mine[0][row] is not None
                for mine, known in wanted
            ):
                yield row

    def _is_together(self, one: Rows, span: int) -> bool:
        """Whether the components of a tuple are within each other's windows."""
        relations = zip(members(span), one, strict=True)
        windows = [
            (self._spec.relations[r].window, self._times[r][row])
            for r, row in relations
            if self._spec.relations[r].window
        ]
        latest = [time for _, time in windows if time is not None]
        return all(w is None or (t is not None and max(latest) - t <= w.length) for w, t in windows)

    def _value(self, one: Rows, span: int, relation: int, column: str) -> Any:
        return self._values[relation][column][project(one, span, 1 << relation)[0]]

    def _truths(self, predicate: Predicate, found: list[Rows], span: int) -> list[bool | None]:
        """Return what a predicate says of tuples; what it raises is kept, or counts as null."""
        columns = {}
        for ref in columns_of(predicate):
            relation = self._spec.aliases.index(ref.relation)
            rows = np.array([project(one, span, 1 << relation)[0] for one in found])
            columns[ref] = self._stairs._stems[relation].store.gather(ref.column, rows)
        if not isinstance(predicate, Call):
            return evaluate(predicate, columns).to_pylist()
        given = zip(*(columns[argument.ref].to_pylist() for argument in predicate.arguments), strict=True)
        return [self._truth(predicate, *values) for values in given]

    def _truth(self, call: Call, *values: int | None) -> bool | None:
        try:
            return USERS[call.spec.name](*values)
        except ArithmeticError:
            return call.spec.on_error == "fail"

    @property
    def _tree(self) -> JoinTree:
        """The present tree, of which ``test_trees.py`` has laws."""
        return self._stairs.tree

    def _open(self, edge: int, owner: int) -> bool:
        """Whether something may still arrive beyond an edge."""
        beyond = members(self._tree.beyond(edge, 1 << owner))
        return any(not self._stairs._stems[r].complete for r in beyond)

    # The checks

    def _stored(self) -> list[Stored]:
        found = []
        for edge, stair in self._stairs.stairs():
            for signature, segment in stair.segments.items():
                positions = segment.positions()
                assert len(positions) == segment.live, f"{stair.name} miscounts {self._named(signature.span)}"
                rows = segment.rows()
                assert sorted(rows) == members(signature.span), f"{stair.name} holds other than it says"
                parts = [rows[r][positions].tolist() for r in members(signature.span)]
                tuples = tuple(zip(*parts, strict=True))
                found.append(Stored(edge, stair.owner, stair.name, signature.span, tuples))
        return found

    def _check_section(self, segment: Stored) -> None:
        """A STAIR holds tuples that contain its relation, nothing from beyond its edge, and that match."""
        span, where = segment.span, f"tuples of {self._named(segment.span)} in {segment.name}"
        assert span >> segment.owner & 1, f"{where} lack the STAIR's relation"
        assert not span & self._tree.beyond(segment.edge, 1 << segment.owner), (
            f"{where} reach across its join"
        )
        assert self._tree.is_connected(span), f"{where} are not connected by the tree"
        for one in segment.tuples:
            if (span, one) in self._proper:
                continue
            arrived = all(row in self._rows(r) for r, row in zip(members(span), one, strict=True))
            assert arrived, f"{self._shown(one, span)} in {segment.name} has a component that is not here"
            for columns in self._classes:
                values = {self._value(one, span, r, column) for r, column in columns if span >> r & 1}
                assert len(values) < 2, (
                    f"{self._shown(one, span)} in {segment.name} does not match: {columns} are {values}"
                )
            self._proper.add((span, one))

    def _check_presence(self, stored: list[Stored]) -> None:
        """Invariant A."""
        everything = (1 << len(self._spec.relations)) - 1
        for span in filter(self._tree.is_connected, range(1, everything)):
            at = {(edge, self._tree.near(edge, span)) for edge in self._tree.border(span)}
            if not all(self._open(*each) for each in at):
                continue
            parts: dict[int, set[Rows]] = {}
            for segment in stored:
                if (segment.edge, segment.owner) in at and not segment.span & ~span:
                    parts.setdefault(segment.span, set()).update(segment.tuples)
            for one in self.results(span):
                assert any(project(one, span, part) in held for part, held in parts.items()), (
                    f"invariant A: no part of {self._shown(one, span)} is in a STAIR at its border"
                )

    def _check_once(self, segment: Stored) -> None:
        """Invariant B within a segment: nothing is there twice."""
        twice = Counter(segment.tuples) - Counter(set(segment.tuples))
        assert not twice, f"invariant B: {self._shown(min(twice), segment.span)} is in {segment.name} twice"

    def _check_apart(self, one: Stored, other: Stored) -> None:
        """Invariant B between two segments of a STAIR, B+ between two STAIRs."""
        shared = one.span & other.span
        together = (one.edge, one.owner) == (other.edge, other.owner)
        if not shared or (self._stairs.enforcing and not together):
            return
        for this, that in ((one, other), (other, one)):
            if this.span & self._tree.beyond(that.edge, 1 << that.owner):
                return
        mine, theirs = ({project(t, s.span, shared): t for t in s.tuples} for s in (one, other))
        for part in sorted(mine.keys() & theirs.keys()):
            a, b = self._shown(mine[part], one.span), self._shown(theirs[part], other.span)
            raise AssertionError(
                f"invariant {'B' if together else 'B+'}: {a} in {one.name} (edge {one.edge}) and {b} in "
                f"{other.name} (edge {other.edge}) agree on {self._named(shared)}"
            )

    def _named(self, span: int) -> str:
        return "".join(f"({self._spec.aliases[r]})" for r in members(span))

    def _shown(self, one: Rows, span: int) -> str:
        pairs = zip(members(span), one, strict=True)
        return "(" + " ".join(f"{self._spec.aliases[r]}#{row}" for r, row in pairs) + ")"


def attribute_classes(spec: JoinSpec) -> list[list[tuple[int, str]]]:
    """Return the columns that equalities of one type tie together, as relation numbers and names."""
    number = {alias: i for i, alias in enumerate(spec.aliases)}
    groups: list[set[tuple[str, int, str]]] = []
    for e in spec.equalities:
        tied = {(str(e.type), number[ref.relation], ref.column) for ref in (e.left, e.right)}
        for group in [each for each in groups if each & tied]:
            tied |= group
            groups.remove(group)
        groups.append(tied)
    return [sorted((relation, column) for _, relation, column in group) for group in groups]


def members(span: int) -> list[int]:
    """Return the relations of a span in order."""
    return [r for r in range(span.bit_length()) if span >> r & 1]


def project(one: Rows, span: int, part: int) -> Rows:
    """Return the components of a tuple of ``span`` that belong to ``part`` of it."""
    return tuple(row for r, row in zip(members(span), one, strict=True) if part >> r & 1)


def merge(one: Rows, span: int, row: int, relation: int) -> Rows:
    """Return a tuple with one more component."""
    place = (span & (1 << relation) - 1).bit_count()
    return (*one[:place], row, *one[place:])
