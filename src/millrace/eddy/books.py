"""The eddy's books: what decisions are made from, and what the report is made of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from millrace.eddy.trace import Trace
from millrace.figures import CellFigures, ModuleFigures
from millrace.modules import Destination, Selection
from millrace.peak import peak_memory
from millrace.statistics import Account, Statistics
from millrace.tuples import Signature, TupleBatch


class Books:
    """Books what modules did.

    Args:
        aliases: The block's relations, by number.
        joins: What joins along pairs of relations are called, by the edge's number.
        selections: The block's residual predicates.
        window: Tuples that decisions look back on, roughly.
        traced: Keep which order was favoured when.

    Attributes:
        statistics: Accounts by signature and destination, for selections also by destination alone.
        anywhere: What was measured at each join, whatever the tuples' signature.
        busy: Seconds that modules have worked.
        begun: Tuples that have been routed for the first time.
        intermediate: Tuples made by probes that were not yet results.
        lookups: What lookups are called, by number.
    """

    def __init__(
        self,
        aliases: Sequence[str],
        joins: Sequence[str],
        selections: Sequence[Selection],
        window: int,
        *,
        traced: bool,
    ) -> None:
        self.statistics = Statistics(window)
        self._window = window
        self.anywhere: dict[Destination, Account] = {}
        self.busy = 0.0
        self.begun = 0
        self.intermediate = 0
        self._aliases = aliases
        self._joins = joins
        self.lookups: Sequence[str] = ()
        self._selections = selections
        self._trace = Trace(self.label) if traced else None
        self._orders: Counter[str] = Counter()
        self._routed = 0

    def route(self, batch: TupleBatch) -> None:
        """Book that tuples were handed to a destination."""
        self._routed += batch.size
        if not batch.signature.done:
            self.begun += batch.size

    def visit(
        self, signature: Signature, destination: Destination, tuples_in: int, tuples_out: int, seconds: float
    ) -> None:
        """Book one call of a module."""
        self.busy += seconds
        self.statistics.update((signature, destination), tuples_in, tuples_out, seconds)
        if destination.action in ("probe", "join"):
            account = self.anywhere.get(destination)
            if account is None:
                account = self.anywhere[destination] = Account(self._window)
            account.update(tuples_in, tuples_out, seconds)

    def end(self, batch: TupleBatch) -> None:
        """Book the path of tuples that leave the eddy, as results or because nothing is left of them."""
        self._orders[" → ".join(batch.path)] += batch.origin

    def decided(self, signature: Signature, shares: list[tuple[Destination, float]]) -> None:
        """Book a decision of the policy."""
        if self._trace is not None:
            self._trace.decided(self.begun, signature, shares)

    def label(self, destination: Destination) -> str:
        """Return what a destination is called in orders."""
        if destination.action == "profile":
            return "profile"
        if destination.action in ("select", "settle"):
            return self._selections[destination.target].label
        if destination.action == "join":
            return self._joins[destination.target]
        if destination.action == "lookup":
            return self.lookups[destination.target]
        return self._aliases[destination.target]

    def figures(self, cell: int, seconds: float, output: str, output_tuples: int) -> CellFigures:
        """Return everything booked so far.

        Args:
            cell: The cell's number.
            seconds: Wall time of the run.
            output: What the eddy's output is called.
            output_tuples: Rows of the result.
        """
        totals: dict[tuple[str, str], ModuleFigures] = {}
        for key, account in self.statistics.items():
            if isinstance(key, tuple) and isinstance(key[1], Destination) and key[1].action == "select":
                continue  # booked once more for all signatures together
            name, action = self._describe(key, output)
            old = totals.get((name, action), ModuleFigures(name, action, 0, 0, 0, 0.0))
            totals[name, action] = ModuleFigures(
                name,
                action,
                old.tuples_in + account.tuples_in,
                old.tuples_out + account.tuples_out,
                old.calls + account.calls,
                old.seconds + account.seconds,
                old.evaluated
                + (self._selections[key.target].evaluated if isinstance(key, Destination) else 0),
            )
        return CellFigures(
            cell=cell,
            seconds=seconds,
            modules=tuple(m for m in totals.values() if m.calls),
            orders=tuple((order, count) for order, count in self._orders.most_common() if count),
            changes=self._trace.changes if self._trace is not None else (),
            tuples_routed=self._routed,
            intermediate_tuples=self.intermediate,
            output_tuples=output_tuples,
            peak_bytes=peak_memory(),
        )

    def _describe(self, key: object, output: str) -> tuple[str, str]:
        """Return the module's name and what it did, from the key of its account."""
        match key:
            case ("scan", int(relation)):
                return f"Scan({self._aliases[relation]})", "scan"
            case Destination(action, target):
                return self._selections[target].name, action
            case (Signature(), Destination("profile", _)):
                return "Profile", "profile"
            case (Signature(), Destination("settle", target)):
                return self._selections[target].name, "settle"
            case (Signature(), Destination("lookup", target)):
                return self.lookups[target], "lookup"
            case (Signature(), Destination("join", target)):
                return self._joins[target], "join"
            case (Signature(), Destination(action, target)):
                return f"SteM({self._aliases[target]})", action
            case _:
                return output, "output"
