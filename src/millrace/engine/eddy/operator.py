"""Operators: whatever tuples can be sent to. Routing policies tell their kinds apart, and nothing more.

An operator works in steps, so that no output outgrows a batch: ``start`` takes a batch, ``step`` does a part
of the work, and what is left of it can wait in the eddy's buffer. An operator is made once for a run and is
equal to itself alone; accounts and decisions are kept by it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from millrace.engine.tuples.batch import Signature, TupleBatch


@dataclass(frozen=True, slots=True)
class Estimate:
    """What is known of an operator before tuples of some signature were sent there.

    Attributes:
        name: What it leads to: a relation's alias, or a predicate's label.
        guess: Expected tuples out per tuple in.
        cumulative: For a join, the expected tuples per tuple after joining with everything behind it, where
            that is known.
    """

    name: str
    guess: float
    cumulative: float | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """What one step of an operator came to.

    Attributes:
        batches: What comes back, to be routed on; an empty batch ends the path of the tuples it was made of.
        tuples_out: Tuples that it returned, each once, whatever ``batches`` make of them.
        rest: What ``step`` goes on with; None when the batch is done.
    """

    batches: Sequence[TupleBatch]
    tuples_out: int
    rest: Any = None


class Operator(ABC):
    """A module with what it does to tuples.

    Args:
        target: The number of the relation, lookup, predicate, or edge of the spanning tree.
        name: The module in reports, such as ``SteM(orders)``.
        label: Its place in the order of operators that a tuple visited.

    Attributes:
        action: What it does, in reports.
        queued: Whether tuples may have to wait for its turn (back-pressure).
        evaluated: Rows that a user's function was called for.
    """

    action: ClassVar[str]
    queued: ClassVar[bool] = True
    evaluated: int = 0

    def __init__(self, target: int, name: str, label: str) -> None:
        self.target = target
        self.name = name
        self.label = label

    @property
    def place(self) -> tuple[str, int]:
        """What the same operator of another run has too."""
        return self.action, self.target

    def __repr__(self) -> str:
        """Return the same text in every task: what was learned is passed on by it."""
        return f"{self.action} {self.name} {self.target}"

    def estimate(self, signature: Signature, *, alone: bool) -> Estimate:
        """Return what is to be expected; ``alone``: nothing else is legal, so nobody asks for numbers."""
        return Estimate(self.label, 1.0)

    def asking(self, signature: Signature) -> Hashable:
        """Return what of a signature decides what is found here: tuples that agree in it find alike."""
        return self.target

    def due(self, batch: TupleBatch) -> float | None:
        """Return until when it has to wait before it can take the batch, in seconds of the clock, or None."""
        return None

    def start(self, batch: TupleBatch) -> Any:
        """Begin to work on a batch; returns what :meth:`step` takes."""
        return batch

    @abstractmethod
    def step(self, work: Any, limit: int) -> Step:
        """Do a part of the work that makes about ``limit`` tuples at most."""


class Build(Operator):
    """Keeps base tuples of a relation, and bounces them back."""

    action = "build"
    queued = False


class Probe(Operator):
    """Looks for matches in a relation's SteM, or in a relation beside the join.

    Attributes:
        done: The done bit that tuples get there; 0 where they get a relation of their span.
    """

    action = "probe"
    done: int = 0


class Join(Operator):
    """Inserts into one STAIR of a join and probes the other; the target is an edge of the spanning tree."""

    action = "join"


class Lookup(Operator):
    """Asks an index access module for matches, which will arrive like other base tuples."""

    action = "lookup"


class Select(Operator):
    """Lets a residual predicate decide."""

    action = "select"


class Profiling(Operator):
    """Lets every predicate that is ready decide about every tuple, and keeps the outcomes together."""

    action = "profile"
    queued = False


class Settle(Operator):
    """Gives predicates that raised their last word on tuples that nothing else rejects."""

    action = "settle"
    queued = False


Work = TupleBatch | tuple[Operator, Any]
"""A batch to route; or an operator with a batch whose turn has come, or with what is left of one."""
