"""Segments of a STAIR: its tuples of one signature, indexed by the attributes of its join.

Arrays of row numbers of base tuples, which stay in their stores, so that insertion, probe, demotion,
promotion and eviction work on whole sets of tuples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from millrace.engine.arrays import Array
from millrace.engine.kernels import Multimap
from millrace.engine.plan.graph import members
from millrace.engine.stems.conditions import combined
from millrace.engine.tuples import MOST_ROOM, RelationStore
from millrace.engine.tuples.batch import Signature, TupleBatch

_LEAST = 1024
_PIECE = 65_536
"""Pairs that are looked at in one go."""


class Segment:
    """The tuples of one signature in a STAIR, by position in the order of insertion.

    Args:
        signature: Common to all of them.
        owner: The relation whose STAIR it is.
        indexed: Whether there is something to index them by.
        room: Tuples that are expected.
    """

    def __init__(self, signature: Signature, owner: int, *, indexed: bool, room: int = 0) -> None:
        self.signature = signature
        self.owner = owner
        self.size = 0
        self.dead = 0
        room = min(room, MOST_ROOM)
        self.index = Multimap(room) if indexed else None
        self._rows = {r: np.empty(room, np.int32) for r in members(signature.span)}
        self._failures: dict[int, Array] = {}
        self._gone: Array | None = None
        self._shared: dict[tuple[int, ...], Multimap] = {}

    @property
    def live(self) -> int:
        """Number of tuples that have not been removed."""
        return self.size - self.dead

    @property
    def nbytes(self) -> int:
        """Memory of row numbers and index in bytes."""
        arrays = sum(a.itemsize * self.size for a in self._rows.values())
        indexes = sum(i.nbytes for i in (self.index, *self._shared.values()) if i is not None)
        return arrays + indexes + (0 if self._gone is None else self.size)

    @property
    def least(self) -> int:
        """The part of :attr:`nbytes` that indexes take however few tuples they have."""
        return sum(i.least for i in (self.index, *self._shared.values()) if i is not None)

    def append(self, batch: TupleBatch, codes: Array | None) -> None:
        """Add tuples of the segment's signature, with the codes of their join attributes."""
        last = self.size + batch.size
        for relation, rows in batch.rows.items():
            self._rows[relation] = _appended(self._rows[relation], self.size, rows)
        for predicate, failures in batch.failures.items():
            held = self._failures.get(predicate, np.empty(0, object))
            self._failures[predicate] = _appended(held, self.size, failures)
        if self._gone is not None:
            self._gone = _appended(self._gone, self.size, np.zeros(batch.size, np.bool_))
        if self.index is not None:
            assert codes is not None
            self.index.insert(codes)
        self.size = last

    def rows(self) -> dict[int, Array]:
        """Return the row numbers by relation, those of removed tuples among them."""
        return {relation: rows[: self.size] for relation, rows in self._rows.items()}

    def failures(self) -> dict[int, Array]:
        """Return what predicates raised, by predicate, aligned with the rows."""
        return {i: failures[: self.size] for i, failures in self._failures.items()}

    def batch(self, stores: Mapping[int, RelationStore], positions: Array | None = None) -> TupleBatch:
        """Return the tuples at these positions, or all that have not been removed."""
        if positions is None and self.dead:
            positions = self.positions()
        rows = self.rows()
        failures = self.failures()
        if positions is not None:
            rows = {relation: r[positions] for relation, r in rows.items()}
            failures = {i: f[positions] for i, f in failures.items()}
        return TupleBatch(self.signature, rows, {r: stores[r] for r in rows}, failures=failures)

    def positions(self) -> Array:
        """Return where tuples are that have not been removed."""
        if self._gone is None:
            return np.arange(self.size)
        return np.flatnonzero(~self._gone[: self.size])

    def remove(self, positions: Array) -> None:
        """Remove tuples; their places stay empty."""
        if self._gone is None:
            self._gone = np.zeros(len(next(iter(self._rows.values()))), np.bool_)
        self.dead += int(np.count_nonzero(~self._gone[positions]))
        self._gone[positions] = True

    def present(self, positions: Array) -> Array | None:
        """Return which of these tuples have not been removed; None: all of them."""
        return None if not self.dead or self._gone is None else ~self._gone[positions]

    def agreeing(self, batch: TupleBatch) -> tuple[Array, Array]:
        """Return what agrees on all components that both sides share: positions in ``batch``, and here.

        A semi-join: each position once, however many tuples of the other side it agrees with. So no more
        pairs are looked at than there are tuples here that agree with something.
        """
        relations, index = self.by_shared(batch)
        codes = combined([batch.rows[r].astype(np.int64) for r in relations])
        walk = index.probe(codes)
        known = walk.probes[: walk.active]
        first, group = grouped([batch.rows[r][known] for r in relations])
        different = known[first]
        agreed = np.zeros(len(different), np.bool_)
        found = [np.empty(0, np.int32)]
        walk = index.probe(codes[different])
        while not walk.is_done:
            left, right = index.matches(walk, _PIECE)
            # Codes of several components may collide.
            keep = np.ones(len(left), np.bool_) if (present := self.present(right)) is None else present
            for r in relations:
                keep &= batch.rows[r][different[left]] == self._rows[r][right]
            agreed[left[keep]] = True
            found.append(right[keep])
        return known[agreed[group]], np.concatenate(found)

    def by_shared(self, batch: TupleBatch) -> tuple[tuple[int, ...], Multimap]:
        """Return the relations shared with tuples, and an index by all of their components together."""
        relations = tuple(r for r in self._rows if r in batch.rows)
        index = self._shared.setdefault(relations, Multimap())
        if index.rows < self.size:  # it is brought up to date when it is asked for
            new = [self._rows[r][index.rows : self.size].astype(np.int64) for r in relations]
            index.insert(combined(new))
        return relations, index

    def forget_shared(self) -> None:
        """Let go of the indexes that agreement is found by."""
        self._shared.clear()


def grouped(columns: Sequence[Array]) -> tuple[Array, Array]:
    """Group equal tuples.

    Args:
        columns: Components by relation, each of shape ``(n,)``.

    Returns:
        The position of the first tuple of each group, and for each tuple the place of its group among those.
    """
    order = np.lexsort(columns)
    differs = np.ones(len(order), np.bool_)
    differs[1:] = False
    for column in columns:
        ordered = column[order]
        differs[1:] |= ordered[1:] != ordered[:-1]
    group = np.empty(len(order), np.int64)
    group[order] = np.cumsum(differs) - 1
    return order[differs], group


def _appended(held: Array, size: int, new: Array) -> Any:
    last = size + len(new)
    if last > len(held):
        grown = np.empty(max(last, 2 * len(held), _LEAST), new.dtype)
        grown[:size] = held[:size]
        held = grown
    held[size:last] = new
    return held
