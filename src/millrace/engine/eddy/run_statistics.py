"""Run statistics: what decisions are made from, and what the report is made of.

Among it which orders tuples took and when that changed, and what modules had done by then (:class:`Trace`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from operator import itemgetter

from millrace.engine.eddy.operator import JOINS, MODULES, Kind, Operator
from millrace.engine.eddy.statistics import Account, Statistics
from millrace.engine.figures import (
    CellFigures,
    Change,
    JoinFigures,
    ModuleFigures,
    ModuleTrace,
    OrderTrace,
    Shift,
)
from millrace.engine.peak import peak_memory
from millrace.engine.start_up import start_seconds
from millrace.engine.tuples.batch import Merged, Signature, TupleBatch

_MOST_JOINS = 100
"""Pairs of span and join that are told."""

_MOST_CHANGES = 256
"""Changes of order that are kept, over all sources."""

_MOST_SOURCES = 24
"""Sources that are followed. Of tuples of several relations there are fewer: those of one come first."""

_MOST_POINTS = 320
"""Points in time that are kept, over all modules."""

_MOMENTS = 16
"""A point in time is noted when at least one out of so many tuples has been routed since the one before."""

_Known = dict[Operator, tuple[float, float]]
"""Selectivity and cost."""

_Moment = tuple[int, list[tuple[Operator, int, int, float]]]
"""How many tuples had been sent on, and tuples in, out and seconds by operator until then."""


class RunStatistics:
    """Counts what operators did; decisions look back on roughly ``window`` tuples.

    Attributes:
        accounts: By signature and operator, and by operator alone.
        busy: Seconds that operators have worked.
        intermediate: Tuples made by joins that were not yet results.
        routed: Tuples handed to an operator, summed over all routings.
    """

    def __init__(self, aliases: Sequence[str], window: int) -> None:
        self.accounts = Statistics(window)
        self.busy = 0.0
        self.intermediate = 0
        self.routed = 0
        self._aliases = aliases
        self._trace = Trace(aliases, self.accounts)
        self._booked: dict[tuple[Signature, Operator], tuple[Account, ...]] = {}
        self._orders: Counter[str] = Counter()

    def visit(
        self, signature: Signature, operator: Operator, tuples_in: int, tuples_out: int, seconds: float
    ) -> None:
        """Count one step of an operator. Predicates count themselves, without the work around them."""
        self.busy += seconds
        accounts = self._booked.get((signature, operator))
        if accounts is None:
            keys: list[Hashable] = [(signature, operator)]
            if operator.kind is not Kind.SELECT:
                keys.append(operator)
            if operator.kind in JOINS:
                keys.append(anywhere(signature, operator))
            accounts = self._booked[signature, operator] = tuple(map(self.accounts.get, keys))
        for account in accounts:
            account.update(tuples_in, tuples_out, seconds)

    def end(self, batch: TupleBatch) -> None:
        """Count the path of tuples that leave the eddy, as results or because nothing is left of them."""
        for path, count in _walked(batch.path, batch.origin):
            self._orders[" → ".join(path)] += count

    def note_decision(self, signature: Signature, shares: Sequence[tuple[Operator, float]]) -> None:
        self._trace.note_decision(signature, shares, self.routed)

    def figures(self, cell: int, seconds: float, output: str, output_tuples: int) -> CellFigures:
        """Return everything counted so far.

        ``seconds`` is the run's wall time, and ``output`` is what its output is called.
        """
        totals: dict[tuple[str, str], ModuleFigures] = {}
        for key, account in self.accounts.items():
            if not account.calls or (described := self._described(key, output)) is None:
                continue
            name, action, evaluated = described
            done = account.tuples_in, account.tuples_out, account.calls, account.seconds, evaluated
            own, old = ModuleFigures(name, action, *done), totals.get((name, action))
            totals[name, action] = own if old is None else old + own
        return CellFigures(
            cell=cell,
            seconds=seconds,
            modules=tuple(totals.values()),
            orders=tuple((order, count) for order, count in self._orders.most_common() if count),
            traces=self._trace.orders(),
            tuples_routed=self.routed,
            intermediate_tuples=self.intermediate,
            output_tuples=output_tuples,
            peak_bytes=peak_memory(),
            start_seconds=start_seconds(),
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
                case (Signature(span), Operator(kind=Kind.PROBE | Kind.JOIN) as operator) if account.calls:
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


def believe(
    accounts: Statistics,
    signature: Signature,
    joins: Iterable[Operator],
    relation: int,
    tuples: int,
    matches: int,
) -> None:
    """Book at joins with a relation, for all signatures that find alike, what is known without a probe."""
    for operator in joins:
        if operator.kind is Kind.PROBE and operator.target == relation:
            accounts.update(anywhere(signature, operator), tuples, matches, 0.0)


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


class Trace:
    """Follows the favourite operator of every signature, and what operators have done.

    Looked at when decisions are made, never for a batch, and bounded: what is too much is thinned evenly.
    """

    def __init__(self, aliases: Sequence[str], accounts: Statistics) -> None:
        self._aliases = aliases
        self._accounts = accounts
        self._favourites: dict[Signature, Operator] = {}
        self._known: dict[Signature, _Known] = {}
        self._operators: dict[Operator, None] = {}
        self._sources: dict[Signature, _Source] = {}
        self._moments: list[_Moment] = []
        self._due = self._interval = 1

    def note_decision(
        self, signature: Signature, shares: Sequence[tuple[Operator, float]], routed: int
    ) -> None:
        """Note a decision, made after so many tuples were routed."""
        favourite = shares[0][0] if len(shares) == 1 else max(shares, key=itemgetter(1))[0]
        if len(shares) > 1 or self._favourites.get(signature) is not favourite:
            self._note(signature, favourite, [operator for operator, _ in shares])
        if routed >= self._due:
            self._moments.append(self._moment())
            if len(self._moments) * len(self._operators) > _MOST_POINTS:
                del self._moments[::2]
                self._interval *= 2
            self._due = routed + max(self._interval, routed // _MOMENTS)

    def _note(self, signature: Signature, favourite: Operator, operators: Sequence[Operator]) -> None:
        if _begins(signature, favourite):
            source = self._sources.get(signature)
            joined = bool(signature.span & (signature.span - 1))
            if source is None and len(self._sources) < _MOST_SOURCES // (1 + 2 * joined):
                source = self._sources[signature] = _Source(signature)
            if source is not None:
                source.operators.update(dict.fromkeys(operators))
        self._operators.update(dict.fromkeys(o for o in operators if o.kind in MODULES))
        if favourite.kind in MODULES and self._favourites.get(signature) is not favourite:
            self._favour(signature, favourite)

    def _favour(self, signature: Signature, favourite: Operator) -> None:
        """Note another favourite, and why, where orders pass: what was known when it changed there last."""
        before, self._favourites[signature] = self._favourites.get(signature), favourite
        sources = [source for source in self._sources.values() if signature in source.passed]
        if not sources:
            return
        now = {o: (a.selectivity, a.cost) for o in self._operators if (a := self._accounts.get(o)).recent_in}
        then, self._known[signature] = self._known.get(signature, {}), now
        shifts = [] if before is None else [_shift(o, then, now) for o in (before, favourite) if o in now]
        for source in sources:
            source.note(self._order(source), self._begun(source), tuple(shifts))
            source.thin(_MOST_CHANGES // len(self._sources))

    def _order(self, source: _Source) -> tuple[str, ...]:
        """Return what operators tuples of a source go through, and note which signatures they have there."""
        labels: list[str] = []
        signature = source.signature
        source.passed.clear()
        while True:
            built = signature if signature.built else signature.having(built=True)
            source.passed.update((signature, built))
            operator = self._favourites.get(signature) or self._favourites.get(built)
            if operator is None:
                return tuple(labels)
            labels.append(operator.label)
            if operator.done:
                signature = signature.having(done=signature.done | operator.done)
            elif operator.kind is Kind.PROBE:
                signature = signature.having(span=signature.span | 1 << operator.target, built=True)
            else:
                return tuple(labels)  # what a join of STAIRs finds may be of any span

    def _begun(self, source: _Source) -> int:
        return sum(self._accounts.get((source.signature, o)).tuples_in for o in source.operators)

    def _moment(self) -> _Moment:
        """Return what operators have done so far."""
        used = [(o, a) for o in self._operators if (a := self._accounts.get(o)).tuples_in]
        done = [(o, a.tuples_in, a.tuples_out, round(a.seconds, 7)) for o, a in used]
        return sum(map(self._begun, self._sources.values())), done

    def orders(self) -> tuple[OrderTrace, ...]:
        """Return which orders were favoured when; sources of one order as well."""
        traces: list[OrderTrace] = []
        for source in self._sources.values():
            if source.changes and (begun := self._begun(source)):
                name = self._named(source.signature)
                part = sum(each.source == name for each in traces)
                changes = tuple(Change(after, " → ".join(o), why) for after, o, why in source.changes)
                traces.append(OrderTrace(name, part, begun, changes))
        return tuple(traces)

    def _named(self, signature: Signature) -> str:
        return " ⋈ ".join(alias for i, alias in enumerate(self._aliases) if signature.span >> i & 1)

    def readings(self) -> tuple[ModuleTrace, ...]:
        """Return what modules had done at the moments that were kept, and have done now."""
        points: dict[Operator, list[tuple[int, int, int, float]]] = {}
        for after, done in (*self._moments, self._moment()):
            for operator, tuples_in, tuples_out, seconds in done:
                points.setdefault(operator, []).append((after, tuples_in, tuples_out, seconds))
        return tuple(ModuleTrace(o.name, o.action, tuple(found)) for o, found in points.items())


class _Source:
    """The orders of tuples that begin with one signature; ``passed`` are those of the latest order."""

    def __init__(self, signature: Signature) -> None:
        self.signature = signature
        self.operators: dict[Operator, None] = {}
        self.passed = {signature}
        self.changes: list[tuple[int, tuple[str, ...], tuple[Shift, ...]]] = []
        self._seen, self._stride = 0, 1

    def note(self, order: tuple[str, ...], after: int, why: tuple[Shift, ...]) -> None:
        """Keep an order, if it is another."""
        if not order:
            return
        if self.changes and order[: len(self.changes[-1][1])] == self.changes[-1][1]:
            since, _, before = self.changes[-1]
            self.changes[-1] = since, order, before  # the same order, of which more is known now
            return
        # Pairs are kept and left out, so that what goes to and fro still does.
        if self._seen % (2 * self._stride) < 2:
            self.changes.append((after, order, why if self.changes else ()))
        self._seen += 1

    def thin(self, most: int) -> None:
        """Leave out changes until there are at most so many, four at least."""
        while len(self.changes) > max(4, most):
            self.changes = [each for place, each in enumerate(self.changes) if place % 4 < 2]
            self._stride *= 2


def _begins(signature: Signature, favourite: Operator) -> bool:
    """Whether an order begins with tuples of that signature."""
    if signature.done or signature.raised or signature.asked or signature.prior is not None:
        return False
    if favourite.kind not in MODULES and not signature.built:
        return False  # it is built first
    return favourite.kind is Kind.JOIN or not signature.span & (signature.span - 1)


def _shift(operator: Operator, then: _Known, now: _Known) -> Shift:
    selectivity, cost = then.get(operator, (None, None))
    known = now[operator]
    return Shift(operator.label, (selectivity, known[0]), (cost, known[1]))
