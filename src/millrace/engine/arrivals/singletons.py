"""Base tuples on their way in."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from millrace.engine.relations import RelationStore, keyed
from millrace.engine.state.stem import SteM
from millrace.engine.tuples import TupleBatch, singleton


def singletons(stem: SteM, batch: pa.RecordBatch, alias: str, *, built: bool) -> TupleBatch:
    """Return the base tuples of a batch that can match at all.

    Args:
        stem: The relation's SteM, which knows its keys.
        batch: What has arrived.
        alias: The relation's alias.
        built: Whether they will not be built.
    """
    if len(stem.roles) > 1:
        batch, coded = stem.base.coded(batch)
    else:
        batch, coded = keyed(batch, stem.layout.keys, stem.layout.same)
    store = RelationStore.single(batch, stem.layout.keys, coded)
    rows = np.arange(batch.num_rows, dtype=np.int32)
    return TupleBatch(
        singleton(stem.number, built=built),
        {stem.number: rows},
        {stem.number: store},
        path=(alias,),
        origin=len(rows),
    )
