"""Policies that keep an order of predicates and profile some tuples to know what order is best.

One optimizer per span: an order that all signatures of the span follow, each with the predicates it
still has to meet. Where joins are open, alone or beside predicates, other policies decide.

Joint outcomes say what orders cost, and how sure that is. An order's cost is a sum over sets of predicates:
whoever stands behind a set is called for the tuples that pass all of it. With joint outcomes every such share
is known for every order at once, correlations included, and two orders can be compared tuple by tuple, which
takes out most of the noise.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from math import prod, sqrt

from millrace.engine.eddy.operator import Kind
from millrace.engine.eddy.statistics import Account, Profile
from millrace.engine.policies.base import (
    DECISION_GROWTH,
    DECISION_SECONDS,
    FIRST_DECISION,
    Candidate,
    Decision,
    Policy,
    modules_of,
)
from millrace.engine.policies.simple import Greedy, Rank
from millrace.engine.tuples.batch import Signature

_BELIEF = 4.0
"""Tuples that independence counts for where few tuples tell how it really is."""

_EXHAUSTIVE = 4
"""Up to so many predicates all orders are compared; beyond, the greedy one is taken."""

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

_RATE = 0.02
"""Share of the time in predicates that profiling may take with ``a_greedy``."""

_WINDOW = 64
"""Profiled tuples that ``a_greedy`` looks back on."""

_MARGIN = 1.2
"""With ``a_greedy`` a predicate overtakes when it drops so many times more per second than the one before."""

Order = tuple[int, ...]


Counts = Mapping[tuple[int, int], tuple[int, int]]


class Joint:
    """Shares of tuples that pass sets of predicates (bit sets), with thin sets smoothed.

    Args:
        order: The order in use: what was observed there is worth more than what the profile says.
        observed: By predicate and set of predicates passed before: tuples met and passed outside
            the profile.
        newest: How many of the newest profiled tuples to look at; all of them when None.
    """

    def __init__(
        self,
        profile: Profile,
        order: Order,
        observed: Counts | None = None,
        newest: int | None = None,
    ) -> None:
        self._profile = profile
        self._newest = newest
        self.tuples = profile.held if newest is None else min(newest, profile.held)
        self._shares: dict[int, float] = {0: 1.0}
        self._alone = {i: (self._count(1 << i) + 0.5) / (self.tuples + 1) for i in order}
        self._strata: list[tuple[int, int, float]] = []
        before, reaching = 0, 1.0
        for i in order:
            met, passed = (observed or {}).get((i, before), (0, 0))
            met += self._count(before)
            passed += self._count(before | 1 << i)
            rate = (passed + _BELIEF * self._alone[i]) / (met + _BELIEF)
            self._strata.append((before, i, reaching * (1 - rate)))
            before, reaching = before | 1 << i, reaching * rate
        self._whole = reaching

    def _count(self, passed: int) -> int:
        """Return the number of profiled tuples that pass all of these predicates."""
        last = passed.bit_length() - 1
        return self._profile.passing(last, passed & ~(1 << last), self._newest)[1] if passed else self.tuples

    def share(self, passed: int) -> float:
        """Return the share of tuples that pass all of these predicates.

        The tuples that each predicate of the order in use rejects are a stratum. How large it is was
        observed on many tuples; how the other predicates fare in it, only the profile knows.
        """
        known = self._shares.get(passed)
        if known is None:
            known = self._whole + sum(
                size * self._within(before, rejecting, passed)
                for before, rejecting, size in self._strata
                if not passed >> rejecting & 1
            )
            self._shares[passed] = known
        return known

    def _within(self, before: int, rejecting: int, passed: int) -> float:
        """Return the share that passes, of the tuples that one predicate rejects and those before it pass."""
        open_ones = passed & ~before
        if not open_ones:
            return 1.0
        expected = prod(share for i, share in self._alone.items() if open_ones >> i & 1)
        reject = 1 << rejecting
        tuples = self._count(before) - self._count(before | reject)
        passing = self._count(before | passed) - self._count(before | passed | reject)
        return (passing + _BELIEF * expected) / (tuples + _BELIEF)

    def cost(self, order: Order, costs: Mapping[int, float]) -> float:
        """Return the expected seconds per tuple of an order, from seconds per call."""
        return sum(costs[i] * calls for i, calls in self.calls(order).items())

    def calls(self, order: Order) -> dict[int, float]:
        """Return the expected calls of each predicate per tuple of an order."""
        return {i: self.share(before) for i, before in _places(order)}

    def saving(self, old: Order, new: Order, costs: Mapping[int, float]) -> tuple[float, float]:
        """Return what the new order is expected to save, and the standard error, per tuple.

        Both orders are priced on the same tuples. The error has a term that falls with the number
        of tuples even where all of them agreed: a handful of them says little about the rare ones
        (as in Bernstein's inequality).
        """
        weights: dict[int, float] = {}
        for order, sign in ((old, 1.0), (new, -1.0)):
            for i, before in _places(order):
                weights[before] = weights.get(before, 0.0) + sign * costs[i]
        terms = [(before, weight) for before, weight in weights.items() if weight]
        mean = sum(weight * self.share(before) for before, weight in terms)
        square = sum(a * b * self.share(one | other) for one, a in terms for other, b in terms)
        extent = max(sum(max(0.0, sign * weight) for _, weight in terms) for sign in (1, -1))
        tuples = max(1, self.tuples)
        return mean, sqrt(max(0.0, square - mean * mean) / tuples) + extent / tuples / 2

    def ranked(self, written: Order, costs: Mapping[int, float]) -> list[Order]:
        """Return the orders worth a thought, cheapest first; of equal ones that nearest to ``written``."""
        if len(written) > _EXHAUSTIVE:
            return [self.greedy(written, costs)]
        return sorted(permutations(written), key=lambda order: self.cost(order, costs))

    def greedy(self, order: Order, costs: Mapping[int, float], margin: float = 1.0) -> Order:
        """Return the order in which each predicate drops the most tuples per second, of those that get there.

        One overtakes those that stood before it if it drops ``margin`` times more than the first of them.
        """
        mended: Order = ()
        given, rest = 0, list(order)
        while rest:
            reaching = self.share(given)
            gains = [(1 - self.share(given | 1 << i) / reaching) / costs[i] for i in rest]
            most = max(gains)
            mended += (rest.pop(gains.index(most) if most > margin * gains[0] else 0),)
            given |= 1 << mended[-1]
        return mended


def _places(order: Order) -> Iterator[tuple[int, int]]:
    """Yield each predicate with the set of those before it."""
    before = 0
    for i in order:
        yield i, before
        before |= 1 << i


class Meter:
    """Seconds per call of a predicate, recent, and not led astray by a machine that stops for a moment.

    What the first calls cost is not believed once there is something better: they pay for imports
    and empty caches. Nor is a reading far above all others, until a second one says the same.

    The account is for tuples of all signatures. What other tasks taught it is in its window, not in its
    totals.
    """

    def __init__(self, account: Account) -> None:
        self._account = account
        self._read = (0, 0.0)
        taught = account.recent_in > 0 and not account.tuples_in
        self.tuples = account.recent_in if taught else 0.0
        self.seconds = account.recent_seconds if taught else 0.0
        self._taught = taught
        self._readings = 0
        self._odd = (0.0, 0.0)

    def read(self) -> float:
        """Take in what was booked since the last reading, and return its seconds."""
        tuples, seconds = self._account.tuples_in - self._read[0], self._account.seconds - self._read[1]
        if not tuples:
            return 0.0
        self._read = (self._account.tuples_in, self._account.seconds)
        self._readings += 1
        if self._readings <= 2 and not self._taught:
            self.tuples, self.seconds = tuples, seconds
        elif self._readings > 1:
            self._weigh(tuples, seconds)
        fading = min(1.0, _MEMORY / self.tuples)
        self.tuples *= fading
        self.seconds *= fading
        return seconds

    def _weigh(self, tuples: float, seconds: float) -> None:
        """Add a reading, or keep it aside while it is the only one of its kind; so may be that before it."""
        if self._readings == 3 and not self._taught and self.cost > _ODD * max(_FREE, seconds / tuples):
            self._odd, self.tuples, self.seconds = (self.tuples, self.seconds), 0.0, 0.0
        elif seconds / tuples > _ODD * self.cost:
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

    The profiled are among the tuples. Seconds are those spent in predicates, for these tuples and for those
    still under way before.
    """

    tuples: int
    profiled: int
    seconds: float


class FilterOrderOptimizer(ABC):
    """An order of predicates for the tuples of one span.

    Tuples enter by the signature ``top``, the first one seen, and are profiled only there.

    Attributes:
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
        self._entered = (0, 0)

    def watch(self, signature: Signature, selections: Sequence[Candidate]) -> None:  # noqa: B027
        """Look at what was measured, before each decision for any signature of the span.

        Nothing need be done: the profile's window follows the data.
        """

    @abstractmethod
    def wanted(self, profile: Profile, epoch: Epoch) -> int:
        """Renew the order, and return how many tuples to profile in the decision to come.

        Costs of all predicates are known when this is called.
        """

    def first(self, candidates: Sequence[Candidate]) -> Candidate:
        places = {predicate: place for place, predicate in enumerate(self.order)}
        last = len(places)
        return min(candidates, key=lambda c: (places.get(c.operator.target, last), c.operator.target))

    def choose_share(self, candidates: Sequence[Candidate]) -> tuple[float, int | None]:
        """Return the share of the entering tuples to profile, and for how many tuples at most it holds."""
        epoch = self._epoch(candidates)
        profile = next((c.profile for c in candidates if c.profile is not None), None)
        if profile is None:
            return 0.0, None
        if any(not meter.tuples for meter in self._meters.values()):
            # Nothing is known: a handful of tuples tells costs and a first order.
            return (0.0 if epoch.tuples else START / FIRST_DECISION), None
        self.costs = {i: meter.cost for i, meter in self._meters.items()}
        wanted = min(_MOST, self.wanted(profile, epoch))
        if wanted < _PIECE:
            return 0.0, None
        if self.urgent:
            # In a few short decisions, for neighbours may be alike.
            return _PIECE_SHARE, max(FIRST_DECISION, round(min(wanted, 3 * _PIECE) / _PIECE_SHARE))
        return min(0.5, wanted / _expected(epoch)), None

    def _epoch(self, candidates: Sequence[Candidate]) -> Epoch:
        """Read all books."""
        seconds = 0.0
        for c in modules_of(candidates):
            meter = self._meters.setdefault(c.operator.target, Meter(c.measured))
            seconds += meter.read()
        tuples = sum(c.account.tuples_in for c in candidates)
        profiled = sum(c.account.tuples_in for c in candidates if c.operator.kind is Kind.PROFILE)
        before, self._entered = self._entered, (tuples, profiled)
        return Epoch(tuples - before[0], profiled - before[1], seconds)


def _expected(epoch: Epoch) -> float:
    """Return the expected tuples of the decision after the epoch."""
    fitting = DECISION_SECONDS * epoch.tuples / epoch.seconds if epoch.seconds else 0.0
    return max(FIRST_DECISION, min(DECISION_GROWTH * epoch.tuples, fitting))


def count_affordable(saved: float, each: float) -> int:
    """Return how many tuples can be profiled for the seconds saved, at ``each`` more than usual."""
    return int(min(_MOST, max(0.0, saved - _PIECE_SECONDS) / max(each, _FREE)))


class FilterOrderPolicy(Policy):
    """Follows an optimizer per span where only predicates are open, and not too many of them.

    Elsewhere ``greedy`` decides between joins. ``rank`` decides between joins and predicates, and while too
    many predicates are open to order them all. An optimizer begins with the order as written.
    """

    def __init__(self, optimizer: Callable[[Signature, Order], FilterOrderOptimizer], seed: int = 0) -> None:
        self._optimizers: dict[int, FilterOrderOptimizer] = {}
        self._joins, self._mixed, self._optimizer = Greedy(seed), Rank(seed), optimizer

    def choose(self, signature: Signature, candidates: Sequence[Candidate]) -> Decision:
        """Return the next predicate of the order, and a share for profiling where it is worth it."""
        selections = [c for c in candidates if c.operator.kind is Kind.SELECT]
        modules = modules_of(candidates)
        if len(selections) < len(modules) or len(selections) > _MOST_ORDERED:
            return (self._mixed if selections else self._joins).choose(signature, candidates)
        optimizer = self._optimizers.get(signature.span)
        if optimizer is None:
            written = tuple(sorted(c.operator.target for c in selections))
            optimizer = self._optimizers[signature.span] = self._optimizer(signature, written)
        optimizer.watch(signature, selections)
        profiling = next((c.operator for c in candidates if c.operator.kind is Kind.PROFILE), None)
        share, hold = 0.0, None
        if profiling and signature == optimizer.top:
            share, hold = optimizer.choose_share(candidates)
        first = optimizer.first(selections).operator
        if not profiling or not share:
            return Decision(((first, 1.0),), hold)
        return Decision(((first, 1 - share), (profiling, share)), hold)


class AGreedy(FilterOrderPolicy):
    """Keeps the greedy order by conditional selectivities up as the data change.

    Babu, Motwani, Munagala, Nishizawa & Widom 2004, "Adaptive Ordering of Pipelined Stream Filters":
    the greedy invariant says that each predicate drops at least as many tuples per second, of those that the
    ones before it pass, as any predicate behind it would. A sample of the tuples meets every
    predicate (the profile window); when their outcomes break the invariant, the order is mended from
    that place on. A violation counts only beyond a margin (thrashing avoidance), for near ties cost little.

    The seed is for what is explored among joins.
    """

    def __init__(self, seed: int = 0) -> None:
        super().__init__(_Greedy, seed)


class _Greedy(FilterOrderOptimizer):
    """An order that satisfies the greedy invariant within the margin."""

    def __init__(self, top: Signature, written: Order) -> None:
        super().__init__(top, written)
        self._saved = 0.0

    def wanted(self, profile: Profile, epoch: Epoch) -> int:
        """Mend the order, and return as many tuples as the time saved up for them allows."""
        joint = Joint(profile, self.order, newest=_WINDOW)
        self.order = joint.greedy(self.order, self.costs, _MARGIN)
        each = sum(self.costs.values()) - joint.cost(self.order, self.costs)
        self._saved += _RATE * epoch.seconds - epoch.profiled * each
        return count_affordable(self._saved, each)
