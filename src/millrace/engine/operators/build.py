"""Building: base tuples are kept and come back (BuildFirst, SteM BounceBack)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from millrace.engine.operator import Build, Step
from millrace.engine.operators.select import Selecting
from millrace.engine.state.join_state import JoinState
from millrace.engine.tuples import TupleBatch


class StateBuild(Build):
    """Puts base tuples of a relation into join state.

    Args:
        relation: Its number.
        alias: Its alias.
        state: Where they are kept.
        selecting: Predicates that the tuples may have met before.
        split: Tells tuples that the user prefers from others.
    """

    def __init__(
        self,
        relation: int,
        alias: str,
        state: JoinState,
        selecting: Selecting,
        split: Callable[[TupleBatch], Sequence[TupleBatch]],
    ) -> None:
        super().__init__(relation, f"SteM({alias})", alias)
        self._state = state
        self._selecting = selecting
        self._split = split

    def step(self, work: TupleBatch, limit: int) -> Step:
        """Return the tuples that were not here yet, once for each role, and those that waited for them."""
        built = self._state.build(self.target, work)
        self._selecting.remember(built)
        stems = self._state.stems
        batches = [
            piece for role in stems[self.target].roles for piece in self._split(stems[role].in_role(built))
        ]
        return Step((*batches, *self._state.on_build(self.target)), built.size)
