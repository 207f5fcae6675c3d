"""Lowest cumulative selectivity first: where intermediate tuples are kept, look at where a join leads.

The routing policy for EddyJoins and STAIRs in Deshpande & Hellerstein 2004, section 4.1: of the joins that a
tuple could go to, the one that leaves the fewest tuples after everything that lies behind it. Greedy,
join by join, would put state into places that later tuples pay for. Estimates come from samples of keys
(:mod:`millrace.engine.stairs.fanout`), so nothing is explored: a tuple sent elsewhere to learn something
would become state there.

It loses where selectivities of independent joins do not multiply, and where the stored part of a relation is
small and unlike what is still to come.

Predicates go before a join when that costs less: with ``c`` seconds for a predicate that passes a share
``s``, and ``j`` seconds for a join that makes ``f`` tuples of one, before is ``c + s j`` and behind is
``j + f c``.
"""

from __future__ import annotations

from collections.abc import Sequence

from millrace.engine.eddy.operator import Kind, Operator
from millrace.engine.policies.base import Candidate, Decision, Policy, modules_of
from millrace.engine.policies.simple import UNMEASURED, Greedy, Rank
from millrace.engine.tuples.batch import Signature

MARGIN = 1.25
"""How many times more work the present join must mean before another replaces it, counting a tuple sent and
the tuples that come of it. Samples know fan-outs to some 5 %; ties between three such estimates are then
upset a few times in a thousand decisions at most, and staying loses less than that."""


class Cumulative(Policy):
    """Sends all tuples of a signature to one operator, and changes it only if that is worth it."""

    def __init__(self) -> None:
        self._present: dict[Signature, Operator] = {}
        self._greedy, self._rank = Greedy(), Rank()

    def choose(self, signature: Signature, candidates: Sequence[Candidate]) -> Decision:
        """Return the join of the lowest cumulative selectivity, or a predicate that is cheaper before it."""
        candidates = modules_of(candidates)
        if any(c.operator.kind is Kind.BUILD for c in candidates):
            return self._greedy.choose(signature, candidates)
        selections = [c for c in candidates if c.operator.kind is Kind.SELECT]
        joins = [c for c in candidates if c.operator.kind is not Kind.SELECT]
        join = self._join(signature, joins) if joins else None
        first = [c for c in selections if join is None or _belongs_before(c, join)]
        chosen = min(first, key=self._rank.score, default=join)
        assert chosen is not None
        return Decision.of(chosen)

    def _join(self, signature: Signature, joins: Sequence[Candidate]) -> Candidate:
        """Return the best join; the present one unless another is better by the margin."""
        best = min(joins, key=lambda c: (fanout(c), c.operator.target))
        present = next((c for c in joins if c.operator == self._present.get(signature)), best)
        if 1 + fanout(present) > MARGIN * (1 + fanout(best)):
            present = best
        self._present[signature] = present.operator
        return present


def fanout(join: Candidate) -> float:
    """Return the cumulative selectivity; where no sample tells it, what is known of the join alone."""
    return join.selectivity if join.cumulative is None else join.cumulative


def _belongs_before(selection: Candidate, join: Candidate) -> bool:
    """Whether a predicate costs less before the join. One that was never called is, to be known."""
    measured, made = selection.measured, fanout(join)
    if not measured.recent_in:
        return True
    joining = (join.measured.cost or UNMEASURED) + made * UNMEASURED
    return measured.cost * (1 - made) <= (1 - measured.selectivity) * joining
