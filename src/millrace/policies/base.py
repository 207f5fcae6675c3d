"""What every routing policy shares: the candidates it sees, its books, and how it explores.

A policy sees a signature and, for each legal destination, what was measured there; it never sees
data. It answers with shares of the tuples. Which destinations are legal is not its business.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from millrace.modules import Destination
from millrace.statistics import Account
from millrace.tuples import Signature

EXPLORED_SHARE = 1 / 128
"""Share of the tuples that a learning policy sends to the candidate it knows least about."""

_KNOWN = 128
"""Tuples after which a measured selectivity is believed rather than the guess from sizes."""


@dataclass(frozen=True)
class Candidate:
    """A legal destination with what is known about it.

    Attributes:
        destination: Where tuples would go.
        name: The relation's alias, or the predicate's text.
        account: What was measured for tuples of this signature at this destination.
        guess: Expected tuples out per tuple in, before anything was measured.
    """

    destination: Destination
    name: str
    account: Account
    guess: float

    @property
    def selectivity(self) -> float:
        """Expected tuples out per tuple in: the guess gives way to the measurement."""
        seen = self.account.recent_in
        weight = min(1.0, seen / _KNOWN)
        return weight * self.account.selectivity + (1 - weight) * self.guess


Shares = tuple[tuple[Destination, float], ...]


class Policy(ABC):
    """Chooses where tuples of a signature go next."""

    @abstractmethod
    def choose(self, signature: Signature, candidates: Sequence[Candidate]) -> Shares:
        """Return destinations with shares that sum to 1.

        Args:
            signature: Of the tuples to route.
            candidates: At least one; every destination returned must be among them.
        """


class LearningPolicy(Policy):
    """Sends tuples to the candidate of the least score, a small share to the least known one."""

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)

    @abstractmethod
    def score(self, candidate: Candidate) -> float:
        """Return what to minimise."""

    def choose(self, signature: Signature, candidates: Sequence[Candidate]) -> Shares:
        """Return the best candidate, and the least known of the others for exploration.

        Candidates of which next to nothing is known get as much as the best one: decisions that
        are made on little knowledge are kept for few tuples.
        """
        best = min(candidates, key=self.score)
        # Knowledge has a price: what is expected to multiply tuples is not tried at all.
        bearable = max(1.0, 2 * best.selectivity)
        others = [c for c in candidates if c is not best and c.selectivity <= bearable]
        if not others:
            return ((best.destination, 1.0),)
        unknown = [c for c in others if c.account.tuples_in < _KNOWN]
        if unknown:
            share = 1 / (len(unknown) + 1)
            return ((best.destination, share), *((c.destination, share) for c in unknown))
        fewest = min(c.account.tuples_in for c in others)
        tried = self._random.choice([c for c in others if c.account.tuples_in == fewest])
        return ((best.destination, 1 - EXPLORED_SHARE), (tried.destination, EXPLORED_SHARE))
