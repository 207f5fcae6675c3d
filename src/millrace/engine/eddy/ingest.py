"""What base tuples meet before they are routed: filters by relations that have been read, and division.

**Transfer.** When every tuple of a relation has come, its SteM knows which keys have a match. Tuples of a
relation that is read later and is tied to it by a join class meet that before they are built: what finds
nothing can be part of no result. What is left of the later relation filters those that come after it, so that
filters travel along the join graph (Yang, Zhao, Yu & Koutris 2024, "Predicate transfer"; Yannakakis 1981 for
trees). State gets smaller, and no order of joins that follows makes tuples that die later on.

A transfer is a semijoin that the answer does not need. It is tried on some tuples, and dropped where it lets
nearly all of them pass; as data may change, it is tried again after a while. A hash decides: tuples that only
seem to match are kept, and the join drops them. What is left finds one match where keys are unique, so that
policies need not try such joins.

**Ranges.** Others that a relation is joined with need no tuple whose key lies outside of the range of its
keys. Files tell the ranges of their row groups, and folders the values of partition columns, so what lies
outside is not even read. Where a large table is in the order of its keys, as tables of events mostly are in
that of their dates, a filter on a small one thus spares most of the reading.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from millrace.engine.eddy.operator import Kind, Operator, Step, Visit
from millrace.engine.eddy.output import Output
from millrace.engine.eddy.run_statistics import believe
from millrace.engine.eddy.statistics import Statistics
from millrace.engine.figures import ModuleFigures
from millrace.engine.operators.content import Divide
from millrace.engine.plan.expressions import Column, ColumnRef, Compare, Literal, Predicate
from millrace.engine.plan.graph import QueryGraph
from millrace.engine.policies import Greedy, Policy, Rank
from millrace.engine.policies.base import KNOWN
from millrace.engine.stems.join_state import JoinState
from millrace.engine.stems.stem import SteM
from millrace.engine.tuples import RelationStore
from millrace.engine.tuples.batch import Signature, TupleBatch

if TYPE_CHECKING:
    from millrace.engine.eddy.context import RunContext

_TRIAL = 4096
"""Tuples after which it is asked whether a transfer pays."""

_REST = 64
"""Times as many tuples as a trial took, or more, after which a transfer that did not pay is tried again."""

_PASSING = 0.9
"""Share of the tuples up to which a transfer pays. To ask for a tuple costs about what an index takes to
enter it; one that is dropped is not entered, takes no room in a cache, and makes no tuples that die later."""

_FEW = 1 / 8
"""Share of a full batch below which what filters have left waits for more: an operator takes about as long
for ten tuples as for a thousand, and decisions are made for tuples that come together."""


class Transfer(Operator):
    """Drops tuples of a relation that have no match in the SteM of another, which is complete."""

    kind = Kind.TRANSFER

    def __init__(self, stem: SteM, alias: str, relation: int, name: str, statistics: Statistics) -> None:
        super().__init__(relation, f"Filter({alias} on {name})", alias)
        self._stem = stem
        self._account = statistics.get(self)
        self._began = 0
        self._rests = 0
        self._told = 0

    def pays(self, tuples: int) -> bool:
        """Tell whether so many tuples, which have just arrived, should meet the filter."""
        if not self._stem.complete or not self._stem.rows or not self._stem.scanned:
            return False  # an index alone has told what it was asked for
        if self._rests > 0:
            self._rests -= tuples
            if self._rests > 0:
                return False
            self._began = self._account.tuples_in
        if self._account.tuples_in < self._began + _TRIAL or self.passing <= _PASSING:
            return True
        self._rests = _REST * (self._account.tuples_in - self._began)
        return False

    @property
    def passing(self) -> float:
        """Share of the tuples that have a match, as far as is known."""
        return self._account.selectivity

    def step(self, work: TupleBatch, limit: int) -> Step:
        met = self._stem.meets(work)
        left = work if len(met) == work.size else work.take(met)
        return Step((left,), left.size)

    def tell(
        self, left: TupleBatch, joins: Callable[[Signature], Iterable[Operator]], accounts: Statistics
    ) -> None:
        """Believe, of a join with a key, that each tuple that is left finds one match: none need try it."""
        signature, size = left.signature, left.size
        if self._told < KNOWN and self._stem.is_key(signature):
            self._told += size
            believe(accounts, signature, joins(signature), self._stem.number, size, size)


class Transfers:
    """The transfers of a block: from each relation to those that are tied to it.

    A relation whose tuples several roles of a self-join share is not filtered: a tuple may be of use in one
    role and not in another. Nor is one that is not kept (``unbuilt``) and joins with one other: the join does
    the same. ``ranges`` are told of relations that have ended, so that less is read of the others, and
    accounts of ``joins``, which are those of a signature, what filters have found out.
    """

    def __init__(
        self,
        graph: QueryGraph,
        unbuilt: int | None,
        stems: Sequence[SteM],
        aliases: Sequence[str],
        statistics: Statistics,
        visit: Visit,
        ranges: KeyRanges,
        joins: Callable[[Signature], Iterable[Operator]] = lambda _: (),
    ) -> None:
        self._visit, self._accounts, self._unbuilt = visit, statistics, unbuilt
        self._ranges, self._joins = ranges, joins
        self._graph, self._stems, self._aliases = graph, stems, aliases
        self._of: dict[int, list[Transfer]] = {}
        for relation in range(graph.relations):
            others = graph.neighbours(1 << relation)
            if len(graph.roles(relation)) == 1 and (relation != unbuilt or len(others) > 1):
                self._of[relation] = [
                    Transfer(stems[other], aliases[other], relation, aliases[relation], statistics)
                    for other in others
                ]

    def learn(self, relation: int) -> None:
        """Learn from a relation of which all tuples have come; an index alone told what it was asked for."""
        stem = self._stems[relation]
        if stem.scanned and stem.rows:
            self._ranges.learn(self._graph, relation, self._aliases, stem.store.ends)

    def reduce(self, relation: int, batch: TupleBatch) -> TupleBatch:
        """Return those of a relation's base tuples that may have matches in all relations that are complete.

        The filter that drops most comes first.
        """
        asked = [t for t in self._of.get(relation, ()) if t.pays(batch.size)]
        for transfer in sorted(asked, key=lambda each: each.passing):
            if not batch.size:
                break
            (batch,) = self._visit(transfer, batch).batches
        if relation == self._unbuilt and batch.size:
            for transfer in asked:
                transfer.tell(batch, self._joins, self._accounts)
        return batch


@dataclass
class ReadOrder:
    """Which row groups of a relation are read first: those that may have rows that the user wants.

    Attributes:
        wanted: Grades and predicates, the highest grade first.
        coming: The highest grade that rows may have of the row groups in the latest batch, and of all that
            are read after it; 0 where no predicate holds for any, None where that is not known.
    """

    wanted: tuple[tuple[int, Predicate], ...] = ()
    coming: int | None = None

    def grade(self, may_match: Callable[[Predicate], bool]) -> int:
        """Return the highest grade that a row of a row group may have."""
        return next((grade for grade, predicate in self.wanted if may_match(predicate)), 0)


class KeyRanges:
    """Predicates that joins imply for relations of one task, more of them as relations end.

    ``orders`` are of relations that are read in the order of what is wanted, by alias.
    """

    def __init__(self) -> None:
        self.orders: dict[str, ReadOrder] = {}
        self._implied: dict[str, list[Predicate]] = {}
        self._groups: dict[str, tuple[int, int]] = {}
        self._lock = Lock()

    def keeps(self, alias: str, may_match: Callable[[Predicate], bool]) -> bool:
        """Whether a row group of a relation may have tuples that are part of a result, by what is known now.

        ``may_match`` tells of a predicate whether it may hold for a row of that group. Threads that read
        ahead may ask.
        """
        kept = all(map(may_match, self._implied.get(alias, ())))
        with self._lock:
            seen, read = self._groups.get(alias, (0, 0))
            self._groups[alias] = seen + 1, read + kept
        return kept

    def learn(
        self,
        graph: QueryGraph,
        relation: int,
        aliases: Sequence[str],
        ends_of: Callable[[str], tuple[pa.Scalar, pa.Scalar] | None],
    ) -> None:
        """Learn from a relation of which all tuples have come.

        A relation whose tuples several roles of a self-join share tells nothing and is told nothing: a tuple
        may be of use in one role and not in another.

        ``ends_of`` returns the least and the greatest value of a column; None where nothing tells.
        """
        if len(graph.roles(relation)) > 1:
            return
        for known in graph.classes:
            others = [(n, c) for n, c in known.members if n != relation and len(graph.roles(n)) == 1]
            if not others or pa.types.is_floating(known.type):
                continue
            for column in known.columns(relation):
                ends = ends_of(column)
                if ends is None:
                    continue
                for other, theirs in others:
                    key = Column(ColumnRef(aliases[other], theirs))
                    self._implied.setdefault(aliases[other], []).extend(
                        Compare(op, key, Literal(end, end.type), known.type)  # type: ignore[arg-type]
                        for op, end in zip((">=", "<="), ends, strict=True)
                    )

    def figures(self) -> tuple[ModuleFigures, ...]:
        """Return how many row groups of each relation were looked at, and how many of them were read."""
        return tuple(
            ModuleFigures(f"RowGroups({alias})", "prune", seen, read, seen, 0.0)
            for alias, (seen, read) in self._groups.items()
            if read < seen
        )


class Admission:
    """Admits base tuples to the dataflow.

    What filters leave of the streamed relation may wait until it makes a batch. Not where a run may be given
    up and gone on with, for what has been read has to be out then, nor where the output knows batches as they
    arrived, nor with windows, which let go of what it would meet.
    """

    def __init__(self, context: RunContext, state: JoinState, policy: Policy) -> None:
        graph, schedule, options = context.graph, context.schedule, context.options
        self._statistics, self._visit = context.statistics, context.visit
        self._few = int(options.batch_size * _FEW)
        self._waiting: list[TupleBatch] = []
        self.transfers: Transfers | None = None
        # Who reads all sources side by side may ask for partial results, which dropped tuples are part of.
        if options.transfer and not schedule.interleaved:
            aliases, accounts = context.spec.aliases, context.statistics.accounts
            read = state.stems, aliases, accounts, context.visit, context.ranges
            self.transfers = Transfers(graph, schedule.unbuilt, *read, state.joins)
        self.divide: Divide | None = None
        stream = schedule.unbuilt
        gathers = context.watch is None and isinstance(context.output, Output) and not graph.windows
        self._gathered = stream if gathers and self.transfers is not None else None
        # A fixed order leaves nothing to divide tuples for.
        learns = options.by_content and isinstance(policy, Greedy | Rank) and state.grouped
        near = () if stream is None else graph.neighbours(1 << stream)
        if stream is not None and learns and len(near) > 1 and len(graph.roles(stream)) == 1:
            self.divide = Divide(stream, context, state)

    def admit(self, relation: int, found: TupleBatch) -> Iterator[TupleBatch]:
        """Yield what is to be routed of base tuples that have arrived."""
        if self.transfers is not None:
            found = self.transfers.reduce(relation, found)
            if not found.size:
                self._statistics.end(found)
                return
        if relation != self._gathered or not found.stores[relation].schema.names:
            yield from self._divided(found)
            return
        self._waiting.append(found)
        if sum(each.size for each in self._waiting) >= self._few:
            yield from self.rest()

    def rest(self) -> Iterator[TupleBatch]:
        """Yield what has been waiting for more; to be asked for when there is no more, or not at present."""
        waiting, self._waiting = self._waiting, []
        if len(waiting) > 1:
            waiting = [_gathered(waiting)]
        for found in waiting:
            yield from self._divided(found)

    def _divided(self, found: TupleBatch) -> Iterator[TupleBatch]:
        divide = self.divide
        if divide is not None and divide.target in found.rows and divide.divides(found):
            yield from self._visit(divide, found).batches
        else:
            yield found


def _gathered(waiting: Sequence[TupleBatch]) -> TupleBatch:
    """Return singletons of one relation, each batch in a store of its own, as one batch in one store."""
    ((relation, store),) = waiting[0].stores.items()
    parts = [(each.stores[relation], each.rows[relation]) for each in waiting]
    rows = pa.concat_batches([store.chunk(rows) for store, rows in parts])
    coded = [np.concatenate([s.coded(n, rows) for s, rows in parts]) for n in range(len(store.keys))]
    return replace(
        waiting[0],
        stores={relation: RelationStore.single(rows, store.keys, coded)},
        rows={relation: np.arange(rows.num_rows, dtype=np.int32)},
        origin=sum(each.origin for each in waiting),
    )
