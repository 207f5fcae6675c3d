"""Selections by users' predicates, which may take long, raise, and cost by the call.

A predicate over one relation is asked once for a base tuple, however many tuples of a join contain
it, so that it can wait until after the joins without being called more often for that.

What a predicate raises is kept with the tuple and does not stop it: the answer must not depend on
the order of predicates, and another may still reject the tuple (as if that one had come first).
Only when nothing else is left is it settled. A call for many rows that raises does not tell
which of them are to blame; they are found by halving, among the tuples that are left by then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import numpy as np
import pyarrow as pa

from millrace.engine.arrays import Array, scalar
from millrace.engine.operators.selection import Selection, Verdict, gather
from millrace.engine.plan.expressions import Call, Column, Operand, columns_of, show
from millrace.engine.tuples import BATCH_BYTES, RelationStore
from millrace.engine.tuples.batch import TupleBatch
from millrace.errors import ExecutionError
from millrace.predicates import KEPT, RAISED, REJECTED, Caller, Failure

if TYPE_CHECKING:
    from millrace.engine.eddy.context import RunContext

_UNKNOWN = -1
_SHOWN = 100
"""Characters of a value that an error shows."""


class UdfSelection(Selection):
    """A selection by a user's predicate; what calls that is closed with this module."""

    def __init__(self, number: int, call: Call, context: RunContext, caller: Caller) -> None:
        aliases = context.spec.visible
        # With a single relation its name says nothing.
        reading = [
            a.ref.column if isinstance(a, Column) and len(aliases) == 1 else show(a) for a in call.arguments
        ]
        name = f"Predicate({call.spec.name}({', '.join(reading)}))"
        super().__init__(number, call, context, name=name, label=call.spec.name)
        self._call = call
        self._caller = caller
        self._masked = context.options.mask_values
        reads = set(self._reads)
        # Where only one relation is there at all, no base tuple comes twice.
        self._single = reads.pop() if len(reads) == 1 and len(aliases) > 1 else None
        self._known: WeakKeyDictionary[RelationStore, tuple[Array, dict[int, Failure]]] = WeakKeyDictionary()

    def judge(self, batch: TupleBatch) -> Verdict:
        """Return the truth for every tuple, and the failures of those for which it is not known."""
        if self._single is None or not self._call.spec.deterministic:
            truth, failures = self._ask(batch)
            return self._verdict(truth, failures)
        rows = batch.rows[self._single]
        codes, known = self._memory(batch.stores[self._single])
        unknown = np.flatnonzero(codes[rows] == _UNKNOWN)
        if len(unknown):
            fresh, first = np.unique(rows[unknown], return_index=True)
            truth, failures = self._ask(batch.take(unknown[first]))
            codes[fresh] = truth
            known.update({int(fresh[i]): failure for i, failure in failures.items()})
        truth = codes[rows]
        raised = np.flatnonzero(truth == RAISED)
        return self._verdict(truth, {int(i): known[int(rows[i])] for i in raised if int(rows[i]) in known})

    def remember(self, built: TupleBatch) -> None:
        """Know the truth of singletons that met the predicate before they were built into their SteM."""
        if self._single is None:
            return
        rows = built.rows[self._single]
        codes, known = self._memory(built.stores[self._single])
        raised = built.failures.get(self.target)
        codes[rows] = KEPT if raised is None else RAISED
        if raised is not None:
            known.update({int(r): f for r, f in zip(rows, raised, strict=True) if f is not None})

    def settle(self, batch: TupleBatch) -> Verdict:
        """Return the truth of tuples for which calls raised, with a failure for each that is to blame."""
        found = batch.failures[self.target]
        doubted = np.flatnonzero(found == None)  # noqa: E711  # element by element
        truth = np.full(batch.size, RAISED, np.int8)
        failures = {i: failure for i, failure in enumerate(found) if failure is not None}
        self._decide(batch, doubted, truth, failures)
        return self._verdict(truth, failures)

    def close(self) -> None:
        self._caller.close()

    def _memory(self, store: RelationStore) -> tuple[Array, dict[int, Failure]]:
        """Return what is known of a store's rows: a truth for each, and the failures."""
        codes, failures = self._known.get(store, (np.empty(0, np.int8), {}))
        if len(codes) < store.rows:
            grown = np.full(max(store.rows, 2 * len(codes)), _UNKNOWN, np.int8)
            grown[: len(codes)] = codes
            codes = grown
            self._known[store] = codes, failures
        return codes, failures

    def _ask(self, batch: TupleBatch) -> tuple[Array, dict[int, Failure]]:
        """Call the predicate for all tuples; failures are by position."""
        truths: list[Array] = []
        failures: dict[int, Failure] = {}
        low = 0
        for piece in batch.pieces(self._reads, BATCH_BYTES):
            columns = [self._values(argument, piece) for argument in self._call.arguments]
            began = self._clock.now()
            outcome = self._caller.call(columns)
            self.worked += self._clock.now() - began
            self.evaluated += outcome.calls
            truths.append(outcome.truth)
            failures.update((low + position, failure) for position, failure in outcome.failures.items())
            low += piece.size
        return truths[0] if len(truths) == 1 else np.concatenate(truths), failures

    def _values(self, argument: Operand, batch: TupleBatch) -> pa.Array:
        if not isinstance(argument, Column):
            return pa.repeat(scalar(argument.value, argument.type), batch.size)
        return gather(batch, argument.ref, self._number)

    def _verdict(self, truth: Array, failures: dict[int, Failure]) -> Verdict:
        if not (truth == RAISED).any():
            return truth, None
        if self._call.spec.on_error == "null" and failures:
            truth = truth.copy()
            truth[list(failures)] = REJECTED
        found = np.full(len(truth), None)
        for position, failure in failures.items():
            found[position] = failure
        return truth, found

    def _decide(
        self, batch: TupleBatch, positions: Array, truth: Array, failures: dict[int, Failure]
    ) -> None:
        """Find the truth of tuples whose calls raised, by halving; both results are added to."""
        if not len(positions):
            return
        seen, raised = self._ask(batch.take(positions))
        truth[positions] = seen
        failures.update({int(positions[i]): failure for i, failure in raised.items()})
        blamed = np.zeros(len(positions), np.bool_)
        blamed[list(raised)] = True
        doubted = positions[(seen == RAISED) & ~blamed]
        if len(doubted) < len(positions):
            self._decide(batch, doubted, truth, failures)
        else:
            half = len(doubted) // 2
            self._decide(batch, doubted[:half], truth, failures)
            self._decide(batch, doubted[half:], truth, failures)

    def error(self, batch: TupleBatch, position: int) -> ExecutionError:
        """Return what tells the user of the failure of a tuple that nothing else rejects."""
        failure: Failure = batch.failures[self.target][position]
        row = batch.take(np.array([position]))
        shown = []
        for ref in dict.fromkeys(columns_of(self._call)):
            text = _show(gather(row, ref, self._number)[0])
            name = ref.column if len(self._number) == 1 else str(ref)
            shown.append(f"{name}={'***' if self._masked else text}")
        return ExecutionError(
            f"predicate {self._call.spec.name!r} raised {failure.kind}: {failure.message}\n"
            f"for the row {', '.join(shown)}, which nothing else rejects; with on_error='null' such rows "
            f"count as not passing\n{failure.traceback}"
        )


def _show(value: pa.Scalar) -> str:
    """Return a value as errors show it, whether or not Python has such a value."""
    try:
        text = repr(value.as_py())
    except (OverflowError, ValueError):
        is_text = pa.types.is_string(value.type)
        text = (
            repr(value.cast(pa.binary()).as_py()) if is_text else f"a {value.type} that Python does not have"
        )
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"
