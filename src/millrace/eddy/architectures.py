"""The architectures: which kind of join state an eddy works with."""

from __future__ import annotations

from typing import Literal

from millrace.eddy.paths import Paths
from millrace.eddy.schedule import Schedule
from millrace.eddy.stairs import StairState
from millrace.eddy.state import JoinState
from millrace.eddy.stems import SteMs
from millrace.errors import InputError
from millrace.expressions import Call
from millrace.graph import QueryGraph
from millrace.migration import MIGRATION_POLICIES, default_migration
from millrace.options import Options
from millrace.policies import default_policy
from millrace.spec import JoinSpec


def state_of(
    spec: JoinSpec, graph: QueryGraph, schedule: Schedule, options: Options, paths: Paths
) -> JoinState:
    """Return the join state that the options ask for.

    Raises:
        InputError: Indexes are to be asked, or a relation has several access modules, and the state is
            not SteMs.
    """
    if options.architecture == "stems" or len(spec.relations) == 1:
        return SteMs(spec, graph, schedule, paths)
    if paths.lookups or paths.sets:
        raise InputError(
            f"indexes and competing scans need option architecture='stems', got {options.architecture!r}: "
            "what they return is kept, and duplicates are dropped, in SteMs"
        )
    migration = None
    # A tuple that is made again would be judged again, and a second verdict may differ.
    repeatable = all(p.spec.deterministic for p in spec.residuals if isinstance(p, Call))
    if options.architecture == "stairs" and repeatable:
        migration = MIGRATION_POLICIES[options.migration or default_migration()](options)
    base = migration is not None and not options.intermediate
    footprint: Literal["all", "base"] = "base" if base else "all"
    return StairState(spec, graph, schedule, 2 * options.reoptimize_every, migration, footprint=footprint)


def policy_of(spec: JoinSpec, options: Options) -> str:
    """Return the name of the routing policy, the default one if none is asked for."""
    if options.policy is not None:
        return options.policy
    called = any(isinstance(p, Call) for p in spec.residuals)
    joins = len(spec.relations) > 1
    if joins and not called and options.architecture in ("joins", "stairs"):
        return "cumulative"
    return default_policy(joins=joins, predicates=called)
