"""What runs hold at a time, and how many tuples joins of parts of a block have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import combinations
from typing import Any
from weakref import WeakSet

import numpy as np

from millrace.engine.runs.block_run import Run
from millrace.engine.runs.eddy_run import EddyRun
from millrace.engine.runs.static import StaticPlan
from millrace.engine.state.stair import STAIR
from millrace.engine.state.stem import SteM
from millrace.engine.tuples import TupleBatch
from tests.engine.eddy.oracle import Case, answer_of

SMALL_INDEX = 5 * (1 << 16)
"""Bytes that the slots of an index take, however few its rows, at most: a spread of 65,536 codes and room."""

ROW_OF_INDEX = 12 + 80
"""Bytes of an index for each row of it, at most: key, link, and slots as its table is addressed."""


def sizes(case: Case) -> dict[int, int]:
    """Return how many tuples the join of every set of relations has that equalities connect, by its span."""
    names = case.spec.aliases
    found = {}
    for count in range(1, len(names)):
        for chosen in combinations(range(len(names)), count):
            inside = {names[i] for i in chosen}
            held = [e for e in case.spec.equalities if {e.left.relation, e.right.relation} <= inside]
            sql = f"SELECT count(*) FROM {', '.join(f't_{name} {name}' for name in sorted(inside))}"
            sql += f" WHERE {' AND '.join(map(str, held))}" if held else ""
            (((found[sum(1 << i for i in chosen)],),)) = answer_of(sql, case.tables)
    return found


class Holding:
    """Looks at what a run holds whenever work is taken out of its buffer, or a static plan's join returns.

    Args:
        run: An eddy or a static plan that has not begun.

    Attributes:
        in_flight: Most tuples in the buffer at a time, in batches and in probes under way.
        bytes_in_flight: Their row numbers and timestamps.
        base: Most base tuples held.
        stored: Most tuples of each span in STAIRs.
        state: Most bytes of state.
        allowed: The most that the state at that time might have taken by the tuples that it had.
        excess: Most bytes by which the state exceeded what it might have taken.
    """

    def __init__(self, run: Run) -> None:
        self.in_flight = self.bytes_in_flight = 0
        self.base = self.state = self.excess = 0
        self.stored: Counter[int] = Counter()
        self._run = run
        assert isinstance(run, EddyRun | StaticPlan)
        if isinstance(run, EddyRun):
            pop = run._buffer.pop
            run._buffer.pop = lambda **how: (self.look(), pop(**how))[1]  # type: ignore[method-assign]
        else:
            for join in run._joins.values():
                self._watch(join.binary)

    def _watch(self, join: object) -> None:
        matches = join.matches  # type: ignore[attr-defined]
        join.matches = lambda probe, limit: (matches(probe, limit), self.look())[0]  # type: ignore[attr-defined]

    def look(self) -> None:
        """Take note of what is held now."""
        stems, stairs = _modules(self._run)
        base = sum(stem.store.held for stem in stems)
        self.base = max(self.base, base)
        spans: Counter[int] = Counter()
        for stair in stairs:
            for signature, segment in stair.segments.items():
                spans[signature.span] += segment.live
        self.stored |= spans
        state = sum(stem.nbytes for stem in stems) + sum(stair.nbytes for stair in stairs)
        self.state = max(self.state, state)
        self.excess = max(self.excess, state - _allowed(stems, stairs))
        if isinstance(self._run, EddyRun):
            batches = list(_flying(self._run))
            self.in_flight = max(self.in_flight, sum(len(next(iter(rows.values()))) for rows in batches))
            held = sum(part.nbytes for rows in batches for part in rows.values())
            self.bytes_in_flight = max(self.bytes_in_flight, held)


def _modules(run: Run) -> tuple[list[SteM], list[STAIR]]:
    if isinstance(run, StaticPlan):
        return list(run._stems), [s for join in run._joins.values() for s in join.binary.stairs.values()]
    assert isinstance(run, EddyRun)
    stairs = getattr(run._state, "stairs", None)
    return list(run._state.stems), [] if stairs is None else [stair for _, stair in stairs.stairs()]


def _flying(eddy: EddyRun) -> Iterator[dict[int, np.ndarray]]:
    """Yield the row numbers of every batch in the buffer, also of those that are being probed with."""
    buffer = eddy._buffer
    for work in (*buffer.works(), *eddy._state.waiting()):
        batch = work[1] if isinstance(work, tuple) else work
        yield dict(getattr(batch, "batch", batch).rows)


def _allowed(stems: list[SteM], stairs: list[STAIR]) -> int:
    """Return the bytes that tuples may take by definition: linear in the tuples, and a little for each index.

    A base tuple has its columns, a code for each key, a timestamp, and a row of each index; a stored tuple a
    row number of each component. Of what was stored in a segment up to a half may have been removed since.
    """
    size = 0
    for stem in stems:
        store = stem.store
        tuples = sum(chunk.nbytes for chunk in store._chunks) + 8 * (len(store.keys) + 1) * store.held
        size += tuples + len(stem.base._indexes) * (ROW_OF_INDEX * store.held + SMALL_INDEX)
    for stair in stairs:
        for signature, segment in stair.segments.items():
            row = 4 * signature.span.bit_count() + 2 * ROW_OF_INDEX + 1
            size += 2 * row * segment.live + 2 * SMALL_INDEX
    return size


class Alive:
    """Counts the tuples of batches that a function has returned and that somebody still refers to.

    Attributes:
        most: Most of them at a time.
    """

    def __init__(self) -> None:
        self.most = 0
        self._batches: WeakSet[TupleBatch] = WeakSet()

    def counted(self, made: Callable[..., TupleBatch]) -> Callable[..., TupleBatch]:
        """Return the function, with what it returns counted."""

        def counting(*args: Any) -> TupleBatch:
            batch = made(*args)
            self._batches.add(batch)
            self.most = max(self.most, sum(each.size for each in self._batches))
            return batch

        return counting
