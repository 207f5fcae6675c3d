"""Runs of a block: an eddy with the join state that the options ask for, or a static plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Protocol

from millrace.clock import Clock
from millrace.eddy.access import Access
from millrace.eddy.eddy import Eddy
from millrace.eddy.lessons import Lessons
from millrace.eddy.memory import Watch
from millrace.eddy.output import Sink
from millrace.eddy.schedule import Schedule, Source
from millrace.eddy.static import StaticPlan
from millrace.expressions import Call
from millrace.figures import CellFigures
from millrace.options import Options
from millrace.predicates import Caller
from millrace.spec import JoinSpec


class Run(Protocol):
    """A block being run in one task."""

    def run(self) -> Iterator[Any]:
        """Yield the block's result."""

    def figures(self, cell: int = 0) -> CellFigures:
        """Return what was done so far."""


def run_of(
    spec: JoinSpec,
    sources: Mapping[str, Source],
    options: Options,
    *,
    stream: str | None = None,
    schedule: Schedule | None = None,
    clock: Clock | None = None,
    output: Sink | None = None,
    callers: Callable[[int, Call], Caller] | None = None,
    lessons: Lessons | None = None,
    access: Access | None = None,
    watch: Watch | None = None,
) -> Run:
    """Return what runs a block by the architecture that the options name.

    Args:
        spec: The block.
        sources: Record batches by alias, each with exactly the schema of its relation.
        options: The run's settings.
        stream: The relation to leave unbuilt; the largest by estimate when it is None.
        schedule: Overrides what ``options.online`` and ``stream`` would choose.
        clock: What module times are measured by.
        output: What becomes of result tuples.
        callers: Returns what calls a user's predicate, by its number among the residual predicates.
        lessons: Where eddies of the same run leave what they learned; a static plan learns nothing.
        access: More access modules by alias; without SteMs one scan, or only indexes, for a relation.
        watch: Told whenever there may be more in memory than before.
    """
    make = StaticPlan if options.architecture == "static" else partial(Eddy, lessons=lessons)
    return make(
        spec,
        sources,
        options,
        stream=stream,
        schedule=schedule,
        clock=clock,
        output=output,
        callers=callers,
        access=access,
        watch=watch,
    )
