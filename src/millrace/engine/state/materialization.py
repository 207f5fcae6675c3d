"""Which part of an intermediate tuple a STAIR stores: flexible storage and reuse of intermediate results.

Deshpande & Hellerstein 2004, section 3.3. An inserted tuple may be demoted at once, to any connected part of
it that keeps the STAIR's relation. Down to base tuples, STAIRs need no more memory than SteMs do, and what is
not stored is made again when it is asked for. With sliding windows, an intermediate tuple goes as soon as one
of its components does; one that has not long to live is stored as its part that lives longest.

What is stored so breaks Invariant B+ of :mod:`millrace.engine.state.stairs`: insertions have to enforce B.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Protocol

import numpy as np

from millrace.engine.state.stair import STAIR, distinct
from millrace.engine.state.windows import NEVER, Windows
from millrace.engine.trees import JoinTree
from millrace.engine.tuples import TupleBatch

Footprint = Literal["all", "long_living", "base"]
"""Which intermediate tuples are stored as they are."""

SHARE = 0.5
"""Share of the longest window that a tuple has to live for at least, to be stored as it is."""


class Storing(Protocol):
    """Says what is stored of tuples."""

    def parts(self, stair: STAIR, batch: TupleBatch, tree: JoinTree) -> list[TupleBatch] | None:
        """Return what to store instead of intermediate tuples, each once; None: the tuples as they are."""


class BaseTuplesOnly:
    """Stores the component of the STAIR's own relation alone: the memory footprint of SteMs."""

    def parts(self, stair: STAIR, batch: TupleBatch, tree: JoinTree) -> list[TupleBatch] | None:
        """Return the base tuples."""
        stair.demoted += batch.size
        return [distinct(stair.part(batch, 1 << stair.owner))]


class LongLiving:
    """Stores tuples that live for long, and of others the part that lives longest.

    Args:
        windows: The block's sliding windows.
        watermark: Returns the present watermark; None while nothing expires.
    """

    def __init__(self, windows: Windows, watermark: Callable[[], int | None]) -> None:
        self._windows = windows
        self._longest = max(windows.lengths.values())
        self._watermark = watermark

    def parts(self, stair: STAIR, batch: TupleBatch, tree: JoinTree) -> list[TupleBatch] | None:
        """Return the long-living tuples as they are, and connected parts of the others."""
        watermark = self._watermark()
        span = batch.signature.span
        if watermark is None or not span & self._windows.span:
            return None
        expiries = self._windows.expiries(batch)
        life = np.minimum.reduce(list(expiries.values()))
        short = life < watermark + int(SHARE * self._longest)
        if not short.any():
            return None
        # The owner has to stay, so no part lives longer than it: what goes is what goes before it.
        own = expiries.get(stair.owner, np.full(batch.size, NEVER))
        before = np.zeros(batch.size, np.int64)
        for relation, expiry in expiries.items():
            before |= (expiry < own).astype(np.int64) << relation
        before[~short] = 0
        if not before.any():
            return None
        found = []
        for gone in np.unique(before).tolist():
            chosen = batch.take(np.flatnonzero(before == gone))
            if gone:
                stair.demoted += chosen.size
                chosen = distinct(stair.part(chosen, tree.reached(stair.owner, span & ~gone)))
            found.append(chosen)
        return found
