"""What runs a block in one task: an eddy with the join state that the options ask for, or a static plan."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Unpack

from millrace.engine.access.schedule import Source
from millrace.engine.eddy.eddy_run import EddyRun
from millrace.engine.eddy.run import Given, Run
from millrace.engine.eddy.statistics import WarmStart
from millrace.engine.plan.spec import JoinSpec
from millrace.engine.static_plan import StaticPlan
from millrace.options import Options


def run_of(
    spec: JoinSpec,
    sources: Mapping[str, Source],
    options: Options,
    *,
    warm_start: WarmStart | None = None,
    **given: Unpack[Given],
) -> Run:
    """Return what runs a block by the architecture that the options name.

    Args:
        spec: The block.
        sources: Record batches by alias, each with exactly the schema of its relation.
        options: The run's settings.
        warm_start: Where eddies of the same run leave what they learned; a static plan learns nothing.
        given: See :class:`millrace.engine.eddy.run.Given`.
    """
    if options.architecture == "static":
        return StaticPlan(spec, sources, options, **given)
    return EddyRun(spec, sources, options, warm_start=warm_start, **given)
