"""Partial results: what the data of some relations join to while others are missing.

Raman, Deshpande & Hellerstein 2003, section 3.4: results with missing values can be of use long before a
stalled source goes on. Base tuples are in SteMs whatever the architecture, and are joined for the occasion.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from millrace.engine.eddy.context import RunContext
from millrace.engine.eddy.output import Output
from millrace.engine.eddy.run import Run
from millrace.engine.operators.beside import null_row
from millrace.engine.operators.select import Filters
from millrace.engine.plan.expressions import Call
from millrace.engine.plan.graph import QueryGraph, members
from millrace.engine.plan.spec import JoinSpec
from millrace.engine.stems.stem import SteM
from millrace.engine.tuples import RelationStore
from millrace.engine.tuples.batch import Signature, TupleBatch, ready_predicates
from millrace.errors import InputError, StateError, near


def partial(run: Run, missing: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield what the data that have arrived join to without some relations, whose columns are null.

    To be called when no tuple is in flight: before or after the run, while a source is asked for more (by
    the source itself), and when ``run()`` has yielded a batch because every source has stalled. After
    other batches of ``run()`` there mostly are tuples in flight. The rows have to be taken before
    more tuples arrive. Where windows are, what has been evicted is not part of them.

    Raises:
        InputError: No join predicates connect the other relations, one of them is not kept, or tuples
            were dropped; or a static plan runs the block.
        StateError: Tuples are in flight, or some have arrived meanwhile.
    """
    if run.eddy_for(f"partial results without {list(missing)}").is_flying:
        raise StateError(
            "partial results were asked for while tuples are in flight, so some of them might be "
            "missing; ask when run() has yielded a batch because all sources stalled, or from a source"
        )
    context, stems = run.context, run.context.stems
    span = _remaining(context.spec, context.graph, missing, context.schedule.unbuilt)
    if any(m.action == "transfer" and m.tuples_out < m.tuples_in for m in run.figures().modules):
        raise InputError(
            "partial results are not complete: tuples without a match in a relation that had been read "
            "were dropped; set option online to read all relations side by side, or transfer to False"
        )
    kept = [(stem.rows, stem.store.first) for stem in stems]
    rows = _collect_rows(context, _join_base_tuples(stems, context.graph, span, context.limit))

    def take_undisturbed() -> Iterator[pa.RecordBatch]:
        for batch in rows:
            if kept != [(stem.rows, stem.store.first) for stem in stems]:
                raise StateError(
                    "run() has gone on before all partial results were taken; ask for them again"
                )
            yield batch

    return take_undisturbed()


def _remaining(spec: JoinSpec, graph: QueryGraph, missing: Sequence[str], unbuilt: int | None) -> int:
    """Return the span of the relations whose data are joined: those that are not missing.

    Tuples of ``unbuilt`` are not kept; None where all are.

    Raises:
        InputError: Partial results without these relations cannot be had; it says why.
    """
    if spec.outer:
        names = ", ".join(join.relation for join in spec.outer)
        raise InputError(f"partial results beside a left join with {names}: expected inner joins alone")
    for alias in missing:
        if alias not in spec.aliases:
            raise InputError(f"partial results without {alias!r}: {near(alias, spec.aliases)}")
    span = sum(1 << i for i, alias in enumerate(spec.aliases) if alias not in missing)
    if not span:
        raise InputError("partial results without every relation are none; leave at least one of them")
    parts = _parts(graph, span)
    if len(parts) > 1:
        told = " and ".join(str([spec.aliases[r] for r in members(part)]) for part in parts)
        raise InputError(
            f"without {list(missing)} no join predicate connects {told}; ask for partial results of one of "
            "these parts, that is, with the others missing"
        )
    if unbuilt is not None and span >> unbuilt & 1:
        raise InputError(
            f"relation {spec.aliases[unbuilt]!r} is streamed without being kept, so no partial results "
            "contain it; run with online=True, or count it among the missing ones"
        )
    for predicate, needed in zip(spec.residuals, graph.residual_spans, strict=True):
        if isinstance(predicate, Call) and not predicate.spec.deterministic and not needed & ~span:
            raise InputError(
                f"predicate {predicate.spec.name!r} is not deterministic, so partial results might disagree "
                "with later ones; count a relation that it reads among the missing ones"
            )
    return span


class _Apart(SteM):
    """The tuples of a SteM with indexes of its own.

    The run's own SteMs stay as they are: those of STAIRs have no indexes, and would go on filling them.
    """

    def __init__(self, stem: SteM) -> None:
        vars(self).update(vars(stem))
        self._indexes, self._ordered = dict(self._indexes), dict(self._ordered)


def _join_base_tuples(
    stems: Sequence[SteM], graph: QueryGraph, span: int, limit: int
) -> Iterator[TupleBatch]:
    """Yield the join of the base tuples of a connected span, by probing one SteM after the other."""
    stems = [_Apart(stem) for stem in stems]
    first = min(members(span), key=lambda r: (stems[r].store.held, r))
    stem, lead = stems[first], stems[first].roles[0]
    for low in range(stem.store.first, stem.rows, limit):
        rows = np.arange(low, min(low + limit, stem.rows), dtype=np.int32)
        base = TupleBatch(Signature(1 << lead), {lead: rows}, {lead: stem.store})
        yield from _extend(stem.in_role(base), stems, graph, span, limit)


def _extend(
    batch: TupleBatch, stems: Sequence[SteM], graph: QueryGraph, span: int, limit: int
) -> Iterator[TupleBatch]:
    """Yield what tuples join to, each piece of a probe's matches before the next one is made."""
    if batch.signature.span == span:
        yield batch
        return
    reachable = [r for r in graph.neighbours(batch.signature.span) if span >> r & 1]
    target = stems[min(reachable, key=lambda r: (stems[r].store.held, r))]
    probe = target.start(batch)
    while not probe.is_done:
        found = target.probe(probe, limit)
        if found.size:
            yield from _extend(found, stems, graph, span, limit)


def _collect_rows(context: RunContext, batches: Iterator[TupleBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the tuples that predicates leave as rows of the block, with nulls for missing relations."""
    output = Output(context.spec, context.limit)
    nulls = [RelationStore.single(null_row(r.schema), (), []) for r in context.spec.relations]
    for batch in batches:
        for one in _passed(batch, context.graph, context.filters):
            rows = {**dict.fromkeys(range(len(nulls)), np.zeros(one.size, np.int32)), **one.rows}
            stores = {**dict(enumerate(nulls)), **one.stores}
            yield from output.add(replace(one, rows=rows, stores=stores))
    yield from output.finish()


def _passed(batch: TupleBatch, graph: QueryGraph, filters: Filters) -> Iterator[TupleBatch]:
    """Yield what the predicates over a batch's relations leave of it."""
    waiting = [batch]
    while waiting:
        batch = waiting.pop()
        ready = ready_predicates(batch.signature, graph)
        if not batch.size:
            continue
        if ready:
            waiting += filters.selects[ready[0]].step(batch, batch.size).batches
        elif batch.signature.raised:
            waiting += filters.settlement.step(batch, batch.size).batches
        else:
            yield batch


def _parts(graph: QueryGraph, span: int) -> list[int]:
    """Return the parts of a span that attribute classes hold together."""
    parts = []
    while span:
        part = span & -span
        while more := [r for r in graph.neighbours(part) if span >> r & 1]:
            part |= sum(1 << r for r in more)
        parts.append(part)
        span &= ~part
    return parts
