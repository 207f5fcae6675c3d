"""Names of the places that the eddy can send tuples to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Destination:
    """A module and what it is asked to do.

    Attributes:
        action: ``"build"`` or ``"probe"`` a SteM, or ``"select"`` by a residual predicate.
        target: The relation's number, or the residual predicate's.
    """

    action: Literal["build", "probe", "select"]
    target: int
