"""Figures of a run, as they travel from a task back to the user: plain, frozen, JSON on the way."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class ModuleFigures:
    """What one module of one eddy did.

    Attributes:
        name: For example ``SteM(orders)`` or ``Selection(a.x < b.y)``.
        action: ``"scan"``, ``"build"``, ``"probe"``, ``"join"``, ``"lookup"``, ``"select"``, ``"profile"``,
            ``"settle"``, ``"transfer"``, ``"divide"``, ``"output"`` or ``"aggregate"``; under a memory budget
            also ``"write"`` and ``"read"``.
        tuples_in: Tuples sent to the module.
        tuples_out: Tuples it returned.
        calls: Batches sent to it; of an index join's lookups, the bindings that were asked for.
        seconds: Wall time spent in it. What a profile spends counts at each of its predicates too.
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
class StateFigures:
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

    def __add__(self, other: StateFigures) -> StateFigures:
        """Return the sums, under the name of the first."""
        return StateFigures(
            self.name,
            self.tuples + other.tuples,
            self.nbytes + other.nbytes,
            self.inserted + other.inserted,
            self.demoted + other.demoted,
            self.promoted + other.promoted,
            self.evicted + other.evicted,
        )


@dataclass(frozen=True)
class CellFigures:
    """What one cell (one eddy in one task) or one map task of the exchange did.

    Attributes:
        cell: The cell's number; map tasks of the exchange use ``-1``.
        seconds: Wall time from the first pull to the last row.
        modules: Figures per module.
        orders: ``(order, tuples)``: the sequence of modules that source tuples were routed
            through, and how many went that way.
        tuples_routed: Tuples handed to a destination, summed over all routings.
        intermediate_tuples: Tuples made by probes that were not yet results.
        output_tuples: Rows of the result.
        rows_exchanged: Rows that arrived in (or left through) exchanged blocks.
        blocks_exchanged: Number of such blocks.
        bytes_exchanged: Their size in bytes.
        peak_bytes: Peak resident memory of the Python process while the task ran, in bytes; on other
            systems than Linux, since the process began.
        changes: ``(after, order)``: the order that most tuples were sent along from the moment when
            so many tuples had come; for runs with users' predicates.
        state: What SteMs and STAIRs held at the end.
        peak_state: Most tuples that all of them together held at a point of stasis.
        migrated_tuples: Stored tuples that were moved: demoted or promoted.
        recomputed_tuples: Tuples made while state was moved.
        spilled_bytes: Bytes written to files because of a memory budget.
        returned_bytes: Bytes read back from them.
        budget_peak_ratio: The most bytes that tuples, indexes and buffers took at a time, over the memory
            budget; 0 without one.
    """

    cell: int
    seconds: float
    modules: tuple[ModuleFigures, ...] = ()
    orders: tuple[tuple[str, int], ...] = ()
    tuples_routed: int = 0
    intermediate_tuples: int = 0
    output_tuples: int = 0
    rows_exchanged: int = 0
    blocks_exchanged: int = 0
    bytes_exchanged: int = 0
    peak_bytes: int = 0
    changes: tuple[tuple[int, str], ...] = ()
    state: tuple[StateFigures, ...] = ()
    peak_state: int = 0
    migrated_tuples: int = 0
    recomputed_tuples: int = 0
    spilled_bytes: int = 0
    returned_bytes: int = 0
    budget_peak_ratio: float = 0.0

    def to_json(self) -> str:
        """Return the figures as one JSON line."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> CellFigures:
        """Read what :meth:`to_json` wrote."""
        raw = json.loads(text)
        raw["modules"] = tuple(ModuleFigures(**m) for m in raw["modules"])
        raw["orders"] = tuple((order, count) for order, count in raw["orders"])
        raw["state"] = tuple(StateFigures(**s) for s in raw["state"])
        raw["changes"] = tuple((after, order) for after, order in raw["changes"])
        return cls(**raw)
