"""Figures of a run, as they travel from a task back to the user: plain, frozen, JSON on the way."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, is_dataclass, replace
from functools import cache
from typing import Any, Self, TypeVar, get_args, get_origin, get_type_hints

Kind = TypeVar("Kind")


def read(kind: type[Kind], raw: Mapping[str, Any]) -> Kind:
    """Return a dataclass of what JSON says; names that it lacks are of a newer Millrace, and left out."""
    made: Kind = _reader(kind)(raw)  # type: ignore[arg-type]  # classes are hashable
    return made


@cache
def _reader(kind: Any) -> Callable[[Any], Any]:
    """Return what makes values of a type out of JSON's dictionaries and lists."""
    if isinstance(kind, type) and is_dataclass(kind):
        own = {name: _reader(part) for name, part in get_type_hints(kind).items()}
        return lambda raw: kind(**{n: own[n](value) for n, value in dict(raw).items() if n in own})
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Mapping:
        return lambda raw: {name: _reader(parts[1])(value) for name, value in dict(raw).items()}
    if origin in (tuple, Iterable) and (is_dataclass(parts[0]) or get_origin(parts[0]) is tuple):
        return lambda raw: tuple(map(_reader(parts[0]), raw))
    return tuple if origin is tuple else lambda raw: raw


class Sums:
    """Figures of a dataclass whose numbers are added up; its other fields say of what they are."""

    @property
    def kind(self) -> tuple[Any, ...]:
        """What they are of."""
        return tuple(value for value in vars(self).values() if not isinstance(value, int | float))

    def __add__(self, other: Self) -> Self:
        """Return the sums, of what the first is of."""
        more = vars(other)
        added = {n: v + more[n] if isinstance(v, int | float) else v for n, v in vars(self).items()}
        return type(self)(**added)


Added = TypeVar("Added", bound=Sums)


def summed(figures: Iterable[Added]) -> tuple[Added, ...]:
    """Return the figures of each kind added up, in the order of their first."""
    sums: dict[tuple[Any, ...], Added] = {}
    for one in figures:
        kind = one.kind
        sums[kind] = sums[kind] + one if kind in sums else one
    return tuple(sums.values())


SUMMARIES = ("profile", "partition")
"""Actions whose time counts at other modules too: at predicates, and at an eddy's modules."""


@dataclass(frozen=True)
class ModuleFigures(Sums):
    """What one module of one eddy did.

    Attributes:
        name: For example ``SteM(orders)`` or ``Selection(a.x < b.y)``.
        action: ``"scan"``, ``"build"``, ``"probe"``, ``"join"``, ``"lookup"``, ``"select"``, ``"profile"``,
            ``"settle"``, ``"transfer"``, ``"divide"``, ``"output"`` or ``"aggregate"``; under a memory budget
            also ``"write"``, ``"read"`` and ``"partition"``. ``"prune"`` counts row groups: those seen, and
            those read.
        tuples_in: Tuples sent to the module.
        tuples_out: Tuples it returned.
        calls: Batches sent to it; of an index join's lookups, the bindings that were asked for.
        seconds: Wall time spent in it. Time of ``SUMMARIES`` counts at other modules too.
        evaluated: Rows that a user's predicate was called for, repeated calls included.
        bytes: For ``"write"`` and ``"read"``, tuples that were spilled: their size in the files.
    """

    name: str
    action: str
    tuples_in: int
    tuples_out: int
    calls: int
    seconds: float
    evaluated: int = 0
    bytes: int = 0


@dataclass(frozen=True)
class StateFigures(Sums):
    """What one SteM or STAIR holds at the end of a run, and what went through it.

    Attributes:
        name: For example ``SteM(orders)`` or ``STAIR(orders.o_orderkey)``.
        tuples: Tuples held.
        nbytes: Their memory in bytes, indexes included; base tuples count in their SteM alone.
        inserted: Tuples inserted over the whole run, moved ones included.
        demoted: Tuples replaced by sub-tuples.
        promoted: Tuples replaced by super-tuples.
        evicted: Tuples dropped because their window has passed.
    """

    name: str
    tuples: int
    nbytes: int
    inserted: int = 0
    demoted: int = 0
    promoted: int = 0
    evicted: int = 0


@dataclass(frozen=True)
class JoinFigures(Sums):
    """What tuples of one span found at one join.

    Attributes:
        span: Aliases of the relations in the tuples that were sent there.
        name: The relation whose SteM they probed, or the join's name.
        tuples_in: Tuples sent.
        tuples_out: Tuples that came of them.
    """

    span: tuple[str, ...]
    name: str
    tuples_in: int
    tuples_out: int


@dataclass(frozen=True)
class Shift:
    """What was known of a module when it was last decided about, and what is known now.

    Attributes:
        module: Its label in orders.
        selectivity: Tuples out per tuple in, then and now; None where nothing was known.
        cost: Seconds per tuple in, then and now.
    """

    module: str
    selectivity: tuple[float | None, float]
    cost: tuple[float | None, float]


@dataclass(frozen=True)
class Change:
    """The order that most tuples of a source were sent along from some moment on.

    Attributes:
        after: Tuples of the source that had been sent on by then.
        order: The order, as ``"a → b"``.
        why: The numbers of the module that was favoured before, and of the one that is now; none for the
            first order.
    """

    after: int
    order: str
    why: tuple[Shift, ...] = ()


@dataclass(frozen=True)
class OrderTrace:
    """The orders that were favoured for the tuples of one source, over a cell's run.

    Attributes:
        source: The relations in the tuples when their order begins; mostly one.
        part: Which part of them, from 0, where tuples are divided by their content.
        tuples: Tuples of the source that were sent on in all.
        changes: In the order of time, the first at 0.
    """

    source: str
    part: int
    tuples: int
    changes: tuple[Change, ...]


@dataclass(frozen=True)
class ModuleTrace:
    """What one module had done at some moments of a cell's run; bounded, thinned evenly.

    Attributes:
        module: Its name, as in :class:`ModuleFigures`.
        action: As there.
        points: ``(after, tuples_in, tuples_out, seconds)``: sums up to the moment when ``after`` tuples of
            all sources had been sent on.
    """

    module: str
    action: str
    points: tuple[tuple[int, int, int, float], ...]


@dataclass(frozen=True, kw_only=True)
class Counts:
    """What cells and map tasks count; a report adds it up over them, but for the :data:`LARGEST`.

    Attributes:
        tuples_routed: Tuples handed to a destination, summed over all routings.
        intermediate_tuples: Tuples made by joins that were not yet results.
        output_tuples: Rows of the result.
        rows_exchanged: Rows that arrived in (or left through) exchanged blocks.
        blocks_exchanged: Number of such blocks.
        bytes_exchanged: Their size in bytes.
        peak_bytes: Peak resident memory of the Python process while the task ran, in bytes; on other
            systems than Linux, since the process began.
        peak_state: Most tuples that SteMs and STAIRs together held at a point of stasis.
        migrated_tuples: Stored tuples that were moved: demoted or promoted.
        recomputed_tuples: Tuples made while state was moved.
        spilled_bytes: Bytes written to files because of a memory budget.
        returned_bytes: Bytes read back from them.
        budget_peak_ratio: The most bytes that tuples, indexes and buffers took at a time, over the memory
            budget; 0 without one.
        start_seconds: Start-up of a new worker, and loading of compiled kernels; in no module's time.
    """

    tuples_routed: int = 0
    intermediate_tuples: int = 0
    output_tuples: int = 0
    rows_exchanged: int = 0
    blocks_exchanged: int = 0
    bytes_exchanged: int = 0
    peak_bytes: int = 0
    peak_state: int = 0
    migrated_tuples: int = 0
    recomputed_tuples: int = 0
    spilled_bytes: int = 0
    returned_bytes: int = 0
    budget_peak_ratio: float = 0.0
    start_seconds: float = 0.0


LARGEST = ("peak_bytes", "peak_state", "budget_peak_ratio")
"""Counts of which the most is told, rather than the sum."""


@dataclass(frozen=True)
class CellFigures(Counts):
    """What one cell (one eddy in one task) or one map task of the exchange did.

    Attributes:
        cell: The cell's number; map tasks of the exchange use ``-1``.
        seconds: Wall time from the first pull to the last row.
        modules: Figures per module.
        orders: ``(order, tuples)``: the sequence of modules that source tuples were routed
            through, and how many went that way.
        traces: Which orders were favoured when, by source.
        state: What SteMs and STAIRs held at the end.
        joins: What tuples found at joins, by span.
        readings: What modules had done at some moments.
    """

    cell: int
    seconds: float
    modules: tuple[ModuleFigures, ...] = ()
    orders: tuple[tuple[str, int], ...] = ()
    traces: tuple[OrderTrace, ...] = ()
    state: tuple[StateFigures, ...] = ()
    joins: tuple[JoinFigures, ...] = ()
    readings: tuple[ModuleTrace, ...] = ()

    def __add__(self, other: CellFigures) -> CellFigures:
        """Return what two runs of one cell did, one after the other; the larger state tells what was held.

        Where orders changed within the second run says nothing in tuples of both.
        """
        orders = Counter(dict(self.orders))
        orders.update(dict(other.orders))
        numbers = {n: v + vars(other)[n] for n, v in vars(self).items() if isinstance(v, int | float)}
        for name in (*LARGEST, "start_seconds"):  # that of the task, for both runs
            numbers[name] = max(vars(self)[name], vars(other)[name])
        added: dict[str, Any] = {
            **numbers,
            "cell": self.cell,
            "modules": summed((*self.modules, *other.modules)),
            "joins": summed((*self.joins, *other.joins)),
            "orders": tuple(orders.most_common()),
            "state": max(self.state, other.state, key=lambda state: sum(each.nbytes for each in state)),
            "traces": self.traces or other.traces,
            "readings": self.readings or other.readings,
        }
        return replace(self, **added)

    def to_json(self) -> str:
        """Return the figures as one JSON line."""
        return json.dumps(self, default=vars, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> CellFigures:
        """Read what :meth:`to_json` wrote."""
        return read(cls, json.loads(text))
