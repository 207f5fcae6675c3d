"""What runs a block: an eddy or a static plan, or one of these under a memory budget."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Unpack

import pyarrow as pa

from millrace.engine.eddy.context import Given
from millrace.engine.eddy.run import Run
from millrace.engine.plan.spec import JoinSpec
from millrace.errors import InputError
from millrace.options import Options

if TYPE_CHECKING:
    from millrace.engine.spill.lookups import LookupEddies
    from millrace.engine.spill.spilling import SpillingEddy

_OF_ONE_EDDY = ("schedule", "watch", "policy", "eddy")


def run_of(
    spec: JoinSpec,
    sources: Mapping[str, Iterable[pa.RecordBatch]],
    options: Options | None = None,
    **given: Unpack[Given],
) -> Run | SpillingEddy | LookupEddies:
    """Return what runs a block: ``run()`` yields its result, ``figures(cell)`` says what was done.

    A block over one relation alone keeps no state, so a memory budget means nothing to it.

    Args:
        spec: The block.
        sources: Record batches by alias.
        options: The run's settings.
        given: See :class:`millrace.engine.eddy.context.Given`; under a memory budget a schedule, watch,
            policy or eddy of yours is refused, for spilling has its own. So is an output beside access
            modules, for the block is divided.

    Raises:
        InputError: A relation with set semantics is to be left unbuilt, or not all of it is joined on; or
            what is given does not go with a memory budget.
    """
    options = options or Options()
    if options.memory_budget is not None and any(r.window for r in spec.relations):
        raise InputError(
            "option memory_budget is set for a join with sliding windows, whose tuples would be joined out "
            "of order of time; expected one of the two: windows bound the state by themselves"
        )
    access = {a: own for a, own in (given.get("access") or {}).items() if own}
    spills = options.memory_budget is not None and (len(spec.sources) > 1 or bool(access))
    barred = (*_OF_ONE_EDDY, "output") if access else _OF_ONE_EDDY
    if spills and (own := [name for name in barred if given.get(name) is not None]):
        raise InputError(
            f"option memory_budget is set for a run that is given {' and '.join(own)}; expected one of the "
            "two: under a budget sources are read, and memory is watched, by the way of spilling"
        )
    if spills and access:
        from millrace.engine.spill.lookups import LookupEddies  # what tasks without a budget do not need

        return LookupEddies(spec, sources, options, access, given)
    if spills:
        from millrace.engine.spill.spilling import SpillingEddy

        return SpillingEddy(spec, sources, options, **given)
    return Run(spec, sources, options, **given)
