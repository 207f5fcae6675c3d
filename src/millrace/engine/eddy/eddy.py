"""The eddy: a router in the middle of the dataflow.

Avnur & Hellerstein 2000, with the SteMs of Raman, Deshpande & Hellerstein 2003. The whole of it is
:meth:`Eddy.results`: pop a piece of work, ask the routing table where it goes, let the operator there do a
step, and push what comes back. A tuple that spans the query and has passed every predicate is a result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

from millrace.engine.eddy.buffer import Buffer
from millrace.engine.eddy.decisions import RoutingTable
from millrace.engine.eddy.operator import Operator, Step
from millrace.engine.eddy.run_statistics import RunStatistics
from millrace.engine.plan.graph import QueryGraph
from millrace.engine.tuples.batch import Signature, TupleBatch, is_result


class Visit(Protocol):
    """Lets an operator do the next step of its work, and counts it."""

    def __call__(self, operator: Operator, signature: Signature, work: Any, *, fresh: bool) -> Step:
        """Do a step; ``fresh``: the work is a whole batch, which the operator has not seen yet."""


class Eddy:
    """Routes tuples through operators until they are results, or leave the dataflow.

    Args:
        graph: The block's query graph: says which tuples are results.
        buffer: Where tuples in flight wait.
        table: Says where they go next.
        visit: Lets an operator work.
        statistics: Where it is noted what was routed, and what ended.
        look: Called after each piece of work: there may be more in memory than before.
    """

    def __init__(
        self,
        graph: QueryGraph,
        buffer: Buffer,
        table: RoutingTable,
        visit: Visit,
        statistics: RunStatistics,
        look: Callable[[], None],
    ) -> None:
        self._graph, self._buffer, self._table = graph, buffer, table
        self._visit, self._statistics, self._look = visit, statistics, look

    @property
    def is_flying(self) -> bool:
        """Whether tuples are in flight."""
        return self._buffer.is_flying

    def push(self, batches: Iterable[TupleBatch]) -> None:
        """Take tuples into the dataflow; empty batches are dropped."""
        self._buffer.push(batches)

    def results(self, *, draining: bool = False) -> Iterator[TupleBatch]:
        """Yield results until nothing is left that could be done before more tuples arrive.

        Args:
            draining: Do what waits for its operator's turn, too (back-pressure).
        """
        while (work := self._buffer.pop(draining=draining)) is not None:
            if not isinstance(work, TupleBatch):
                self._send(*work)
            elif is_result(work.signature, self._graph):
                yield work
            else:
                self._route(work)
            self._look()

    def forget(self) -> None:
        """Forget all decisions: other operators are legal now."""
        self._table.clear()

    def _route(self, batch: TupleBatch) -> None:
        """Send a batch where the routing table says, in pieces if it is to be divided."""
        pieces, rest = self._table.route(batch)
        if rest is not None:
            self._buffer.put_back(rest, refused=not pieces)
        for operator, piece in pieces:
            self._statistics.route(piece)
            if not self._buffer.line_up(operator, piece):
                self._send(operator, piece)

    def _send(self, operator: Operator, work: Any) -> None:
        """Let an operator do a step of its work, on a batch that is new to it or on what was left of one."""
        fresh = isinstance(work, TupleBatch)
        signature = work.signature if fresh else work.batch.signature
        step = self._visit(operator, signature, work, fresh=fresh)
        if step.rest is not None:
            self._buffer.resume(operator, step.rest, preferred=signature.preferred)
        for batch in step.batches:
            if not batch.size:
                self._statistics.end(batch)
            elif batch.signature.span != signature.span and not is_result(batch.signature, self._graph):
                self._statistics.intermediate += batch.size
        self._buffer.push(step.batches)
