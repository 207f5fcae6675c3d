"""Selection modules: predicates over tuples that span the relations they read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
import pyarrow as pa

from millrace.engine.arrays import Array, is_true
from millrace.engine.plan.evaluation import evaluate
from millrace.engine.plan.expressions import ColumnRef, Predicate, columns_of, show
from millrace.engine.tuples import BATCH_BYTES
from millrace.engine.tuples.batch import TupleBatch
from millrace.limits.clock import Clock
from millrace.predicates import RAISED, REJECTED

Verdict = tuple[Array, Array | None]
"""Truth of each tuple (``int8``, as in :class:`millrace.predicates.Outcome`), and what was raised
for each: an object array of failures, or None when nothing was."""


class Selection(Protocol):
    """Tells which tuples pass.

    Attributes:
        number: Place among the block's residual predicates: the done bit it sets.
        name: For reports, such as ``Selection(a.x < b.y)``.
        label: Its place in the order of modules that a tuple visited.
        evaluated: Rows that a user's function was called for so far.
        worked: Seconds spent in the predicate itself so far. What the eddy does around it costs the same
            for one tuple as for a thousand, and says nothing about the predicate.
    """

    number: int
    name: str
    label: str
    evaluated: int
    worked: float

    def judge(self, batch: TupleBatch) -> Verdict:
        """Return the truth for every tuple of the batch."""

    def remember(self, built: TupleBatch) -> None:
        """Take note of singletons that met the predicate before they were built into their SteM."""

    def close(self) -> None:
        """Let go of what the predicate holds."""


class CompiledSelection:
    """A predicate that Millrace evaluates itself; unknown counts as false, and nothing is raised.

    Args:
        number: Place among the block's residual predicates.
        predicate: Over columns of the relations named in ``aliases``.
        aliases: The block's relations, by number.
        clock: What its time is measured by.
    """

    evaluated = 0

    def __init__(self, number: int, predicate: Predicate, aliases: Sequence[str], clock: Clock) -> None:
        self.number = number
        self.worked = 0.0
        self._clock = clock
        self.name = f"Selection({show(predicate)})"
        self.label = f"σ{number + 1}"
        self._predicate = predicate
        self._columns = [(ref, aliases.index(ref.relation)) for ref in set(columns_of(predicate))]
        self._reads = columns_by_relation(columns_of(predicate), aliases)

    def judge(self, batch: TupleBatch) -> Verdict:
        """Return the truth for every tuple."""
        found = [self._judge(piece) for piece in batch.pieces(self._reads, BATCH_BYTES)]
        return found[0] if len(found) == 1 else np.concatenate(found), None

    def _judge(self, batch: TupleBatch) -> Array:
        values = {
            ref: batch.stores[relation].gather(ref.column, batch.rows[relation])
            for ref, relation in self._columns
        }
        began = self._clock.now()
        truth = evaluate(self._predicate, values)
        self.worked += self._clock.now() - began
        if isinstance(truth, pa.Scalar):  # a predicate of constants only
            return np.full(batch.size, bool(truth.as_py()), np.int8)
        return is_true(truth).astype(np.int8)

    def remember(self, built: TupleBatch) -> None:
        """Nothing: asking again costs next to nothing."""

    def close(self) -> None:
        """Nothing to let go of."""


def columns_by_relation(refs: Iterable[ColumnRef], aliases: Sequence[str]) -> dict[int, list[str]]:
    """Return the names of columns by the numbers of their relations, each once."""
    found: dict[int, list[str]] = {}
    for ref in dict.fromkeys(refs):
        found.setdefault(aliases.index(ref.relation), []).append(ref.column)
    return found


def divide(batch: TupleBatch, verdicts: Mapping[int, Verdict], label: str) -> list[TupleBatch]:
    """Return what is left of a batch after some predicates.

    Args:
        batch: The tuples that met the predicates.
        verdicts: By the predicates' numbers; at least one.
        label: Joins the tuples' path.

    Returns:
        The batches that go on, one for each set of predicates that raised; at least one, maybe empty.
    """
    passed = np.logical_and.reduce([truth != REJECTED for truth, _ in verdicts.values()])
    alive = np.flatnonzero(passed)
    met = sum(1 << number for number in verdicts)
    signature = batch.signature.having(done=batch.signature.done | met)
    path = (*batch.path, label)
    raising = [n for n, (truth, f) in verdicts.items() if f is not None and (truth[alive] == RAISED).any()]
    if not raising:
        if len(alive) == batch.size:
            return [replace(batch, signature=signature, path=path)]
        return [batch.take(alive, signature=signature, path=path)]
    raised = np.array([verdicts[number][0][alive] == RAISED for number in raising])
    sets, owner = np.unique(raised, axis=1, return_inverse=True)
    pieces: list[TupleBatch] = []
    for i, members in enumerate(sets.T):
        positions = alive[owner == i]
        numbers = [number for number, is_in in zip(raising, members, strict=True) if is_in]
        kept = {number: failures[positions] for number, failures in batch.failures.items()}
        for number in numbers:
            failures = verdicts[number][1]
            assert failures is not None
            kept[number] = failures[positions]
        bits = sum(1 << number for number in numbers)
        pieces.append(
            batch.take(
                positions,
                signature=signature.having(raised=batch.signature.raised | bits),
                path=path,
                origin=batch.origin if not pieces else 0,
                failures=kept,
            )
        )
    return pieces
