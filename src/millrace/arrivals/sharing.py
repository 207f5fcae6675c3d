"""Self-joins for join state that does not share tuples between relations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import tee

import pyarrow as pa

from millrace.spec import JoinSpec

Sources = Mapping[str, Iterable[pa.RecordBatch]]


def unshared(spec: JoinSpec, sources: Sources) -> tuple[JoinSpec, Sources]:
    """Return the block with a source of its own for every relation.

    Batches are handed to each relation by reference; those that one has read and another has not are kept.
    """
    if all(relation.same_as is None for relation in spec.relations):
        return spec, sources
    apart = replace(spec, relations=tuple(replace(r, same_as=None) for r in spec.relations))
    own = dict(sources)
    for lead in {r.same_as for r in spec.relations if r.same_as is not None}:
        sharing = [r.alias for r in spec.relations if lead in (r.alias, r.same_as)]
        own |= zip(sharing, tee(sources[lead], len(sharing)), strict=True)
    return apart, own
