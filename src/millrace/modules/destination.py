"""Names of the places that the eddy can send tuples to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Destination:
    """A module and what it is asked to do.

    Attributes:
        action: ``"build"`` or ``"probe"`` a SteM; ``"join"``: insert into a STAIR and probe its dual;
            ``"lookup"``: ask an index access module for matches; ``"select"`` by a residual predicate;
            ``"profile"``: evaluate every predicate that is ready on every tuple, and keep the outcomes
            together; ``"settle"``: give a predicate that raised its last word on tuples that nothing
            else rejects.
        target: The number of the relation, the lookup, the spanning tree's edge or the residual
            predicate; 0 for a profile.
    """

    action: Literal["build", "probe", "join", "lookup", "select", "profile", "settle"]
    target: int
