"""The legal destinations of a signature, with what is known about each: all that a policy sees."""

from __future__ import annotations

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
    """

    def __init__(self, graph: QueryGraph, state: JoinState, access: AccessModules, books: Books) -> None:
        self._graph = graph
        self._state = state
        self._access = access
        self._books = books

    def of(self, signature: Signature) -> list[Candidate]:
        """Return the candidates of a signature; none means that its tuples leave the dataflow."""
        legal = destinations(signature, self._graph, self._state.joins)
        return [self._candidate(signature, each, alone=len(legal) == 1) for each in legal]

    def _candidate(self, signature: Signature, destination: Destination, *, alone: bool) -> Candidate:
        statistics = self._books.statistics
        account = statistics.get((signature, destination))
        if destination.action in ("probe", "join"):
            known = self._state.outlook(signature, destination, alone=alone)
            return Candidate(destination, known.name, account, known.guess, cumulative=known.cumulative)
        name = self._books.label(destination)
        if destination.action == "build":
            return Candidate(destination, name, account, 1.0)
        if destination.action == "lookup":
            # What comes back at once is the tuple itself.
            found = Account(1, account.tuples_in)
            return Candidate(destination, name, found, self._access.outlook(destination.target))
        overall = statistics.get(destination) if destination.action == "select" else None
        profile = statistics.profile(signature.span)
        return Candidate(destination, name, account, _SELECTION_GUESS, overall, profile)
