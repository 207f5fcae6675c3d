"""Back-pressure: bounded input queues in front of modules, as between the modules of a river.

Avnur & Hellerstein 2000, sections 3 and 4.1. Without queues a module works as soon as tuples are sent to it.
With them tuples wait for the module's turn, and a full queue takes no more, so that other modules get what a
slow one cannot take: costs steer the flow without being known to anybody. An index join that waits for its
index holds up its own queue alone.

What a probe makes batch by batch goes on before the probe does. It waits for modules as well, but where they
take no more of it they work at once: so no more than a batch for each step of a join is over the limits,
however many matches a key has.

Modules take turns by time, as threads on one processor do: next is the one that has worked least in
proportion to the share of tuples that the policy gives it (start-time fair queueing; by tickets, that is
lottery scheduling as of Waldspurger & Weihl 1994). One that had nothing to do is not made up for that.
Where a virtual clock declares that routing takes time (:data:`ROUTE`), the eddy takes turns like modules.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from millrace.engine.access.arrivals import Arrivals
from millrace.engine.access.modules import IndexAM, ScanAM
from millrace.engine.access.schedule import Arrival
from millrace.engine.eddy.context import Given, RunContext
from millrace.engine.eddy.decisions import RoutingTable
from millrace.engine.eddy.operator import MODULES, Kind, Operator, Work
from millrace.engine.eddy.preference import PreferringBuffer, PreferringDataflow, PreferringEddy
from millrace.engine.eddy.statistics import Account
from millrace.engine.policies import Candidate, Lottery, Naive, Policy, WindowedLottery
from millrace.engine.stairs.index_join import IndexJoin
from millrace.engine.stairs.state import StairState
from millrace.engine.stems.join_state import JoinState
from millrace.engine.tuples.batch import Signature, TupleBatch
from millrace.errors import InputError, OptionError
from millrace.limits.clock import POLLED, VirtualClock

ROUTE = ("route", 0)
"""The eddy's own work on tuples that it puts into a queue, as a clock charges for it."""

_QUEUED = (*MODULES, Kind.LOOKUP)
"""Operators that tuples may have to wait for."""

_LEAST_WEIGHT = 1 / 64

Finding = Callable[[Signature], list[Candidate]]
Noting = Callable[[Signature, Sequence[tuple[Operator, float]]], None]


@dataclass(frozen=True)
class Backpressure:
    """How many tuples may wait; called, it makes the eddy of a run (``Run(…, eddy=Backpressure())``).

    Attributes:
        queue: In front of one module, from which on it takes no more; None for any number.
        buffer: In front of modules and in the eddy, from which on no new ones are taken in. Results of joins
            may be more.
        by_tickets: Whether modules take turns on the processor in proportion to the shares that the policy
            gives them; with equal turns, shares decide about tuples alone.

    Raises:
        OptionError: A number is below 1.
    """

    queue: int | None = 64
    buffer: int = 1024
    by_tickets: bool = True

    def __post_init__(self) -> None:
        for name, value in (("queue", self.queue), ("buffer", self.buffer)):
            if value is not None and value < 1:
                raise OptionError(f"back-pressure: {name} is {value}, expected at least 1 tuple")

    def __call__(self, context: RunContext, given: Given) -> QueuedDataflow:
        """Return an eddy with queues.

        Raises:
            InputError: Tuples are to wait in queues though intermediate ones are not kept.
        """
        if not context.options.intermediate and context.options.architecture != "stems":
            # What arrives while a tuple waits would meet it, and the base tuples in state for it.
            raise InputError(
                "back-pressure lets intermediate tuples wait, and intermediate=False keeps base tuples "
                "in their place, so that results would come twice; expected one of the two"
            )
        return QueuedDataflow(context, given, self)


@dataclass
class _Queue:
    """Tuples in front of one module.

    Attributes:
        tickets: Tuples that the module was given less those that it returned (section 4.2).
        worked: Seconds that the module has worked, as far as they count, by its weight among others.
    """

    operator: Operator
    batches: deque[TupleBatch] = field(default_factory=deque)
    tuples: int = 0
    tickets: int = 0
    worked: float = 0.0
    weight: float = 1.0


class QueuedBuffer(PreferringBuffer):
    """A buffer that makes tuples wait for their modules; tuples in flight still come before new ones."""

    draining = False
    """Whether nothing new is to be taken in before all of it has been."""

    def __init__(
        self, limits: Backpressure, context: RunContext, state: JoinState, coming: Callable[[], float]
    ) -> None:
        super().__init__()
        self._state = state
        self._limits = limits
        self._clock, self._coming = context.clock, coming
        self._tuples = 0
        # Probes that are not done, each with what it made last on top.
        self._under_way: list[Work] = []
        self._pressing = self._pressed = False
        self._unrouted: dict[Signature, deque[TupleBatch]] = {}
        self._refused: set[Signature] = set()
        self._queues: dict[Operator, _Queue] = {}
        self._served: _Queue | None = None
        self._began = self._floor = self._routed = 0.0
        self._asked = False

    # What comes in

    def push(self, batches: Iterable[TupleBatch]) -> None:
        for batch in batches:
            if batch.size:
                if self._under_way:
                    self._under_way.append(batch)
                else:
                    self._of(batch.signature).append(batch)
                    self._tuples += batch.size
                if self._served is not None:
                    self._served.tickets -= batch.size

    def is_next(self, batch: TupleBatch) -> bool:
        """False: other modules have their turns."""
        return False

    def regrade(self, graded: Callable[[TupleBatch], Iterable[TupleBatch]]) -> None:
        """Put what has not been routed in order again; what waits for its operator stays."""
        unrouted = [batch for batches in self._unrouted.values() for batch in batches]
        self._unrouted.clear()
        self._refused.clear()
        for batch in unrouted:
            for piece in graded(batch):
                self._of(piece.signature).append(piece)

    def put_back(self, batch: TupleBatch, *, refused: bool) -> None:
        """Take back what has not been routed; ``refused``: where it was to go there is no room at present.

        It is tried again after some room has been made.
        """
        if self._under_way:
            self._under_way.append(batch)
            self._pressed = refused
            return
        self._of(batch.signature).appendleft(batch)
        self._tuples += batch.size
        if refused:
            self._refused.add(batch.signature)

    def _of(self, signature: Signature) -> deque[TupleBatch]:
        if signature not in self._unrouted:
            signatures = sorted((*self._unrouted, signature), key=_urgency)
            self._unrouted = {s: self._unrouted.get(s, deque()) for s in signatures}
        return self._unrouted[signature]

    def resume(self, operator: Operator, rest: Any) -> None:
        self._under_way.append((operator, rest))

    def weigh(self, shares: Sequence[tuple[Operator, float]]) -> None:
        """Let modules among which the policy divides tuples have turns in the same proportion."""
        if len(shares) > 1 and self._limits.by_tickets:
            for operator, share in shares:
                self._queue(operator).weight = max(share, _LEAST_WEIGHT)

    def line_up(self, operator: Operator, batch: TupleBatch) -> bool:
        """Make tuples wait for a module's turn; False if they need not."""
        if operator.kind not in _QUEUED:
            return False
        queue = self._queue(operator)
        self._route(batch.size)
        if not queue.batches:
            queue.worked = max(queue.worked, self._floor)
        queue.tickets += batch.size
        if self._pressing and self._has_no_room(queue):
            self._serve(queue)
            return False
        queue.batches.append(batch)
        queue.tuples += batch.size
        self._tuples += batch.size
        return True

    def _queue(self, operator: Operator) -> _Queue:
        return self._queues.get(operator) or self._queues.setdefault(operator, _Queue(operator))

    # What is there

    def tickets(self, operator: Operator) -> int:
        """Return how many tuples a module was given, those that wait included, and has not returned."""
        return self._queue(operator).tickets

    def is_full(self, operator: Operator) -> bool:
        """Whether a module takes no more tuples at present; a profile takes the modules of all predicates."""
        if self._pressing:
            return False
        if operator.kind is Kind.PROFILE:
            return any(self.is_full(each) for each in self._queues if each.kind is Kind.SELECT)
        return self._has_no_room(self._queue(operator))

    def _has_no_room(self, queue: _Queue) -> bool:
        return self._limits.queue is not None and queue.tuples >= self._limits.queue

    def works(self) -> list[Work]:
        queued = [(queue.operator, batch) for queue in self._queues.values() for batch in queue.batches]
        unrouted = [batch for batches in self._unrouted.values() for batch in batches]
        return [*self._under_way, *unrouted, *queued]

    @property
    def is_flying(self) -> bool:
        """Whether tuples are in flight, those in queues included."""
        return bool(self._tuples or self._under_way)

    # What is to be done

    def pop(self) -> Work | None:
        """Take what may be routed, or else a batch whose turn has come at a module.

        Returns:
            None when nothing is in flight, and when there is room for tuples that may have arrived.
        """
        self._charge()
        self._pressing, self._pressed = self._pressed, False
        if self._under_way:
            work = self._under_way.pop()
            if not isinstance(work, TupleBatch):
                self._serve(self._queue(work[0]))
            return work
        ahead = self._is_ahead()
        for signature, batches in self._unrouted.items():
            if batches and signature not in self._refused and not ahead:
                self._tuples -= batches[0].size
                return batches.popleft()
        wanting = not self.draining and not ahead and self._tuples < self._limits.buffer
        # Once a turn, for what is asked for may have nothing at present.
        self._asked = wanting and not self._asked
        return None if self._asked else self._turn(wanting=wanting)

    def _route(self, tuples: int) -> None:
        """Let the time pass that the eddy takes to route tuples, if it takes any, in a turn of its own."""
        began = self._clock.now()
        self._clock.spend(ROUTE, tuples, tuples)
        spent = self._clock.now() - began
        if isinstance(self._clock, VirtualClock) and spent:
            weights = [queue.weight for queue in self._queues.values()]
            self._floor = max(self._routed, self._floor)
            self._routed = self._floor + spent * len(weights) / sum(weights)

    def _is_ahead(self) -> bool:
        """Whether the eddy has had more of the processor than a module that could work."""
        return any(
            queue.worked < self._routed and self._due(queue) is None
            for queue in self._queues.values()
            if queue.batches
        )

    def _turn(self, *, wanting: bool) -> Work | None:
        """Return the next batch that a module can work on; let time pass if all of them wait."""
        while queues := [queue for queue in self._queues.values() if queue.batches]:
            soonest = math.inf
            for queue in sorted(queues, key=lambda each: each.worked):
                due = self._due(queue)
                if due is None:
                    return queue.operator, self._begin(queue)
                soonest = min(soonest, due)
            now = self._clock.now()
            arrival = max(self._coming(), now + POLLED) if wanting else math.inf
            self._clock.wait(min(soonest, arrival) - now)
            if arrival < soonest:
                self._asked = True
                return None
        return None

    def _due(self, queue: _Queue) -> float | None:
        """Return until when a module has to wait for its index before it can take its next batch."""
        if queue.operator.kind is not Kind.JOIN or not isinstance(self._state, StairState):
            return None
        join = self._state.stairs.joins[queue.operator.target]
        return join.due(queue.batches[0]) if isinstance(join, IndexJoin) else None

    def _begin(self, queue: _Queue) -> TupleBatch:
        if self.is_full(queue.operator):  # there may be room now
            self._refused.clear()
        batch = queue.batches.popleft()
        queue.tuples -= batch.size
        self._tuples -= batch.size
        self._floor = queue.worked
        self._serve(queue)
        return batch

    def _serve(self, queue: _Queue) -> None:
        self._charge()
        self._served, self._began = queue, self._clock.now()

    def _charge(self) -> None:
        """Count the time since the last turn began for the module whose turn it was."""
        if self._served is not None:
            now = self._clock.now()
            self._served.worked += (now - self._began) / self._served.weight
            self._served = None


def _urgency(signature: Signature) -> tuple[bool, int, int]:
    """Return a sort key: to be built, then preferred, then whatever has come furthest."""
    met = signature.span.bit_count() + signature.done.bit_count()
    return signature.built, -signature.preferred, -met


class QueuedTable(RoutingTable):
    """A routing table that knows of queues: each batch has a decision of its own.

    What would be the share of a module that takes no more tuples goes to the others that were chosen.
    """

    def __init__(
        self, policy: Policy, candidates: Finding, longest: int, note: Noting, buffer: QueuedBuffer
    ) -> None:
        by_tickets = isinstance(policy, Naive | Lottery | WindowedLottery)
        super().__init__(policy, self._with_tickets if by_tickets else candidates, longest, note)
        self._found, self._buffer = candidates, buffer

    def _with_tickets(self, signature: Signature) -> list[Candidate]:
        """Return candidates whose books have the tickets of queues, which count tuples that still wait.

        They tell no times, for full queues turn tuples away from slow modules.
        """
        found = []
        for c in self._found(signature):
            given = c.account.tuples_in
            booked = Account(c.account.window, given, given - self._buffer.tickets(c.operator))
            found.append(replace(c, account=booked, overall=booked))
        return found

    def _lasting(self, signature: Signature, before: Any, repeated: int) -> int:
        return self._longest

    def route(self, batch: TupleBatch) -> tuple[list[tuple[Operator, TupleBatch]], TupleBatch | None]:
        """Return the same; no pieces and all of the batch as rest: the modules chosen take no more now."""
        signature = batch.signature
        entry = self.entries[signature] = self._decide(signature, self.entries.get(signature))
        if not entry.decision.shares:
            return [], None
        left = [(each, share) for each, share in entry.decision.shares if not self._buffer.is_full(each)]
        if not left:
            return [], batch
        whole = sum(share for _, share in left)
        shares = tuple((each, share / whole if whole else 1 / len(left)) for each, share in left)
        return self._pieces(replace(entry, decision=replace(entry.decision, shares=shares)), batch)


class QueuedEddy(PreferringEddy):
    """An eddy that puts tuples into queues."""

    _buffer: QueuedBuffer

    def _route(self, batch: TupleBatch) -> None:
        pieces, rest = self._table.route(batch)
        if rest is not None:
            self._buffer.put_back(rest, refused=not pieces)
        for operator, piece in pieces:
            self._statistics.routed += piece.size
            if not self._buffer.line_up(operator, piece):
                self._send(operator, piece)


class QueuedArrivals(Arrivals):
    """Arrivals that are asked for while tuples are in flight too (``is_busy``), unless bindings are ending.

    Then no relation is covered, for not everything that has arrived has been built; and no time passes.
    """

    def __init__(self, context: RunContext, is_busy: Callable[[], bool]) -> None:
        super().__init__(context.methods, context.stems)
        self._is_busy = is_busy

    @property
    def is_ending(self) -> bool:
        """Whether bindings end with the next round: until then all that an index answered is to be built."""
        return bool(self._ended)

    def due(self) -> float:
        """Return when something may arrive, in seconds of the clock: minus infinity for at once."""
        modules: list[ScanAM | IndexAM] = [*self._open_scans(), *(index for _, index in self._indexes)]
        known = [module.due() for module in modules]
        at_once = self._reading or None in known
        return -math.inf if at_once else min((due for due in known if due is not None), default=math.inf)

    def _take_over(self) -> None:
        if not self._is_busy():
            super()._take_over()

    def _covered(self) -> list[Arrival]:
        return [] if self._is_busy() else super()._covered()

    def _is_open(self) -> bool:
        return self._is_busy() or super()._is_open()

    def _wait(self) -> None:
        if not self._is_busy() and (self._reading or super()._is_open()):
            super()._wait()


class QueuedDataflow(PreferringDataflow):
    """An eddy with queues, between arrivals and the output."""

    _buffer: QueuedBuffer
    _arrivals: QueuedArrivals

    def __init__(self, context: RunContext, given: Given, limits: Backpressure) -> None:
        self._limits, self._has_ends = limits, False
        context.arrivals = QueuedArrivals(context, lambda: self.is_flying)
        super().__init__(context, given)
        for probe in context.filters.asking:
            probe.sets_aside = False  # what waits in queues is counted there

    def _make_buffer(self, limit: int) -> QueuedBuffer:
        return QueuedBuffer(self._limits, self._context, self.state, self._arrivals.due)

    def _make_table(self, policy: Policy, candidates: Finding) -> QueuedTable:
        every = self._context.options.reoptimize_every
        return QueuedTable(policy, candidates, every, self._note_decision, self._buffer)

    def _make_eddy(self, table: RoutingTable) -> QueuedEddy:
        return QueuedEddy(self._context, self._buffer, table, self._aside)

    def _note_decision(self, signature: Signature, shares: Sequence[tuple[Operator, float]]) -> None:
        super()._note_decision(signature, shares)
        self._buffer.weigh(shares)

    def _rounds_of_arrivals(self) -> Iterator[list[Arrival]]:
        for arrivals in super()._rounds_of_arrivals():
            self._has_ends = any(batch is None for _, batch in arrivals)
            yield arrivals

    def _work(self) -> Iterator[Any]:
        """Let the eddy work, until queues are empty where that matters.

        An end holds once nothing is in flight. What an index answered may wait for a predicate; it has to be
        built before its binding ends.

        Where moving state has broken B+, insertions enforce B, each in its own STAIR. That is right for one
        arrival after the other. But where ``r`` is stored at two joins, a new ``s`` and a new ``t`` that are
        in flight at once meet twice: ``rs`` finds ``t`` at one of the joins, and ``rt`` finds ``s`` at the
        other.
        """
        enforcing = isinstance(self.state, StairState) and self.state.stairs.enforcing
        self._buffer.draining = self._has_ends or enforcing or self._arrivals.is_ending
        self._has_ends = False
        return super()._work()
