"""Operators: whatever tuples can be sent to. Routing policies tell their kinds apart, and nothing more.

An operator works in steps, so that no output outgrows a batch: ``start`` takes a batch, ``step`` does a part
of the work, and what is left of it can wait in the eddy's buffer. An operator is made once for a run and is
equal to itself alone; accounts and decisions are kept by it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar

from millrace.engine.tuples.batch import Signature, TupleBatch


class Kind(Enum):
    """What an operator does to tuples; the value is what reports call it.

    Attributes:
        BUILD: Keeps base tuples of a relation, and bounces them back.
        PROBE: Looks for matches in a relation's SteM, or in a relation beside the join.
        JOIN: Inserts into one STAIR of a join and probes the other; the target is an edge of the spanning
            tree.
        LOOKUP: Asks an index access module for matches, which will arrive like other base tuples.
        SELECT: Lets a residual predicate decide.
        PROFILE: Lets every predicate that is ready decide about every tuple, and keeps the outcomes together.
        SETTLE: Gives predicates that raised their last word on tuples that nothing else rejects.
        TRANSFER: Drops tuples without a match in a relation that is complete, before they are routed.
        DIVIDE: Divides tuples by an attribute, before they are routed.
    """

    BUILD = "build"
    PROBE = "probe"
    JOIN = "join"
    LOOKUP = "lookup"
    SELECT = "select"
    PROFILE = "profile"
    SETTLE = "settle"
    TRANSFER = "transfer"
    DIVIDE = "divide"


JOINS = (Kind.PROBE, Kind.JOIN)
"""Those that find matches."""

MODULES = (Kind.SELECT, *JOINS)
"""Those that a route is told by, whatever else its tuples go through."""


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
        kind: What it does.
        place: What the same operator of another run has too.
        is_attached: Whether it is a predicate that costs less than a decision about it, and so comes before
            all else (Deshpande 2004, section 2.1.4).
        done: Done bits that tuples get there; 0 where they get relations of their span.
        evaluated: Rows that a user's function was called for.
        guess: Tuples out per tuple in that are expected where nothing better tells.
    """

    kind: ClassVar[Kind]
    guess: ClassVar[float] = 1.0
    is_attached: ClassVar[bool] = False
    done: int = 0
    evaluated: int = 0

    def __init__(self, target: int, name: str, label: str) -> None:
        self.target = target
        self.name = name
        self.label = label
        self.place = (self.action, target)

    @property
    def action(self) -> str:
        return self.kind.value

    def __repr__(self) -> str:
        """Return the same text in every task: what was learned is passed on by it."""
        return f"{self.action} {self.name} {self.target}"

    def estimate(self, signature: Signature) -> Estimate:
        """Return what is to be expected where something else is legal as well."""
        return Estimate(self.label, self.guess)

    def asking(self, signature: Signature) -> Hashable:
        """Return what of a signature decides what is found here: tuples that agree in it find alike."""
        return self.target

    def start(self, batch: TupleBatch) -> Any:
        """Begin to work on a batch; returns what :meth:`step` takes."""
        return batch

    @abstractmethod
    def step(self, work: Any, limit: int) -> Step:
        """Do a part of the work that makes about ``limit`` tuples at most."""


Work = TupleBatch | tuple[Operator, Any]
"""A batch to route; or an operator with a batch whose turn has come, or with what is left of one."""


Visit = Callable[[Operator, Any], Step]
"""Lets an operator do the next step of its work, a whole batch or what is left of one, and counts it."""
