"""The symmetric hash join under a memory budget: results at once while memory lasts, the rest from files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from millrace.engine.spill.algorithms import Join, Sources, hybrid, joined, partition_count, widest_class
from millrace.engine.spill.partitions import Partitions
from millrace.engine.spill.work import Setting, Work


def symmetric(setting: Setting, sources: Sources, join: Join) -> Iterator[Any]:
    """Join at once what comes; when the budget is spent, everything goes to files.

    With ``Options.online``, where no relation has set semantics or shares another's tuples, all sources
    are read in turn and all tuples are built. The results of those that have come by the time the budget is
    spent (*early* tuples) are out by then. What is missing are the combinations with at least one later
    tuple. Each has a first relation, by number, whose tuple is late, so they are the disjoint union, over
    every relation i, of the join of early tuples of the relations before i, late tuples of i, and all
    tuples of those behind it.

    Otherwise only the streamed relation makes results as it comes, as in an eddy without a budget;
    that state is spilled before the first result or not at all.
    """
    if not setting.online or any(relation.distinct for relation in setting.spec.relations):
        yield from hybrid(setting, sources, join, keep=False)
        return
    rest = yield from join({r: sources.keyed(r) for r in setting.order}, {}, None, online=True)
    if rest is None:
        return
    attribute, count = widest_class(setting), partition_count(setting)
    early, late = (Partitions(setting, attribute, count) for _ in range(2))
    for relation in setting.order:
        for batch in rest.built(relation):
            early.add(relation, batch)
    early.finish()
    for relation in setting.order:
        for batch in rest.unread[relation]:
            late.add(relation, batch)
    late.finish()
    before, after = early.everything(), late.everything()
    for first in setting.order:
        works = [
            Work(
                {
                    r: old[r] if r < first else new[r] if r == first else old[r] + new[r]
                    for r in setting.order
                },
                level=1,
            )
            for old, new in zip(before, after, strict=True)
        ]
        yield from joined(setting, early.grouped(work for work in works if work.possible), join)
