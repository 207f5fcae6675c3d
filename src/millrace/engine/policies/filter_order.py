"""Policies that keep an order of predicates and profile some tuples to know what order is best.

One optimizer per span: an order that all signatures of the span follow, each with the predicates it
still has to meet. Where joins are open, alone or beside predicates, other policies decide.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from millrace.engine.eddy.operator import Profiling, Select
from millrace.engine.eddy.statistics import Account, Profile
from millrace.engine.policies.base import (
    DECISION_GROWTH,
    DECISION_SECONDS,
    FIRST_DECISION,
    Candidate,
    Policy,
    Shares,
    modules_of,
)
from millrace.engine.policies.joint import Order
from millrace.engine.tuples.batch import Signature

START = 8
"""Tuples of the first decision to profile."""

_PIECE = 4
"""Fewer tuples than this are not worth a piece: the budget is saved up."""

_PIECE_SHARE = 1 / 4
"""Share of tuples to profile where a profile is urgent."""

_PIECE_SECONDS = 30e-6
"""What a piece costs the eddy whatever its size."""

_MOST = 32
"""Tuples to profile in one decision, at most; data may be clustered, so rather more often a few."""

_MEMORY = 4096
"""Calls of a predicate that its cost is an average of, roughly."""

_ODD = 8
"""Times the average that a reading costs which is not believed before another one confirms it."""

_MOST_ORDERED = 16
"""Predicates that an order is looked for, at most: to price orders takes about the third power of them."""

_FREE = 1e-9
"""Seconds per call below which predicates are equally cheap."""


class Meter:
    """Seconds per call of a predicate, recent, and not led astray by a machine that stops for a moment.

    What the first calls cost is not believed once there is something better: they pay for imports
    and empty caches. Nor is a reading far above all others, until a second one says the same.

    Args:
        account: Of the predicate, for tuples of all signatures. What other tasks taught it is in its
            window, not in its totals.
    """

    def __init__(self, account: Account) -> None:
        self._account = account
        self._read = (0, 0.0)
        taught = account.recent_in > 0 and not account.tuples_in
        self.tuples = account.recent_in if taught else 0.0
        self.seconds = account.recent_seconds if taught else 0.0
        self._taught = taught
        self._readings = 0
        self._odd = (0, 0.0)

    def read(self) -> float:
        """Take in what was booked since the last reading, and return its seconds."""
        tuples, seconds = self._account.tuples_in - self._read[0], self._account.seconds - self._read[1]
        if not tuples:
            return 0.0
        self._read = (self._account.tuples_in, self._account.seconds)
        self._readings += 1
        if not self._taught:
            self._take(tuples, seconds)
        elif self._readings > 1:
            self._weigh(tuples, seconds)
        fading = min(1.0, _MEMORY / self.tuples)
        self.tuples *= fading
        self.seconds *= fading
        return seconds

    def _take(self, tuples: int, seconds: float) -> None:
        """Take in one of the readings that this task begins with, or any later one."""
        if self._readings <= 2:
            self.tuples, self.seconds = tuples, seconds
        elif self._readings == 3 and self.cost > _ODD * max(_FREE, seconds / tuples):
            self._odd = round(self.tuples), self.seconds
            self.tuples, self.seconds = tuples, seconds
        else:
            self._weigh(tuples, seconds)

    def _weigh(self, tuples: int, seconds: float) -> None:
        """Add a reading, or keep it aside while it is the only one of its kind."""
        if seconds / tuples > _ODD * self.cost:
            (tuples, seconds), self._odd = self._odd, (tuples, seconds)
        self.tuples += tuples
        self.seconds += seconds

    @property
    def cost(self) -> float:
        """Seconds per call."""
        return max(_FREE, self.seconds / self.tuples)


@dataclass(frozen=True)
class Epoch:
    """What happened between two decisions for tuples that enter an optimizer.

    Attributes:
        tuples: Number that entered, the profiled ones among them.
        profiled: Number that were profiled.
        seconds: Spent in predicates, for these tuples and for those still under way before.
    """

    tuples: int
    profiled: int
    seconds: float


class FilterOrderOptimizer(ABC):
    """An order of predicates for the tuples of one span.

    Args:
        top: Signature by which tuples enter: the first one seen. Only there tuples are profiled.
        written: The predicates in the order as written.

    Attributes:
        order: The present order.
        costs: Seconds per call, by predicate.
        urgent: What is wanted of a profile is wanted at once, for the present order is in doubt.
    """

    def __init__(self, top: Signature, written: Order) -> None:
        self.top = top
        self.written = written
        self.order = written
        self.costs: dict[int, float] = {}
        self.urgent = False
        self._meters: dict[int, Meter] = {}
        self._entered: tuple[int, int] | None = None

    @abstractmethod
    def watch(self, signature: Signature, selections: Sequence[Candidate]) -> None:
        """Look at what was measured, before each decision for any signature of the span."""

    @abstractmethod
    def wanted(self, profile: Profile, epoch: Epoch) -> int:
        """Renew the order, and return how many tuples to profile in the decision to come.

        Costs of all predicates are known when this is called.
        """

    def first(self, candidates: Sequence[Candidate]) -> Candidate:
        """Return the candidate that comes first in the order."""
        places = {predicate: place for place, predicate in enumerate(self.order)}
        targets = [c.operator.target for c in candidates]
        return candidates[targets.index(min(targets, key=lambda i: (places.get(i, len(places)), i)))]

    def sampled(self, candidates: Sequence[Candidate]) -> tuple[float, int | None]:
        """Return the share of the entering tuples to profile, and for how many tuples at most it holds."""
        epoch = self._epoch(candidates)
        profile = next((c.profile for c in candidates if c.profile is not None), None)
        if profile is None:
            return 0.0, None
        if any(not meter.tuples for meter in self._meters.values()):
            # Nothing is known: a handful of tuples tells costs and a first order.
            return (START / FIRST_DECISION if epoch is None or not epoch.tuples else 0.0), None
        self.costs = {i: meter.cost for i, meter in self._meters.items()}
        epoch = epoch or Epoch(0, 0, 0.0)
        wanted = min(_MOST, self.wanted(profile, epoch))
        if wanted < _PIECE:
            return 0.0, None
        if self.urgent:
            # In a few short decisions, for neighbours may be alike.
            return _PIECE_SHARE, max(FIRST_DECISION, round(min(wanted, 3 * _PIECE) / _PIECE_SHARE))
        return min(0.5, wanted / _expected(epoch)), None

    def _epoch(self, candidates: Sequence[Candidate]) -> Epoch | None:
        """Read all books; None at the first decision."""
        seconds = 0.0
        for c in modules_of(candidates):
            meter = self._meters.setdefault(c.operator.target, Meter(c.measured))
            seconds += meter.read()
        tuples = sum(c.account.tuples_in for c in candidates)
        profiled = sum(c.account.tuples_in for c in candidates if isinstance(c.operator, Profiling))
        before, self._entered = self._entered, (tuples, profiled)
        return None if before is None else Epoch(tuples - before[0], profiled - before[1], seconds)


def _expected(epoch: Epoch) -> float:
    """Return the expected tuples of the decision after the epoch."""
    fitting = DECISION_SECONDS * epoch.tuples / epoch.seconds if epoch.seconds else 0.0
    return max(FIRST_DECISION, min(DECISION_GROWTH * epoch.tuples, fitting))


def profiling_cost(saved: float, each: float) -> int:
    """Return how many tuples can be profiled for the seconds saved, at ``each`` more than usual."""
    return int(min(_MOST, max(0.0, saved - _PIECE_SECONDS) / max(each, _FREE)))


class FilterOrderPolicy(Policy):
    """Follows an optimizer per span where only predicates are open, and not too many of them.

    Other policies decide elsewhere.

    Args:
        joins: Decides between joins.
        mixed: Decides between joins and predicates, and while too many predicates are open to order them all.
    """

    def __init__(self, joins: Policy, mixed: Policy) -> None:
        self._optimizers: dict[int, FilterOrderOptimizer] = {}
        self._joins = joins
        self._mixed = mixed

    @abstractmethod
    def optimizer(self, top: Signature, written: Order) -> FilterOrderOptimizer:
        """Return an optimizer to begin with."""

    def choose(self, signature: Signature, candidates: Sequence[Candidate]) -> Shares:
        """Return the next predicate of the order, and a share for profiling where it is worth it."""
        self.hold, self.coarse = None, False
        selections = [c for c in candidates if isinstance(c.operator, Select)]
        modules = modules_of(candidates)
        if len(selections) < len(modules) or len(selections) > _MOST_ORDERED:
            return self.follow(self._mixed if selections else self._joins, signature, candidates)
        optimizer = self._optimizers.get(signature.span)
        if optimizer is None:
            written = tuple(sorted(c.operator.target for c in selections))
            optimizer = self._optimizers[signature.span] = self.optimizer(signature, written)
        optimizer.watch(signature, selections)
        profiling = next((c.operator for c in candidates if c not in modules), None)
        share = 0.0
        if profiling and signature == optimizer.top:
            share, self.hold = optimizer.sampled(candidates)
        next_one = optimizer.first(selections).operator
        if not profiling or not share:
            return ((next_one, 1.0),)
        return ((next_one, 1 - share), (profiling, share))
