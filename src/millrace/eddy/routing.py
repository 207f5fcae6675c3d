"""The routing table: decisions by signature, made when first needed and renewed after a while.

Deshpande 2004, section 2.1.4: decisions are made for a signature, not for a tuple, and kept for
``reoptimize_every`` tuples. A decision may split the tuples; the split is exact over time, also
when batches hold a single tuple.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from millrace.errors import RoutingError
from millrace.modules import Destination
from millrace.policies import Candidate, Policy
from millrace.tuples import Signature, TupleBatch


@dataclass
class _Entry:
    shares: list[tuple[Destination, float]]
    owed: list[float]
    left: int


class RoutingTable:
    """Maps signatures to destinations.

    Args:
        policy: Decides.
        candidates: Gives the legal destinations of a signature, with what is known about them.
        reoptimize_every: Tuples of a signature after which its decision is made anew.
    """

    def __init__(
        self,
        policy: Policy,
        candidates: Callable[[Signature], list[Candidate]],
        reoptimize_every: int,
    ) -> None:
        self._policy = policy
        self._candidates = candidates
        self._every = reoptimize_every
        self._entries: dict[Signature, _Entry] = {}

    def route(self, batch: TupleBatch) -> Iterator[tuple[Destination, TupleBatch]]:
        """Yield the batch's pieces with their destinations; nothing when it leaves the dataflow.

        Raises:
            RoutingError: The policy named a destination that is not legal, or shares that do not
                sum to 1.
        """
        entry = self._entries.get(batch.signature)
        if entry is None or entry.left <= 0:
            entry = self._entries[batch.signature] = self._decide(batch.signature)
        if not entry.shares:
            return
        entry.left -= batch.size
        low = 0
        for (destination, _), high in zip(entry.shares, self._bounds(entry, batch.size), strict=True):
            if high > low:
                yield destination, batch.cut(low, high)
                low = high

    def _bounds(self, entry: _Entry, size: int) -> list[int]:
        """Cut ``size`` tuples so that every destination gets its share in the long run."""
        bounds = []
        given = 0
        for i, (_, share) in enumerate(entry.shares):
            entry.owed[i] += share * size
            last = i == len(entry.shares) - 1
            count = size - given if last else min(size - given, max(0, round(entry.owed[i])))
            entry.owed[i] -= count
            given += count
            bounds.append(given)
        return bounds

    def _decide(self, signature: Signature) -> _Entry:
        candidates = self._candidates(signature)
        if not candidates:
            return _Entry([], [], self._every)
        if len(candidates) == 1:
            shares = [(candidates[0].destination, 1.0)]
        else:
            shares = list(self._policy.choose(signature, candidates))
            legal = {c.destination for c in candidates}
            for destination, _ in shares:
                if destination not in legal:
                    raise RoutingError(
                        f"policy {type(self._policy).__name__} sent tuples of {signature} to "
                        f"{destination}; legal destinations are {sorted(map(str, legal))}"
                    )
            whole = sum(share for _, share in shares)
            if not abs(whole - 1) <= 1e-9 or any(s < 0 for _, s in shares):  # NaN is not 1 either
                raise RoutingError(
                    f"policy {type(self._policy).__name__} gave shares {shares} that do not sum to 1"
                )
        # The smallest share goes first, so that rounding never lets it take the whole of a batch.
        shares.sort(key=lambda pair: pair[1])
        return _Entry(shares, [0.0] * len(shares), self._every)
