"""The routing table: decisions by signature, made when first needed and renewed after a while.

Deshpande 2004, section 2.1.4: decisions are made for a signature, not for a tuple, and kept for some
tuples. A decision may split the tuples; the split is exact over time, also when batches hold a single
tuple.

Decisions are renewed every so many tuples. Joins cost about the same for every tuple, so there the first
decisions, made on little knowledge, are short and each later one is four times longer. Users' predicates
cost anything from nanoseconds to seconds: there a decision holds for a stretch of work, measured in
seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from millrace.engine.eddy.operator import Operator
from millrace.engine.policies import DECISION_GROWTH, DECISION_SECONDS, FIRST_DECISION, Candidate, Policy
from millrace.engine.tuples.batch import Signature, TupleBatch
from millrace.errors import RoutingError

_FOREVER = 1 << 62

_PIECE = (16, 1 / 16)
_COARSE = (256, 1 / 4)
"""Tuples, or share of what is routed together, that are worth a piece of their own; the second where a policy
is content with that."""

_FIRST_JOIN = 1024
"""Tuples that the first decision for a signature holds for where there are only joins."""


@dataclass
class _Entry:
    """A decision: shares by operator, and how many more tuples it holds for.

    ``owed`` is what each operator has coming to it from rounding; it outlives the decision. ``exact`` says
    that it holds for so many tuples and for no more, ``coarse`` that small shares may come in large pieces.
    """

    shares: list[tuple[Operator, float]]
    lasts: int
    left: int
    owed: dict[Operator, float]
    exact: bool
    coarse: bool


class RoutingTable:
    """Maps signatures to operators.

    Args:
        policy: Decides.
        candidates: Gives the legal operators of a signature, with what is known about them.
        lasting: Says for how many tuples of the signature a decision holds, from how many the one
            before held for (None for the first).
        longest: A decision that holds for so many is not cut short in the middle of a batch, unless it splits
            a batch of more than that. A shorter one that splits nothing, or coarsely, may hold for
            twice as many, to end with a batch.
        decided: Told of every decision.
        is_full: Whether a module takes no more tuples at present: what would be its share goes to the others
            that were chosen. Then each batch has a decision of its own. None where modules take any number.
    """

    def __init__(
        self,
        policy: Policy,
        candidates: Callable[[Signature], list[Candidate]],
        lasting: Callable[[Signature, int | None], int],
        longest: int,
        decided: Callable[[Signature, list[tuple[Operator, float]]], None] = lambda *_: None,
        is_full: Callable[[Operator], bool] | None = None,
    ) -> None:
        self._policy = policy
        self._candidates = candidates
        self._lasting = lasting
        self._longest = longest
        self._decided = decided
        self._is_full = is_full
        self._entries: dict[Signature, _Entry] = {}

    def route(self, batch: TupleBatch) -> tuple[list[tuple[Operator, TupleBatch]], TupleBatch | None]:
        """Return the batch's pieces with their operators, and what is to be routed later.

        There is a rest when the decision ends within the batch: the pieces come first, so that
        the next decision knows what became of them. No pieces and no rest: the tuples leave the
        dataflow. No pieces and all of the batch as rest: the modules chosen take no more at present.

        Raises:
            RoutingError: The policy named an operator that is not legal, or shares that do not
                sum to 1.
        """
        entry = self._entries.get(batch.signature)
        if entry is None or entry.left <= 0 or self._is_full is not None:
            entry = self._entries[batch.signature] = self._decide(batch.signature, entry)
        if not entry.shares:
            return [], None
        if self._is_full is not None and not (entry := self._with_room(entry)).shares:
            return [], batch
        size = batch.size
        if self._cuts(entry, size):
            size = min(size, entry.left)
        entry.left -= size
        if len(entry.shares) == 1 and size == batch.size:
            return [(entry.shares[0][0], batch)], None
        pieces = []
        low = 0
        for (operator, _), high in zip(entry.shares, _bounds(entry, size), strict=True):
            if high > low:
                pieces.append((operator, batch.cut(low, high)))
                low = high
        return pieces, batch.cut(size, batch.size) if size < batch.size else None

    def _cuts(self, entry: _Entry, size: int) -> bool:
        """Whether a decision ends within a batch of that size rather than with it: pieces cost, too."""
        if entry.lasts >= self._longest:
            return len(entry.shares) > 1 and size > self._longest
        split = len(entry.shares) > 1 and not entry.coarse
        return split or entry.exact or size > 2 * entry.left

    def clear(self) -> None:
        """Forget all decisions: other operators are legal now."""
        self._entries.clear()

    def _decide(self, signature: Signature, before: _Entry | None) -> _Entry:
        candidates = self._candidates(signature)
        shares: list[tuple[Operator, float]] = []
        if len(candidates) == 1:
            shares = [(candidates[0].operator, 1.0)]
        elif candidates:
            shares = self._checked(signature, candidates)
        if shares:
            self._decided(signature, shares)
        if len(candidates) < 2:
            lasts = _FOREVER  # until other operators are legal, when all decisions are forgotten
        elif self._is_full is not None:
            lasts = min(self._longest, self._policy.hold or self._longest)
        else:
            lasts = self._lasting(signature, None if before is None else before.lasts)
            lasts = min(lasts, self._policy.hold or lasts)
        owed = {} if before is None else before.owed
        return _Entry(shares, lasts, lasts, owed, self._policy.hold is not None, self._policy.coarse)

    def _with_room(self, entry: _Entry) -> _Entry:
        """Leave out modules that take no more tuples."""
        assert self._is_full is not None
        left = [(operator, share) for operator, share in entry.shares if not self._is_full(operator)]
        whole = sum(share for _, share in left)
        shares = [(operator, share / whole if whole else 1 / len(left)) for operator, share in left]
        return replace(entry, shares=shares)

    def _checked(self, signature: Signature, candidates: list[Candidate]) -> list[tuple[Operator, float]]:
        """Ask the policy and check its answer."""
        name = type(self._policy).__name__
        shares = list(self._policy.choose(signature, candidates))
        legal = {c.operator for c in candidates}
        for operator, _ in shares:
            if operator not in legal:
                raise RoutingError(
                    f"policy {name} sent tuples of {signature} to {operator}; legal operators "
                    f"are {sorted(map(str, legal))}"
                )
        whole = sum(share for _, share in shares)
        if not abs(whole - 1) <= 1e-9 or any(s < 0 for _, s in shares):  # NaN is not 1 either
            raise RoutingError(f"policy {name} gave shares {shares} that do not sum to 1")
        # The smallest share goes first, so that rounding never lets it take the whole of a batch.
        return sorted(shares, key=lambda pair: pair[1])


def _bounds(entry: _Entry, size: int) -> list[int]:
    """Cut ``size`` tuples so that every operator gets its share in the long run.

    A piece costs the eddy the same whatever its size, so a small share waits until it makes a piece.
    """
    tuples, share_of_all = _COARSE if entry.coarse else _PIECE
    least = min(tuples, size * share_of_all)
    bounds = []
    given = 0
    for i, (operator, share) in enumerate(entry.shares):
        owed = entry.owed.get(operator, 0.0) + share * size
        last = i == len(entry.shares) - 1
        count = size - given if last else min(size - given, max(0, round(owed)))
        count = 0 if not last and count < least else count
        entry.owed[operator] = owed - count
        given += count
        bounds.append(given)
    return bounds


class DecisionLifetime:
    """Says for how many tuples a decision holds.

    Args:
        longest: The most there can be, ``Options.reoptimize_every``.
        busy: Returns the seconds that modules have worked so far; None without users' predicates.
    """

    def __init__(self, longest: int, busy: Callable[[], float] | None) -> None:
        self._longest = longest
        self._busy = busy
        self._seen: dict[Signature, float] = {}

    def lasting(self, signature: Signature, before: int | None) -> int:
        """Return for how many tuples of the signature the decision now made holds.

        Args:
            signature: Whose tuples.
            before: For how many the previous decision held, None for the first one.
        """
        if self._busy is None:
            return min(self._longest, _FIRST_JOIN if before is None else 4 * before)
        now = self._busy()
        spent, self._seen[signature] = now - self._seen.get(signature, now), now
        if before is None:
            return min(self._longest, FIRST_DECISION)
        fitting = DECISION_SECONDS * before / spent if spent > 0 else self._longest
        return round(max(FIRST_DECISION, min(self._longest, DECISION_GROWTH * before, fitting)))
