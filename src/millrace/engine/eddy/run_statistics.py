"""Run statistics: what decisions are made from, and what the report is made of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence

from millrace.engine.eddy.operator import Join, Operator, Probe, Select
from millrace.engine.eddy.statistics import Account, Statistics
from millrace.engine.eddy.trace import Trace
from millrace.engine.figures import CellFigures, JoinFigures, ModuleFigures
from millrace.engine.peak import peak_memory
from millrace.engine.tuples.batch import Merged, Signature, TupleBatch

_MOST_JOINS = 100
"""Pairs of span and join that are told."""


class RunStatistics:
    """Counts what operators did.

    Args:
        aliases: The block's relations, by number.
        window: Tuples that decisions look back on, roughly.

    Attributes:
        accounts: By signature and operator, and by operator alone.
        busy: Seconds that operators have worked.
        intermediate: Tuples made by joins that were not yet results.
    """

    def __init__(self, aliases: Sequence[str], window: int) -> None:
        self.accounts = Statistics(window)
        self.busy = 0.0
        self.intermediate = 0
        self._aliases = aliases
        self._trace = Trace(aliases, self.accounts)
        self._booked: dict[tuple[Signature, Operator], tuple[Account, ...]] = {}
        self._orders: Counter[str] = Counter()
        self._routed = 0

    def route(self, batch: TupleBatch) -> None:
        """Count tuples that were handed to an operator."""
        self._routed += batch.size

    def visit(
        self, signature: Signature, operator: Operator, tuples_in: int, tuples_out: int, seconds: float
    ) -> None:
        """Count one step of an operator. Predicates count themselves, without the work around them."""
        self.busy += seconds
        accounts = self._booked.get((signature, operator))
        if accounts is None:
            keys: list[Hashable] = [(signature, operator)]
            if not isinstance(operator, Select):
                keys.append(operator)
            if isinstance(operator, Probe | Join):
                keys.append(anywhere(signature, operator))
            accounts = self._booked[signature, operator] = tuple(map(self.accounts.get, keys))
        for account in accounts:
            account.update(tuples_in, tuples_out, seconds)

    def end(self, batch: TupleBatch) -> None:
        """Count the path of tuples that leave the eddy, as results or because nothing is left of them."""
        for path, count in _walked(batch.path, batch.origin):
            self._orders[" → ".join(path)] += count

    def decided(self, signature: Signature, shares: list[tuple[Operator, float]]) -> None:
        """Note a decision of the policy."""
        self._trace.decided(signature, shares)

    def figures(self, cell: int, seconds: float, output: str, output_tuples: int) -> CellFigures:
        """Return everything counted so far.

        Args:
            cell: The cell's number.
            seconds: Wall time of the run.
            output: What the output is called.
            output_tuples: Rows of the result.
        """
        totals: dict[tuple[str, str], ModuleFigures] = {}
        for key, account in self.accounts.items():
            if not account.calls or (described := self._described(key, output)) is None:
                continue
            name, action, evaluated = described
            old = totals.get((name, action), ModuleFigures(name, action, 0, 0, 0, 0.0))
            totals[name, action] = _added(old, account, evaluated)
        return CellFigures(
            cell=cell,
            seconds=seconds,
            modules=tuple(totals.values()),
            orders=tuple((order, count) for order, count in self._orders.most_common() if count),
            traces=self._trace.orders(),
            tuples_routed=self._routed,
            intermediate_tuples=self.intermediate,
            output_tuples=output_tuples,
            peak_bytes=peak_memory(),
            joins=self._joins(),
            readings=self._trace.readings(),
        )

    def take_orders(self) -> tuple[tuple[str, int], ...]:
        """Return the paths that were counted since this was last asked, and begin anew.

        A run may never end.
        """
        taken = tuple((order, count) for order, count in self._orders.most_common() if order and count)
        self._orders.clear()
        return taken

    def _joins(self) -> tuple[JoinFigures, ...]:
        """Return what tuples found at joins, by span, the most travelled first."""
        counts: dict[tuple[int, str], list[int]] = {}
        for key, account in self.accounts.items():
            match key:
                case (Signature(span), Probe() | Join() as operator) if account.calls:
                    both = counts.setdefault((span, operator.label), [0, 0])
                    both[0] += account.tuples_in
                    both[1] += account.tuples_out
        most = sorted(counts.items(), key=lambda item: -item[1][0])[:_MOST_JOINS]
        return tuple(
            JoinFigures(tuple(a for i, a in enumerate(self._aliases) if span >> i & 1), name, *both)
            for (span, name), both in most
        )

    def _described(self, key: object, output: str) -> tuple[str, str, int] | None:
        """Return a module's name, what it did and the calls of its function; None for a part of that."""
        match key:
            case Operator():
                return key.name, key.action, key.evaluated
            case ("scan", int(relation)):
                return f"Scan({self._aliases[relation]})", "scan", 0
            case "output":
                return output, "output", 0
        return None


def anywhere(signature: Signature, operator: Operator) -> Hashable:
    """Return the key of a join's account for all signatures whose tuples find alike there."""
    return "anywhere", operator, operator.asking(signature)


def _walked(path: tuple[str, ...], count: int) -> Iterator[tuple[tuple[str, ...], int]]:
    """Yield the paths of source tuples: of a merged one, in proportion to what came together."""
    if not count or not path or not isinstance(path[0], Merged):
        yield path, count
        return
    whole = sum(each for _, each in path[0].paths)
    given = passed = 0
    for before, each in path[0].paths:
        passed += each
        share = count * passed // whole - given if whole else 0
        given += share
        yield from _walked((*before, *path[1:]), share)


def _added(figures: ModuleFigures, account: Account, evaluated: int) -> ModuleFigures:
    return ModuleFigures(
        figures.name,
        figures.action,
        figures.tuples_in + account.tuples_in,
        figures.tuples_out + account.tuples_out,
        figures.calls + account.calls,
        figures.seconds + account.seconds,
        figures.evaluated + evaluated,
    )
