"""The legal destinations of a signature, with what is known about each: all that a policy sees."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from millrace.eddy.access import AccessModules
from millrace.eddy.books import Books
from millrace.eddy.ready import destinations
from millrace.eddy.state import JoinState
from millrace.graph import QueryGraph
from millrace.modules import Destination
from millrace.policies import Candidate
from millrace.statistics import Account
from millrace.tuples import Signature

_SELECTION_GUESS = 1 / 3
"""Share of tuples a residual predicate is taken to pass before any was seen (System R's guess)."""


class Candidates:
    """Puts candidates together.

    Args:
        graph: The block's query graph.
        state: Knows what joins are expected to return.
        access: Knows how long lookups take.
        books: What was measured.
        tickets: Returns the tickets that a module holds; None where modules work at once.
    """

    def __init__(
        self,
        graph: QueryGraph,
        state: JoinState,
        access: AccessModules,
        books: Books,
        tickets: Callable[[Destination], int] | None = None,
    ) -> None:
        self._graph = graph
        self._state = state
        self._access = access
        self._books = books
        self._tickets = tickets
        self._kept: dict[Signature, list[Candidate]] = {}

    def of(self, signature: Signature) -> list[Candidate]:
        """Return the candidates of a signature; none means that its tuples leave the dataflow."""
        found = self._kept.get(signature)
        if found is None:
            legal = destinations(signature, self._graph, self._state.joins)
            found = [self._candidate(signature, each, alone=len(legal) == 1) for each in legal]
            if signature.span == self._graph.everything and signature.prior is None and signature.built:
                # Predicates alone, legal whatever happens to join state; accounts and profiles are live.
                self._kept[signature] = found
        if self._tickets is None:
            return found
        return [replace(each, tickets=self._tickets(each.destination)) for each in found]

    def _candidate(self, signature: Signature, destination: Destination, *, alone: bool) -> Candidate:
        statistics = self._books.statistics
        account = statistics.get((signature, destination))
        if destination.action in ("probe", "join"):
            known = self._state.outlook(signature, destination, alone=alone)
            return Candidate(
                destination,
                known.name,
                account,
                known.guess,
                cumulative=known.cumulative,
                anywhere=self._books.anywhere.get(destination),
            )
        name = self._books.label(destination)
        if destination.action == "build":
            return Candidate(destination, name, account, 1.0)
        if destination.action == "lookup":
            # What comes back at once is the tuple itself.
            found = Account(1, account.tuples_in)
            return Candidate(
                destination,
                name,
                found,
                self._access.outlook(destination.target, ahead=signature.prior is None),
            )
        overall = statistics.get(destination) if destination.action == "select" else None
        profile = statistics.profile(signature.span)
        return Candidate(destination, name, account, _SELECTION_GUESS, overall, profile)
