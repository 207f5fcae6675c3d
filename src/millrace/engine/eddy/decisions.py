"""Decisions: what may be chosen for a signature, what a policy chose, and for how many tuples that holds.

Deshpande 2004, section 2.1.4: decisions are made for a signature, not for a tuple, and kept for some
tuples. A decision may split the tuples; the split is exact over time, also when batches hold a single
tuple.

Decisions are renewed every so many tuples. Joins cost about the same for every tuple, so there the first
decisions, made on little knowledge, are short and each later one is four times longer, or sixteen times if
it says the same. Users' predicates cost anything from nanoseconds to seconds: there a decision holds for a
stretch of work, measured in seconds. One that said what the one before it said is kept until deciding again
costs next to nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from millrace.engine.eddy.constraints import Legality
from millrace.engine.eddy.operator import JOINS, Estimate, Kind, Operator
from millrace.engine.eddy.run_statistics import anywhere
from millrace.engine.eddy.statistics import Account, Statistics
from millrace.engine.plan.graph import QueryGraph
from millrace.engine.policies.base import (
    DECISION_GROWTH,
    DECISION_SECONDS,
    FIRST_DECISION,
    KNOWN,
    Candidate,
    Decision,
    Policy,
)
from millrace.engine.tuples.batch import Signature, TupleBatch
from millrace.errors import RoutingError
from millrace.limits.clock import Clock

_FOREVER = 1 << 62

_PIECE = (16, 1 / 16)
_COARSE = (1024, 1 / 4)
_WHOLE = (_FOREVER, 1.0)
"""Tuples, or share of what is routed together, that are worth a piece of their own; the others where a policy
is content with that."""

_FIRST_JOIN, _GROWTH = 1024, (4, 16)
"""Tuples that the first decision for a signature holds for where there are only joins, and how many times as
long each later one does, and one that says the same: a decision costs what probing some thousand tuples does.
"""

_DECIDING, _LONGER, _NOTICED = 1 / 100, 4, 131_072
"""Share of the time that deciding may take where it says the same again and again; how often such a decision
is kept at most, and for how many tuples: what changes is to be noticed soon, and no later than by default."""

_ALIKE = 1 / 64
"""Shares of an operator that say the same: what is explored varies."""

_STEADIEST = 8
"""How many times as long decisions about users' predicates hold, at most, once they say the same each time.

A call has a cost of its own, up to a millisecond: caches are cold behind a function that worked for long.
"""


class Candidates:
    """Finds the legal operators of a signature, with what is known about each: all that a policy sees."""

    def __init__(self, graph: QueryGraph, legality: Legality, statistics: Statistics) -> None:
        self._graph, self._legality, self._statistics = graph, legality, statistics
        self._kept: dict[Signature, list[Candidate]] = {}

    def of(self, signature: Signature) -> list[Candidate]:
        """Return the candidates of a signature; none means that its tuples leave the dataflow."""
        found = self._kept.get(signature)
        if found is None:
            legal = self._legality.of(signature)
            found = [self._candidate(signature, each, alone=len(legal) == 1) for each in legal]
            if signature.span == self._graph.everything and signature.prior is None and signature.built:
                # Predicates alone, legal whatever happens to join state; accounts and profiles are live.
                self._kept[signature] = found
        return found

    def _candidate(self, signature: Signature, operator: Operator, *, alone: bool) -> Candidate:
        kind, statistics = operator.kind, self._statistics
        account = statistics.get((signature, operator))
        if kind is Kind.LOOKUP:
            account = Account(1, account.tuples_in)  # what comes back at once is the tuple itself
        # Guesses take time. Where nothing else is legal, or enough was measured, nobody asks for them.
        is_known = alone or (kind is Kind.PROBE and account.recent_in >= KNOWN)
        known = Estimate(operator.label, operator.guess) if is_known else operator.estimate(signature)
        return Candidate(
            operator,
            known.name,
            account,
            known.guess,
            overall=statistics.get(operator) if kind is Kind.SELECT else None,
            profile=statistics.profile(signature.span) if kind in (Kind.SELECT, Kind.PROFILE) else None,
            cumulative=known.cumulative,
            anywhere=statistics.get(anywhere(signature, operator)) if kind in JOINS else None,
        )


@dataclass(slots=True)
class _Entry:
    """A decision in force, with the smallest share first, and for how many tuples it was made.

    ``left`` is for how many more it holds, ``alone`` the operator of all of them if it is one. ``owed`` is
    what each operator has coming to it from rounding; it outlives the decision. It is the ``repeated``-th in
    a row that says the same. ``longer`` says how often it may be kept although it has run out; it was made at
    the time ``since``, and that took so many ``seconds``.
    """

    decision: Decision
    lasts: int
    left: int
    alone: Operator | None
    owed: dict[Operator, float]
    repeated: int = 1
    since: float = 0.0
    seconds: float = 0.0
    longer: int = 0


class RoutingTable:
    """Maps signatures to operators.

    ``entries`` are the decisions in force; by one that is for all of a batch the eddy sends it by itself.

    Args:
        longest: Tuples after which decisions are renewed, ``Options.reoptimize_every``. A decision that holds
            for so many is not cut short in the middle of a batch, unless it splits a batch of more than that.
            A shorter one that splits nothing, or coarsely, may hold for twice as many, to end with a batch.
        note: Told of every decision, with the smallest share first.
        busy: Returns the seconds that modules have worked so far; None without users' predicates.
        clock: What the time that decisions take is measured by; None to renew them whatever that is.
    """

    def __init__(
        self,
        policy: Policy,
        candidates: Callable[[Signature], list[Candidate]],
        longest: int,
        note: Callable[[Signature, Sequence[tuple[Operator, float]]], None] = lambda *_: None,
        busy: Callable[[], float] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._policy, self._candidates, self._note = policy, candidates, note
        self._longest = longest
        self._busy, self._clock = busy, clock
        self._seen: dict[Signature, float] = {}
        self.entries: dict[Signature, _Entry] = {}

    def route(self, batch: TupleBatch) -> tuple[list[tuple[Operator, TupleBatch]], TupleBatch | None]:
        """Return the batch's pieces with their operators, and what is to be routed later.

        There is a rest when the decision ends within the batch: the pieces come first, so that
        the next decision knows what became of them. No pieces and no rest: the tuples leave the
        dataflow.

        Raises:
            RoutingError: The policy named an operator that is not legal, or shares that do not
                sum to 1.
        """
        entry = self.entries.get(batch.signature)
        if entry is None or (entry.left <= 0 and not self.lasts_longer(entry)):
            entry = self.entries[batch.signature] = self._decide(batch.signature, entry)
        return self._pieces(entry, batch) if entry.decision.shares else ([], None)

    def _pieces(
        self, entry: _Entry, batch: TupleBatch
    ) -> tuple[list[tuple[Operator, TupleBatch]], TupleBatch | None]:
        size = batch.size
        if self._cuts(entry, size):
            size = min(size, entry.left)
        entry.left -= size
        shares = entry.decision.shares
        if len(shares) == 1 and size == batch.size:
            return [(shares[0][0], batch)], None
        pieces = []
        low = 0
        for (operator, _), high in zip(shares, _bounds(entry, size), strict=True):
            if high > low:
                pieces.append((operator, batch.cut(low, high)))
                low = high
        return pieces, batch.cut(size, batch.size) if size < batch.size else None

    def _cuts(self, entry: _Entry, size: int) -> bool:
        """Whether a decision ends within a batch of that size rather than with it: pieces cost, too."""
        decision = entry.decision
        if entry.lasts >= self._longest:
            return len(decision.shares) > 1 and size > self._longest
        split = len(decision.shares) > 1 and not decision.coarse
        return split or decision.hold is not None or size > 2 * entry.left

    def clear(self) -> None:
        """Forget all decisions: other operators are legal now."""
        self.entries.clear()

    def _decide(self, signature: Signature, before: _Entry | None) -> _Entry:
        began = 0.0 if self._clock is None else self._clock.now()
        candidates = self._candidates(signature)
        decision = Decision(())
        if len(candidates) == 1:
            decision = Decision.of(candidates[0])
        elif candidates:
            decision = ask(self._policy, signature, candidates)
        shares = decision.shares
        repeated = 1 if before is None or not _repeats(decision, before.decision) else before.repeated + 1
        if shares:
            self._note(signature, shares)
        if len(candidates) < 2:
            lasts = _FOREVER  # until other operators are legal, when all decisions are forgotten
        else:
            lasts = self._longest  # predicates that take no time: a piece costs more than a poor first order
            if not decision.whole or self._busy is not None:
                lasts = self._lasting(signature, before, repeated)
            lasts = min(lasts, decision.hold or lasts)
        alone = shares[0][0] if len(shares) == 1 else None
        entry = _Entry(decision, lasts, lasts, alone, {} if before is None else before.owed, repeated)
        if self._clock is not None and repeated > 1 and lasts == self._longest and self._busy is None:
            entry.since, entry.longer = self._clock.now(), min(_LONGER, _NOTICED // self._longest - 1)
            entry.seconds = entry.since - began
        return entry

    def _lasting(self, signature: Signature, before: _Entry | None, repeated: int) -> int:
        """Return for how many tuples the decision now made holds, the ``repeated``-th that says the same."""
        if self._busy is None:
            if before is None:
                return min(self._longest, _FIRST_JOIN)
            return min(self._longest, before.lasts * _GROWTH[repeated > 1])
        now = self._busy()
        spent, self._seen[signature] = now - self._seen.get(signature, now), now
        if before is None:
            return min(self._longest, FIRST_DECISION)
        seconds = DECISION_SECONDS * min(repeated, _STEADIEST)
        fitting = seconds * before.lasts / spent if spent > 0 else self._longest
        return round(max(FIRST_DECISION, min(self._longest, DECISION_GROWTH * before.lasts, fitting)))

    def lasts_longer(self, entry: _Entry, size: int = 1) -> bool:
        """Renew a decision for so many tuples if making it took long beside what was done since; tell so."""
        if entry.longer <= 0 or entry.lasts < size or self._clock is None:
            return False
        if _DECIDING * (self._clock.now() - entry.since) >= entry.seconds:
            return False
        entry.longer -= 1
        entry.left = entry.lasts
        return True


def _repeats(decision: Decision, before: Decision) -> bool:
    """Whether a decision says what the one before said, and no certain number of tuples is to go on."""
    if not (decision.shares and before.shares) or decision.hold is not None:
        return False
    if len(decision.shares) > 1 and not decision.coarse:
        return False
    (was, share), (now, more) = before.shares[-1], decision.shares[-1]
    return was is now and abs(more - share) <= _ALIKE


def _bounds(entry: _Entry, size: int) -> list[int]:
    """Cut ``size`` tuples so that every operator gets its share in the long run.

    A piece costs the eddy the same whatever its size, so a small share waits until it makes a piece.
    """
    decision = entry.decision
    tuples, share_of_all = _WHOLE if decision.whole else _COARSE if decision.coarse else _PIECE
    least = min(tuples, size * share_of_all)
    bounds = []
    given = 0
    for i, (operator, share) in enumerate(decision.shares):
        owed = entry.owed.get(operator, 0.0) + share * size
        last = i == len(decision.shares) - 1
        count = size - given if last else min(size - given, max(0, round(owed)))
        count = 0 if not last and count < least else count
        entry.owed[operator] = owed - count
        given += count
        bounds.append(given)
    return bounds


def ask(policy: Policy, signature: Signature, candidates: Sequence[Candidate]) -> Decision:
    """Ask a policy and check its answer; the smallest share comes first.

    Raises:
        RoutingError: It returned no Decision, or named an operator that is not legal, or one twice, or shares
            that are negative or do not sum to 1, or held for less than one tuple.
    """
    name = type(policy).__name__
    decision = policy.choose(signature, candidates)
    if not isinstance(decision, Decision):
        raise RoutingError(
            f"policy {name} decided {decision!r}; expected a Decision, such as Decision.of(candidates[0])"
        )
    shares = decision.shares
    legal = {c.operator for c in candidates}
    for operator, _ in shares:
        if operator not in legal:
            raise RoutingError(
                f"policy {name} sent tuples of {signature} to {operator}; legal operators "
                f"are {sorted(map(str, legal))}"
            )
    hold: Any = decision.hold  # a user may say anything
    if len({operator for operator, _ in shares}) < len(shares) or (
        hold is not None and (not isinstance(hold, int) or hold < 1)
    ):
        raise RoutingError(
            f"policy {name} decided {decision}; expected each operator once, and hold to be a number of "
            "tuples, at least 1, or None"
        )
    whole = sum(share for _, share in shares)
    if not abs(whole - 1) <= 1e-9 or any(s < 0 for _, s in shares):  # NaN is not 1 either
        raise RoutingError(f"policy {name} gave shares {list(shares)} that do not sum to 1")
    if len(shares) == 1:
        return decision
    # The smallest share goes first, so that rounding never lets it take the whole of a batch.
    return replace(decision, shares=tuple(sorted(shares, key=lambda pair: pair[1])))
