"""A block being run in one task: by an eddy, or by a plan that does not change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Unpack

from millrace.engine.access.schedule import Source
from millrace.engine.eddy.context import Given, RunContext
from millrace.engine.eddy.dataflow import EddyDataflow
from millrace.engine.figures import CellFigures
from millrace.engine.plan.spec import JoinSpec
from millrace.engine.stairs.choice import settle_architecture
from millrace.engine.static_plan import StaticPlan
from millrace.errors import InputError
from millrace.options import Options

_OF_EDDIES = ("policy", "eddy")
"""What a run can be given that a static plan has no use for."""


class Run:
    """Runs one select-project-join block over the tuples of one task, as the options say.

    Args:
        sources: Record batches by alias, each with exactly the schema of its relation, and None wherever
            there is nothing at present.
        given: See :class:`millrace.engine.eddy.context.Given`.

    Raises:
        InputError: What is given does not go together; it says why.
        OptionError: ``options.order`` is no plan of the block.
    """

    def __init__(
        self,
        spec: JoinSpec,
        sources: Mapping[str, Source],
        options: Options | None = None,
        **given: Unpack[Given],
    ) -> None:
        schedule = given.get("schedule")
        side_by_side = None if schedule is None else schedule.interleaved
        looked_up = bool(given.get("access"))
        options = settle_architecture(
            spec, options or Options(), side_by_side=side_by_side, looked_up=looked_up
        )
        is_static = options.architecture == "static"
        if is_static and (own := [name for name in _OF_EDDIES if given.get(name) is not None]):
            raise InputError(
                f"a static plan is given a {' and a '.join(own)}: its tuples take one way; "
                "leave it out, or use architecture='stems', 'joins' or 'stairs'"
            )
        self.context = context = RunContext(spec, sources, options, given)
        self.dataflow: EddyDataflow | StaticPlan = (
            StaticPlan(context) if is_static else (given.get("eddy") or EddyDataflow)(context, given)
        )
        self._seconds = 0.0

    def run(self) -> Iterator[Any]:
        """Yield the block's result, in batches of ``spec.output_schema`` and in no certain order.

        Raises:
            ExecutionError: A user's predicate raised for a tuple that nothing else rejects.
            PredicateError: A user's predicate returned what is no truth value.
        """
        context = self.context
        began = context.clock.now()
        try:
            self.fill()
            yield from self.dataflow.results()
            yield from context.output.finish()
        finally:
            self._seconds = context.clock.now() - began
            context.filters.close()
            context.methods.close()

    def fill(self) -> None:
        """Read all of the relations that semi joins and left joins look into."""
        context = self.context
        context.filters.fill(context.spec, context.sources, context.clock)

    def eddy_for(self, what: str) -> EddyDataflow:
        """Return the eddy that runs the block; InputError, which says for what, where a static plan does."""
        if isinstance(self.dataflow, StaticPlan):
            raise InputError(
                f"{what} of a static plan: its joins wait for each other in a fixed order; "
                "architecture='stairs', 'stems' or 'joins' can make them"
            )
        return self.dataflow

    def figures(self, cell: int = 0) -> CellFigures:
        context, held = self.context, self.dataflow.held()
        output, beside = context.output, context.filters.figures()
        figures = context.statistics.figures(cell, self._seconds, output.name, output.counted)
        return replace(
            figures,
            modules=(*figures.modules, *held.lookups),
            state=(*held.state, *beside),
            peak_state=held.peak + sum(each.tuples for each in beside),
            migrated_tuples=held.migrated,
            recomputed_tuples=held.recomputed,
        )
