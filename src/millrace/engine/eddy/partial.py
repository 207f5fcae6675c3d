"""Partial results: what the data of some relations join to while others are missing.

Raman, Deshpande & Hellerstein 2003, section 3.4: results with missing values can be of use long before a
stalled source goes on. Deshpande & Hellerstein 2004, section 3.3: STAIRs compute them by promotion, and they
serve again when the source does go on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa

from millrace.engine.arrays import array_of
from millrace.engine.operators.select import Selecting
from millrace.engine.operators.selection import columns_by_relation
from millrace.engine.plan.expressions import Call
from millrace.engine.plan.graph import QueryGraph, members
from millrace.engine.plan.spec import JoinSpec
from millrace.engine.tuples import BATCH_BYTES
from millrace.engine.tuples.batch import TupleBatch, ready_predicates
from millrace.errors import InputError, StateError, near


def remaining(spec: JoinSpec, graph: QueryGraph, missing: Sequence[str], unbuilt: int | None) -> int:
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


def passed(batch: TupleBatch, graph: QueryGraph, selecting: Selecting) -> Iterator[TupleBatch]:
    """Yield what the predicates over a batch's relations leave of it."""
    waiting = [batch]
    while waiting:
        batch = waiting.pop()
        ready = ready_predicates(batch.signature, graph)
        if not batch.size:
            continue
        if ready:
            waiting += selecting.selects[ready[0]].step(batch, batch.size).batches
        elif batch.signature.raised:
            waiting += selecting.settlement.step(batch, batch.size).batches
        else:
            yield batch


def rows_of(spec: JoinSpec, batch: TupleBatch) -> pa.RecordBatch:
    """Return tuples as rows of the block's output schema, nullable, with nulls for missing relations."""
    schema = partial_schema(spec)
    if not schema.names:
        return pa.record_batch([pa.nulls(batch.size)], ["none"]).select([])
    arrays = []
    for column, field in zip(spec.output, schema, strict=True):
        relation = spec.aliases.index(column.source.relation)
        if relation in batch.rows:
            arrays.append(batch.stores[relation].gather(column.source.column, batch.rows[relation]))
        else:
            arrays.append(pa.nulls(batch.size, field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def partial_schema(spec: JoinSpec) -> pa.Schema:
    """Return the schema of partial results: that of the output, every column nullable."""
    return pa.schema([field.with_nullable(True) for field in spec.output_schema])


def collected(spec: JoinSpec, batches: Iterator[TupleBatch]) -> Iterator[pa.RecordBatch]:
    """Yield partial results as record batches; of a block that is only counted, their number."""
    if spec.count_only:
        count = sum(batch.size for batch in batches)
        yield pa.RecordBatch.from_arrays([array_of([count], pa.int64())], schema=partial_schema(spec))
        return
    columns = columns_by_relation((column.source for column in spec.output), spec.aliases)
    for batch in batches:
        own = {relation: names for relation, names in columns.items() if relation in batch.rows}
        for piece in batch.pieces(own, BATCH_BYTES):
            yield rows_of(spec, piece)


def undisturbed(rows: Iterator[pa.RecordBatch], rounds: Callable[[], int]) -> Iterator[pa.RecordBatch]:
    """Return the same rows, which are made while they are taken, as long as no more tuples arrive.

    ``rounds`` returns how many rounds of arrivals there have been.

    Raises:
        StateError: When a row is taken after another round.
    """
    asked = rounds()

    def checked() -> Iterator[pa.RecordBatch]:
        for batch in rows:
            if rounds() != asked:
                raise StateError(
                    "run() has gone on before all partial results were taken; ask for them again"
                )
            yield batch

    return checked()


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
