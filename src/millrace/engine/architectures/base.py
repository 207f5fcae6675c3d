"""Where the base tuples of a block are kept."""

from __future__ import annotations

from millrace.engine.arrivals.paths import Paths
from millrace.engine.graph import QueryGraph
from millrace.engine.spec import JoinSpec
from millrace.engine.state.inequalities import inequalities
from millrace.engine.state.matching import Matching
from millrace.engine.state.stem import SteM


def stems_of(spec: JoinSpec, graph: QueryGraph, paths: Paths) -> list[SteM]:
    """Return the SteMs of a block, by relation; those of relations that are the same data share their tuples.

    Args:
        spec: The block.
        graph: Its query graph.
        paths: Where tuples of each relation come from.
    """
    stems: list[SteM] = []
    matching = Matching(graph)
    for number, relation in enumerate(spec.relations):
        mine = [(each.classes, each.keys) for each in paths.lookups if each.relation == number]
        stems.append(
            SteM(
                number,
                relation,
                graph,
                stems[graph.leads[number]] if relation.same_as is not None else None,
                inequalities(spec, number),
                scanned=bool(paths.scanned >> number & 1),
                as_set=bool(paths.sets >> number & 1),
                bindings=mine,
                matching=matching,
            )
        )
    return stems
