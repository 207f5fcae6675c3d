"""Tuples that wait for more of a relation: prior probers, which its SteM bounced back (ProbeCompletion).

Raman, Deshpande & Hellerstein 2003, sections 2.3 and 3.5. They are not in flight, and come back when the SteM
has what they have not seen yet. An EOT tuple says that all matches of its binding are there (section 2.1.3).
It concerns the probers that bind the same values, and no others are looked at when it comes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np

from millrace.engine.arrays import Array
from millrace.engine.kernels import Multimap
from millrace.engine.stems.bindings import BindingSet
from millrace.engine.stems.conditions import Classes, Windows
from millrace.engine.stems.stem import SteM
from millrace.engine.tuples import CodeColumn
from millrace.engine.tuples.batch import TupleBatch

_STEP = 65_536


class PriorProbers:
    """Prior probers, by the relation that they wait for."""

    def __init__(self) -> None:
        self._waiting: dict[int, list[TupleBatch]] = {}
        self._asking: dict[int, _Askers] = {}

    def hold(self, batch: TupleBatch, relation: int, seen: int) -> None:
        """Keep a tuple batch that a SteM bounced until that SteM has grown beyond ``seen`` rows."""
        prior = replace(batch, signature=batch.signature.having(prior=relation), seen=seen, origin=0)
        self._waiting.setdefault(relation, []).append(prior)

    @property
    def held(self) -> list[TupleBatch]:
        bound = [batch for probers in self._asking.values() for batch in probers.held]
        return [*(batch for batches in self._waiting.values() for batch in batches), *bound]

    @property
    def size(self) -> int:
        unbound = sum(batch.size for batches in self._waiting.values() for batch in batches)
        return unbound + sum(probers.size for probers in self._asking.values())

    def release(self, relation: int, stem: SteM) -> list[TupleBatch]:
        """Return the prior probers of the SteM for which it has what they have not seen yet.

        Without a scan that is so once it has all of their matches: one more probe is enough then.
        """
        waiting = self._waiting.pop(relation, [])
        if not stem.scanned:
            if waiting and relation not in self._asking:
                self._asking[relation] = _Askers(stem)
            found = self._asking[relation].release(waiting) if relation in self._asking else ()
            return [batch for batch in found if batch.size]
        still = [] if stem.complete else [batch for batch in waiting if batch.seen >= stem.rows]
        if still:
            self._waiting[relation] = still
        return [batch for batch in waiting if batch.seen < stem.rows]

    def expire(self, windows: Windows, watermark: int) -> None:
        """Drop prior probers that have expired before the watermark: nothing to come matches them."""
        for relation, probers in self._asking.items():
            self._waiting.setdefault(relation, []).extend(probers.held)
        self._asking.clear()
        for relation, waiting in self._waiting.items():
            alive = [batch.take(np.flatnonzero(windows.alive(batch, watermark))) for batch in waiting]
            self._waiting[relation] = [batch for batch in alive if batch.size]


class _Askers:
    """Prior probers of a SteM that no scan fills: each waits until all of its matches are there."""

    def __init__(self, stem: SteM) -> None:
        self._stem = stem
        self._hold([])

    @property
    def size(self) -> int:
        return self._size - self._released

    @property
    def held(self) -> list[TupleBatch]:
        return [
            batch.take(np.flatnonzero(~gone)) for batch, gone in zip(self._batches, self._gone, strict=True)
        ]

    def _hold(self, batches: Iterable[TupleBatch]) -> None:
        """Let these tuples wait in place of those that did; the EOTs that are there concern none of them."""
        self._batches: list[TupleBatch] = []
        self._gone: list[Array] = []
        self._starts: list[int] = []
        self._size = self._released = 0
        self._bound = [_ByBinding(classes, eots) for classes, eots in self._stem.lookups]
        for batch in batches:
            if batch.size:
                self._add(batch)

    def release(self, more: Iterable[TupleBatch]) -> Iterator[TupleBatch]:
        """Yield tuples that have all of their matches by now; the rest of ``more`` waits from now on."""
        if self._stem.complete:
            yield from (*self.held, *more)
            self._hold([])
            return
        found = [numbers for bound in self._bound for numbers in bound.find_ended()]
        if found:
            yield from self._taken(np.unique(np.concatenate(found)))
        if self._released > self.size:  # few still wait
            self._hold(self.held)
        for batch in more:
            missing, here = self._split(batch)
            yield batch.take(here)
            if len(missing):
                self._add(batch.take(missing))

    def _taken(self, numbers: Array) -> Iterator[TupleBatch]:
        """Yield those of these tuples that wait, and need not any more."""
        owners = np.searchsorted(self._starts, numbers, side="right") - 1
        for owner in np.unique(owners).tolist():
            places = numbers[owners == owner] - self._starts[owner]
            places = places[~self._gone[owner][places]]
            batch = self._batches[owner].take(places)
            _, here = self._split(batch)
            self._gone[owner][places[here]] = True
            self._released += len(here)
            yield batch.take(here)

    def _split(self, batch: TupleBatch) -> tuple[Array, Array]:
        """Return positions of tuples that some match may be missing for, and of the others."""
        missing = self._stem.missing(batch)
        return missing, np.setdiff1d(np.arange(batch.size), missing, assume_unique=True)

    def _add(self, batch: TupleBatch) -> None:
        for bound in self._bound:
            codes = self._stem.bound_codes(batch, bound.classes)
            if codes is not None:
                bound.add(codes, self._size)
        self._batches.append(batch)
        self._gone.append(np.zeros(batch.size, np.bool_))
        self._starts.append(self._size)
        self._size += batch.size


class _ByBinding:
    """The numbers of waiting tuples by what they bind of some attribute classes."""

    def __init__(self, classes: Classes, eots: BindingSet) -> None:
        self.classes = classes
        self._eots = eots
        self._known = eots.size
        self._index = Multimap()
        self._numbers = CodeColumn()

    def add(self, codes: Array, first: int) -> None:
        """Add tuples ``first``, ``first + 1``, … which bind what has these codes."""
        self._index.insert(codes)
        self._numbers.append(np.arange(first, first + len(codes)))

    def find_ended(self) -> Iterator[Array]:
        """Yield numbers of tuples that may agree with an EOT tuple that has come since the last call."""
        if self._eots.size > self._known:
            walk = self._index.probe(self._eots.codes(self._known))
            self._known = self._eots.size
            while not walk.is_done:
                yield self._numbers.all()[walk.pairs(_STEP)[1]]
