"""Sections of a STAIR: its tuples of one signature, indexed by the attributes of its join.

Arrays of row numbers of base tuples, which stay in their stores, so that insertion, probe, demotion,
promotion and eviction work on whole sets of tuples.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from millrace.kernels import Multimap
from millrace.modules.matching import Array
from millrace.relations import MOST_ROOM, RelationStore
from millrace.tuples import Signature, TupleBatch

_LEAST = 1024


class Section:
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
        self._rows = {r: np.empty(room, np.int32) for r in _members(signature.span)}
        self._failures: dict[int, Array] = {}
        self._gone: Array | None = None
        self._owners: Multimap | None = None

    @property
    def live(self) -> int:
        """Number of tuples that have not been removed."""
        return self.size - self.dead

    @property
    def nbytes(self) -> int:
        """Memory of row numbers and index in bytes."""
        arrays = sum(a.itemsize * self.size for a in self._rows.values())
        indexes = sum(i.nbytes for i in (self.index, self._owners) if i is not None)
        return arrays + indexes + (0 if self._gone is None else self.size)

    @property
    def least(self) -> int:
        """The part of :attr:`nbytes` that indexes take however few tuples they have."""
        return sum(i.least for i in (self.index, self._owners) if i is not None)

    def append(self, batch: TupleBatch, codes: Array | None) -> None:
        """Add tuples of the section's signature, with the codes of their join attributes."""
        last = self.size + batch.size
        for relation, rows in batch.rows.items():
            self._rows[relation] = _appended(self._rows[relation], self.size, rows)
        for predicate, failures in batch.failures.items():
            held = self._failures.get(predicate, np.empty(0, object))
            self._failures[predicate] = _appended(held, self.size, failures)
        if self._gone is not None:
            self._gone = _appended(self._gone, self.size, np.zeros(batch.size, np.bool_))
        if self._owners is not None:
            self._owners.insert(batch.rows[self.owner].astype(np.int64))
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
        """Return pairs that agree on all components they share: positions in ``batch`` and here."""
        if self._owners is None:
            self._owners = Multimap(self.size)
            self._owners.insert(self._rows[self.owner][: self.size].astype(np.int64))
        walk = self._owners.probe(batch.rows[self.owner].astype(np.int64))
        found = []
        while not walk.is_done:
            left, right = (part.copy() for part in self._owners.matches(walk, 65_536))
            keep = self.present(right)
            keep = np.ones(len(left), np.bool_) if keep is None else keep
            for relation, rows in batch.rows.items():
                if relation in self._rows and relation != self.owner:
                    keep &= rows[left] == self._rows[relation][right]
            found.append((left[keep], right[keep]))
        if not found:
            return np.empty(0, np.int32), np.empty(0, np.int32)
        return np.concatenate([f[0] for f in found]), np.concatenate([f[1] for f in found])


def _members(span: int) -> list[int]:
    return [r for r in range(span.bit_length()) if span >> r & 1]


def _appended(held: Array, size: int, new: Array) -> Any:
    last = size + len(new)
    if last > len(held):
        grown = np.empty(max(last, 2 * len(held), _LEAST), new.dtype)
        grown[:size] = held[:size]
        held = grown
    held[size:last] = new
    return held
