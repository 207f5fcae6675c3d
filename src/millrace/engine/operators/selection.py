"""Selection modules: predicates over tuples that span the relations they read."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from millrace.engine.arrays import Array, is_true
from millrace.engine.eddy.operator import Kind, Operator, Step
from millrace.engine.plan.evaluation import evaluate
from millrace.engine.plan.expressions import ColumnRef, Predicate, columns_of, show
from millrace.engine.tuples import BATCH_BYTES
from millrace.engine.tuples.batch import TupleBatch
from millrace.predicates import RAISED, REJECTED

if TYPE_CHECKING:
    from millrace.engine.eddy.context import RunContext

Verdict = tuple[Array, Array | None]
"""Truth of each tuple (``int8``, as in :class:`millrace.predicates.Outcome`), and what was raised
for each: an object array of failures, or None when nothing was."""

GUESS = 1 / 3
"""Share of tuples that a predicate is taken to pass before any was seen (System R's guess)."""


class Selection(Operator):
    """Lets one residual predicate, by its number among the block's, decide which tuples go on.

    Attributes:
        worked: Seconds spent in the predicate itself so far. What the eddy does around it costs the same
            for one tuple as for a thousand, and says nothing about the predicate.
    """

    kind = Kind.SELECT
    guess = GUESS

    def __init__(
        self, number: int, predicate: Predicate, context: RunContext, *, name: str, label: str
    ) -> None:
        super().__init__(number, name, label)
        self.done = 1 << number
        self.worked = 0.0
        self._clock = context.clock
        self._statistics = context.statistics.accounts
        self._number = {alias: i for i, alias in enumerate(context.spec.visible)}
        self._reads = columns_by_relation(columns_of(predicate), context.spec.visible)

    def step(self, work: TupleBatch, limit: int) -> Step:
        """Return the tuples that pass, and apart from them those for which the predicate raised."""
        pieces = divide(work, {self.target: self.meet(work)}, self.label)
        return Step(pieces, sum(piece.size for piece in pieces))

    def meet(self, batch: TupleBatch) -> Verdict:
        """Return the verdict on every tuple, and book it."""
        before = self.worked
        verdict = self.judge(batch)
        kept = int(np.count_nonzero(verdict[0]))
        self._statistics.update(self, batch.size, kept, self.worked - before)
        return verdict

    @abstractmethod
    def judge(self, batch: TupleBatch) -> Verdict:
        """Return the verdict on every tuple; time that the predicate takes is added to ``worked``."""

    def remember(self, built: TupleBatch) -> None:
        """Take note of singletons that met the predicate before they were built into their SteM."""

    def close(self) -> None:
        """Let go of what the predicate holds."""


class CompiledSelection(Selection):
    """A predicate that Millrace evaluates itself; unknown counts as false, and nothing is raised."""

    is_attached = True

    def __init__(self, number: int, predicate: Predicate, context: RunContext) -> None:
        name = f"Selection({show(predicate)})"
        super().__init__(number, predicate, context, name=name, label=f"σ{number + 1}")
        self._predicate = predicate
        self._columns = set(columns_of(predicate))

    def judge(self, batch: TupleBatch) -> Verdict:
        found = [self._judge(piece) for piece in batch.pieces(self._reads, BATCH_BYTES)]
        return found[0] if len(found) == 1 else np.concatenate(found), None

    def _judge(self, batch: TupleBatch) -> Array:
        values = self._values(batch)
        began = self._clock.now()
        truth = evaluate(self._predicate, values)
        self.worked += self._clock.now() - began
        if isinstance(truth, pa.Scalar):  # a predicate of constants only
            return np.full(batch.size, bool(truth.as_py()), np.int8)
        return is_true(truth).view(np.int8)

    def _values(self, batch: TupleBatch) -> dict[ColumnRef, pa.Array]:
        return {ref: gather(batch, ref, self._number) for ref in self._columns}


def columns_by_relation(refs: Iterable[ColumnRef], aliases: Sequence[str]) -> dict[int, list[str]]:
    """Return the names of columns by the numbers of their relations, each once."""
    found: dict[int, list[str]] = {}
    for ref in dict.fromkeys(refs):
        found.setdefault(aliases.index(ref.relation), []).append(ref.column)
    return found


def gather(
    batch: TupleBatch, ref: ColumnRef, number: Mapping[str, int], positions: Array | None = None
) -> pa.Array:
    """Return a column of the join for every tuple, or for those at some positions."""
    relation = number[ref.relation]
    rows = batch.rows[relation]
    return batch.stores[relation].gather(ref.column, rows if positions is None else rows[positions])


def divide(batch: TupleBatch, verdicts: Mapping[int, Verdict], label: str) -> list[TupleBatch]:
    """Return what is left of a batch after some predicates, with ``label`` as the last step of its path.

    That is a batch for each set of predicates that raised; at least one, maybe empty. ``verdicts`` go by the
    predicates' numbers; there is at least one.
    """
    passed = [truth != REJECTED for truth, _ in verdicts.values()]
    alive = np.flatnonzero(passed[0] if len(passed) == 1 else np.logical_and.reduce(passed))
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
