"""What every routing policy shares: the candidates it sees, its decision, its books, and how it explores.

A policy sees a signature and, for each legal operator, what was measured there; it never sees
data. It answers with shares of the tuples. Which operators are legal is not its business.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from millrace.engine.eddy.operator import Kind, Operator
from millrace.engine.eddy.statistics import Account, Profile
from millrace.engine.tuples.batch import Signature

EXPLORED_SHARE = 1 / 128
"""Share of the tuples that a learning policy sends to the candidate it knows least about."""

FIRST_DECISION = 16
DECISION_SECONDS = 0.015
DECISION_GROWTH = 8
"""How long decisions about users' predicates hold: the first for so many tuples, later ones for so many
seconds of work, and none for more than so many times the tuples of the one before. A policy that wants
a certain number of tuples to go somewhere needs to know, for it gives shares."""

_KEEPING = 200e-9
"""Seconds that it takes to build a tuple into a SteM and into one or two indexes of it."""

KNOWN = 128
"""Tuples after which a measured selectivity is believed rather than the guess from sizes."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A legal operator with what is known about it.

    Attributes:
        operator: Where tuples would go.
        name: The relation's alias, or the predicate's text.
        account: What was measured for tuples of this signature at this operator.
        guess: Expected tuples out per tuple in, before anything was measured.
        overall: What was measured at this operator for tuples of any signature; None where that is
            the same as ``account``.
        profile: Joint outcomes of the predicates on tuples of this span; predicate ``i`` is the one
            of the operator ``("select", i)``.
        cumulative: Expected tuples that come of one tuple when it has been joined with everything reachable
            through that join, estimated from samples of keys; None for what is no join.
        anywhere: For a join, what was measured there for tuples of any signature that bind the same classes;
            None for what is no join.
    """

    operator: Operator
    name: str
    account: Account
    guess: float
    overall: Account | None = None
    profile: Profile | None = None
    cumulative: float | None = None
    anywhere: Account | None = None

    @property
    def measured(self) -> Account:
        """What is known of the module itself, whichever tuples came: ``overall`` where there is one."""
        return self.account if self.overall is None else self.overall

    @property
    def selectivity(self) -> float:
        """Expected tuples out per tuple in.

        The guess gives way to what was measured of the join for other tuples, and both to what was measured
        for these.
        """
        guess = self.guess if self.anywhere is None else _believed(self.anywhere, self.guess)
        return _believed(self.account, guess)


def _believed(account: Account, guess: float) -> float:
    weight = min(1.0, account.recent_in / KNOWN)
    return weight * account.selectivity + (1 - weight) * guess


Shares = tuple[tuple[Operator, float], ...]


@dataclass(frozen=True, slots=True)
class Decision:
    """Where tuples of a signature go.

    Attributes:
        shares: Operators, each once, with shares of the tuples that sum to 1.
        hold: For at most how many tuples it is to hold; None leaves that to the eddy.
        coarse: Whether small shares may wait until they make large pieces of a batch,
        whole: and until they make whole batches.
    """

    shares: Shares
    hold: int | None = None
    coarse: bool = False
    whole: bool = False

    @classmethod
    def of(cls, candidate: Candidate) -> Decision:
        """Return the decision to send all tuples to one operator."""
        return cls(((candidate.operator, 1.0),))


def modules_of(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return the candidates that are one module each, which a profile is not."""
    return [c for c in candidates if c.operator.kind is not Kind.PROFILE]


def share_out(candidates: Sequence[Candidate], weights: Sequence[float], least: float = 0.0) -> Decision:
    """Return shares in proportion to weights, equal ones where all weights are 0.

    Weights are not negative. Each candidate gets ``least`` beforehand.
    """
    whole = sum(weights)
    least = min(least, 1 / len(candidates))
    rest = 1 - least * len(candidates)
    parts = [weight / whole if whole else 1 / len(candidates) for weight in weights]
    return Decision(tuple((c.operator, least + rest * p) for c, p in zip(candidates, parts, strict=True)))


class Policy(ABC):
    """Chooses where tuples of a signature go next."""

    @abstractmethod
    def choose(self, signature: Signature, candidates: Sequence[Candidate]) -> Decision:
        """Return the decision; every operator in it must be a candidate's.

        There is at least one candidate.
        """


class LearningPolicy(Policy):
    """Sends tuples to the candidate of the least score, a small share to the least known one.

    A join is a candidate like any other, whether it goes by the number of a relation whose SteM is probed
    or by that of an edge of the spanning tree.
    """

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)

    @abstractmethod
    def score(self, candidate: Candidate) -> float:
        """Return what to minimise."""

    def is_known(self, candidate: Candidate) -> bool:
        """Whether enough tuples were sent there to believe what was measured.

        A join need not be tried again for each signature: of many joins there are too many.
        """
        anywhere = candidate.anywhere
        if anywhere is not None and anywhere.tuples_in >= KNOWN:
            return True
        return candidate.account.tuples_in >= KNOWN

    def price(self, candidate: Candidate) -> float:
        """Return what sending a tuple there costs, in the unit that the policy saves: here, a tuple sent."""
        return 1.0

    def choose(self, signature: Signature, candidates: Sequence[Candidate]) -> Decision:
        """Return the best candidate, and the least known of the others for exploration.

        Candidates of which next to nothing is known get as much as the best one: decisions that
        are made on little knowledge are kept for few tuples. Attached predicates come first and are not
        explored: tuples that met different ones of them are batches of their own, which cost more.
        """
        candidates = modules_of(candidates)
        building = next((c for c in candidates if c.operator.kind is Kind.BUILD), None)
        if building is not None:
            return Decision.of(self._before_building(building, candidates))
        attached = [c for c in candidates if c.operator.is_attached]
        if attached:
            return Decision.of(min(attached, key=lambda c: c.measured.selectivity))
        best = min(candidates, key=self.score)
        # Knowledge has a price: what is expected to multiply tuples is not tried at all.
        bearable = max(1.0, 2 * best.selectivity)
        others = [c for c in candidates if c is not best and c.selectivity <= bearable]
        if not others:
            return Decision.of(best)
        return self._exploring(best, others)

    def _exploring(self, best: Candidate, others: Sequence[Candidate]) -> Decision:
        """Return the shares of the best candidate and of those that are to be known better.

        Predicates show on all tuples that reach them what they are. So where there are no joins whole batches
        are enough, and the first one goes to the best candidate.
        """
        whole = all(c.operator.kind is Kind.SELECT for c in (best, *others))
        unknown = [c for c in others if not self.is_known(c)]
        if unknown:
            share = 1 / (len(unknown) + 1 + whole)
            rest = 1 - share * len(unknown)
            shares = (best.operator, rest), *((c.operator, share) for c in unknown)
            return Decision(shares, coarse=whole, whole=whole)
        fewest = min(c.account.tuples_in for c in others)
        tried = self._random.choice([c for c in others if c.account.tuples_in == fewest])
        # It costs no more than it would at a module as cheap as the best one.
        share = EXPLORED_SHARE * min(1.0, self.price(best) / self.price(tried))
        # Coarse, for no surprise is to be met any more.
        return Decision(((best.operator, 1 - share), (tried.operator, share)), coarse=True, whole=whole)

    def _before_building(self, building: Candidate, candidates: Sequence[Candidate]) -> Candidate:
        """Return a predicate only if it is cheaper than keeping what it would drop.

        Behind the joins it meets fewer base tuples, and each of them once.
        """
        ready = [c for c in candidates if c.operator.kind is Kind.SELECT and c.measured.recent_in]
        return min((c for c in ready if c.measured.cost < _KEEPING), key=self.score, default=building)
