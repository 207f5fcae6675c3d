"""The legal operators of a signature, with what is known about each: all that a policy sees."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from millrace.engine.eddy.constraints import Legality
from millrace.engine.eddy.operator import Join, Lookup, Operator, Probe, Profiling, Select
from millrace.engine.eddy.run_statistics import anywhere
from millrace.engine.eddy.statistics import Account, Statistics
from millrace.engine.plan.graph import QueryGraph
from millrace.engine.policies import Candidate
from millrace.engine.tuples.batch import Signature


class Candidates:
    """Puts candidates together.

    Args:
        graph: The block's query graph.
        legality: Knows which operators are legal.
        statistics: What was measured.
        tickets: Returns the tickets that an operator holds; None where operators work at once.
    """

    def __init__(
        self,
        graph: QueryGraph,
        legality: Legality,
        statistics: Statistics,
        tickets: Callable[[Operator], int] | None = None,
    ) -> None:
        self._graph = graph
        self._legality = legality
        self._statistics = statistics
        self._tickets = tickets
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
        if self._tickets is None:
            return found
        return [replace(each, tickets=self._tickets(each.operator)) for each in found]

    def _candidate(self, signature: Signature, operator: Operator, *, alone: bool) -> Candidate:
        account = self._statistics.get((signature, operator))
        if isinstance(operator, Lookup):
            account = Account(1, account.tuples_in)  # what comes back at once is the tuple itself
        known = operator.estimate(signature, alone=alone)
        return Candidate(
            operator,
            known.name,
            account,
            known.guess,
            overall=self._statistics.get(operator) if isinstance(operator, Select) else None,
            profile=self._statistics.profile(signature.span)
            if isinstance(operator, Select | Profiling)
            else None,
            cumulative=known.cumulative,
            anywhere=self._statistics.get(anywhere(signature, operator))
            if isinstance(operator, Probe | Join)
            else None,
        )
