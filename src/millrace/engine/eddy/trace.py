"""Which orders tuples took and when that changed, and what modules had done by then.

Looked at when decisions are made, never for a batch, and bounded: what is too much is thinned evenly.
"""

from __future__ import annotations

from collections.abc import Sequence

from millrace.engine.eddy.operator import Join, Operator, Probe, Select
from millrace.engine.eddy.statistics import Statistics
from millrace.engine.figures import Change, ModuleTrace, OrderTrace, Shift
from millrace.engine.tuples.batch import Signature

_MOST_CHANGES = 256
"""Changes of order that are kept, over all sources."""

_MOST_SOURCES = 24
"""Sources that are followed. Of tuples of several relations there are fewer: those of one come first."""

_MOST_POINTS = 320
"""Points in time that are kept, over all modules."""

_Known = dict[Operator, tuple[float, float]]
"""Selectivity and cost."""

_Moment = tuple[int, list[tuple[Operator, int, int, float]]]
"""How many tuples had been sent on, and tuples in, out and seconds by operator until then."""


class Trace:
    """Follows the favourite operator of every signature, and what operators have done.

    Args:
        aliases: The block's relations, by number.
        accounts: By signature and operator, and by operator alone.
    """

    def __init__(self, aliases: Sequence[str], accounts: Statistics) -> None:
        self._aliases = aliases
        self._accounts = accounts
        self._favourites: dict[Signature, Operator] = {}
        self._known: dict[Signature, _Known] = {}
        self._operators: dict[Operator, None] = {}
        self._sources: dict[Signature, _Source] = {}
        self._moments: list[_Moment] = []
        self._decisions, self._stride = 0, 1

    def decided(self, signature: Signature, shares: list[tuple[Operator, float]]) -> None:
        """Note a decision."""
        favourite = max(shares, key=lambda pair: pair[1])[0]
        if _begins(signature, favourite):
            source = self._sources.get(signature)
            joined = bool(signature.span & (signature.span - 1))
            if source is None and len(self._sources) < _MOST_SOURCES // (1 + 2 * joined):
                source = self._sources[signature] = _Source(signature)
            if source is not None:
                source.operators.update(dict.fromkeys(operator for operator, _ in shares))
        self._operators.update(dict.fromkeys(o for o, _ in shares if isinstance(o, Select | Probe | Join)))
        if isinstance(favourite, Select | Probe | Join):
            self._favour(signature, favourite)
        if self._decisions % self._stride == 0:
            self._moments.append(self._moment())
            self._thin()
        self._decisions += 1

    def _favour(self, signature: Signature, favourite: Operator) -> None:
        before = self._favourites.get(signature)
        if before is favourite:
            return
        self._favourites[signature] = favourite
        now = {o: (a.selectivity, a.cost) for o in self._operators if (a := self._accounts.get(o)).recent_in}
        then, self._known[signature] = self._known.get(signature, {}), now
        shifts = [] if before is None else [_shift(o, then, now) for o in (before, favourite) if o in now]
        for source in self._sources.values():
            source.note(self._order(source.signature), self._begun(source), tuple(shifts))
            source.thin(_MOST_CHANGES // len(self._sources))

    def _order(self, signature: Signature) -> tuple[str, ...]:
        labels: list[str] = []
        while True:
            operator = self._favourites.get(signature) or self._favourites.get(signature.having(built=True))
            if operator is None:
                return tuple(labels)
            labels.append(operator.label)
            bit = 1 << operator.target
            if isinstance(operator, Select):
                signature = signature.having(done=signature.done | bit)
            elif isinstance(operator, Probe) and operator.done:
                signature = signature.having(done=signature.done | operator.done)
            elif isinstance(operator, Probe):
                signature = signature.having(span=signature.span | bit, built=True)
            else:
                return tuple(labels)  # what a join of STAIRs finds may be of any span

    def _begun(self, source: _Source) -> int:
        return sum(self._accounts.get((source.signature, o)).tuples_in for o in source.operators)

    def _moment(self) -> _Moment:
        """Return what operators have done so far."""
        used = [(o, a) for o in self._operators if (a := self._accounts.get(o)).tuples_in]
        done = [(o, a.tuples_in, a.tuples_out, round(a.seconds, 7)) for o, a in used]
        return sum(map(self._begun, self._sources.values())), done

    def _thin(self) -> None:
        if len(self._moments) * len(self._operators) > _MOST_POINTS:
            del self._moments[::2]
            self._stride *= 2

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
    """The orders of tuples that begin with one signature."""

    def __init__(self, signature: Signature) -> None:
        self.signature = signature
        self.operators: dict[Operator, None] = {}
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
    if not isinstance(favourite, Select | Probe | Join) and signature.built is False:
        return False  # it is built first
    return isinstance(favourite, Join) or not signature.span & (signature.span - 1)


def _shift(operator: Operator, then: _Known, now: _Known) -> Shift:
    selectivity, cost = then.get(operator, (None, None))
    known = now[operator]
    return Shift(operator.label, (selectivity, known[0]), (cost, known[1]))
