"""The eddy: a router in the middle of the dataflow, and the buffer of what is in flight.

Avnur & Hellerstein 2000, with the SteMs of Raman, Deshpande & Hellerstein 2003. The whole of it is
:meth:`Eddy.results`: pop a piece of work, ask the routing table where it goes, let the operator there do a
step, and push what comes back. A tuple that spans the query and has passed every predicate is a result.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from millrace.engine.eddy.decisions import RoutingTable
from millrace.engine.eddy.operator import Operator, Work
from millrace.engine.tuples.batch import TupleBatch, is_result

if TYPE_CHECKING:
    from millrace.engine.eddy.context import RunContext

_SMALL = 1 / 8
"""Share of a full batch below which a batch waits for others."""


class Eddy:
    """Routes tuples through operators until they are results, or leave the dataflow."""

    def __init__(self, context: RunContext, buffer: Buffer, table: RoutingTable) -> None:
        self._graph, self._buffer, self._table = context.graph, buffer, table
        self._visit, self._statistics = context.visit, context.statistics
        # After each piece of work there may be more in memory than before, and all that is in flight is in
        # the buffer. If nobody looks, what would be popped next need not be pushed.
        self._look = None if context.watch is None else context.watch.look

    def push(self, batches: Iterable[TupleBatch]) -> None:
        """Take tuples into the dataflow; empty batches are dropped."""
        self._buffer.push(batches)

    def results(self) -> Iterator[TupleBatch]:
        """Yield results until nothing is left that could be done before more tuples arrive."""
        work = self._buffer.pop()
        while work is not None:
            ahead: TupleBatch | None = None
            if not isinstance(work, TupleBatch):
                ahead = self._send(*work)
            elif is_result(work.signature, self._graph):
                yield work
            else:
                ahead = self._route(work)
            if self._look is not None:
                self._look()
            work = self._buffer.pop() if ahead is None else ahead

    def forget(self) -> None:
        """Forget all decisions: other operators are legal now."""
        self._table.clear()

    def _route(self, batch: TupleBatch) -> TupleBatch | None:
        """Send a batch where the routing table says, in pieces if it is divided; return what is next."""
        entry = self._table.entries.get(batch.signature)
        if entry is not None and entry.alone is not None:
            size = batch.size
            if entry.left >= size or (entry.left <= 0 and self._table.lasts_longer(entry, size)):
                entry.left -= size
                self._statistics.routed += size
                return self._send(entry.alone, batch)
        pieces, rest = self._table.route(batch)
        if rest is not None:
            self._buffer.push((rest,))
        ahead: TupleBatch | None = None
        for operator, piece in pieces:
            if ahead is not None:
                self._buffer.push((ahead,))
            self._statistics.routed += piece.size
            ahead = self._send(operator, piece)
        return ahead

    def _send(self, operator: Operator, work: Any) -> TupleBatch | None:
        """Let an operator do a step of its work, on a batch that is new to it or on what was left of one.

        What comes back is pushed, or returned if it is what would be popped next.
        """
        signature = work.signature if isinstance(work, TupleBatch) else work.batch.signature
        step = self._visit(operator, work)
        if step.rest is not None:
            self._buffer.resume(operator, step.rest)
        batches = step.batches
        for batch in batches:
            if not batch.size:
                self._statistics.end(batch)
            elif batch.signature.span != signature.span and not is_result(batch.signature, self._graph):
                self._statistics.intermediate += batch.size
        if self._look is None and len(batches) == 1 and self._buffer.is_next(batches[0]):
            return batches[0]
        self._buffer.push(batches)
        return None


class Buffer:
    """Batches and unfinished work in flight: tuples in flight come before new ones.

    Last in, first out: a batch is followed to its end before the next one is touched, so the buffer
    never holds more than a few batches for each step of a join. Singletons that wait to be built come
    first of all, so that whatever arrives together can be probed together.

    Small batches wait until nothing else is there. An operator takes about as long for ten tuples as for a
    thousand, and what was divided among several operators comes together again when it has visited all of
    them: small batches of one signature are merged, those that have visited the fewest operators first.
    A full batch has ``limit`` tuples.
    """

    def __init__(self, limit: int = 1) -> None:
        self._small = max(1, int(limit * _SMALL))
        self._new: list[TupleBatch] = []
        self._flying: list[Work] = []
        # By the number of operators that they have visited.
        self._waiting = defaultdict[int, defaultdict[Hashable, _Crumbs]](lambda: defaultdict(_Crumbs))

    def push(self, batches: Iterable[TupleBatch]) -> None:
        """Add batches; empty ones are dropped."""
        for batch in batches:
            if not batch.size:
                continue
            signature = batch.signature
            if not signature.built:
                self._new.append(batch)
            elif batch.size >= self._small or signature.prior is not None or batch.failures:
                self._flying.append(batch)
            else:
                self._collect(batch)

    def is_next(self, batch: TupleBatch) -> bool:
        """Whether a batch would be popped next if it were pushed."""
        return not self._new and batch.signature.built and batch.size >= self._small

    def _collect(self, batch: TupleBatch) -> None:
        """Let a small batch wait for others like it, until all together are not small."""
        stores = frozenset(map(id, batch.stores.values()))
        key = batch.signature, stores, frozenset(batch.rows), batch.stamps is None
        visited = batch.signature.span.bit_count() + batch.signature.done.bit_count()
        crumbs = self._waiting[visited][key]
        crumbs.batches.append(batch)
        crumbs.size += batch.size
        if crumbs.size >= self._small:
            self._flying.append(self._merge(visited, key))

    def _merge(self, visited: int, key: Hashable) -> TupleBatch:
        """Take small batches of one signature as one."""
        alike = self._waiting[visited]
        crumbs = alike.pop(key)
        if not alike:
            del self._waiting[visited]
        return TupleBatch.merged(crumbs.batches)

    def resume(self, operator: Operator, rest: Any) -> None:
        """Add work whose output did not fit into one batch."""
        self._flying.append((operator, rest))

    def works(self) -> list[Work]:
        small = [b for alike in self._waiting.values() for crumbs in alike.values() for b in crumbs.batches]
        return [*self._new, *self._flying, *small]

    @property
    def is_flying(self) -> bool:
        return bool(self._new or self._flying or self._waiting)

    def pop(self) -> Work | None:
        """Take the next piece of work, or None when nothing is in flight."""
        if self._new:
            return self._new.pop()
        if self._flying:
            return self._flying.pop()
        if not self._waiting:
            return None
        fewest = min(self._waiting)
        return self._merge(fewest, next(iter(self._waiting[fewest])))


@dataclass
class _Crumbs:
    """Small batches of one signature."""

    batches: list[TupleBatch] = field(default_factory=list)
    size: int = 0
