"""The architectures: which kind of join state an eddy works with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from millrace.architectures.index_joins import IndexJoins
from millrace.architectures.stairs import StairState
from millrace.architectures.stems import SteMs
from millrace.arrivals.access_methods import AccessMethods
from millrace.arrivals.arrivals import Arrivals
from millrace.arrivals.schedule import Schedule
from millrace.clock import Clock
from millrace.expressions import Call
from millrace.graph import QueryGraph
from millrace.migration import MIGRATION_POLICIES, default_migration
from millrace.options import Options
from millrace.policies import default_policy
from millrace.spec import JoinSpec
from millrace.state.join_state import JoinState
from millrace.state.memory import Watch
from millrace.state.stem import SteM


def state_of(
    spec: JoinSpec,
    graph: QueryGraph,
    schedule: Schedule,
    options: Options,
    stems: Sequence[SteM],
    methods: AccessMethods,
    arrivals: Arrivals,
    clock: Clock,
    watch: Watch,
) -> JoinState:
    """Return the join state that the options ask for; ``watch`` is told of what moving it makes.

    Raises:
        InputError: The state is not SteMs, and a relation has access methods that compete, or it has
            indexes alone and no join with one scanned relation binds them.
    """
    if options.architecture == "stems" or len(spec.relations) == 1:
        return SteMs(spec, graph, schedule, stems, methods, arrivals)
    index_joins = IndexJoins.of(spec, graph, methods, clock, options.architecture)
    index_joins.check_leaves()
    migration = None
    # A tuple that is made again would be judged again, and a second verdict may differ.
    if options.architecture == "stairs" and spec.is_repeatable and not index_joins.inner:
        migration = MIGRATION_POLICIES[options.migration or default_migration()](options)
    base = spec.is_repeatable and not index_joins.inner and not options.intermediate
    footprint: Literal["all", "base"] = "base" if base else "all"
    window = 2 * options.reoptimize_every
    return StairState(
        spec,
        graph,
        schedule,
        stems,
        window,
        migration,
        footprint=footprint,
        index_joins=index_joins,
        watch=watch,
    )


def policy_of(spec: JoinSpec, options: Options) -> str:
    """Return the name of the routing policy, the default one if none is asked for."""
    if options.policy is not None:
        return options.policy
    called = any(isinstance(p, Call) for p in spec.residuals)
    joins = len(spec.relations) > 1
    if joins and not called and options.architecture in ("joins", "stairs"):
        return "cumulative"
    return default_policy(joins=joins, predicates=called)
