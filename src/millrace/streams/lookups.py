"""Lookups and predicates above a join of streams.

The streams are joined first, in the cells, with the tables that they are tied to by themselves; what comes
out in a micro-batch is joined with lookup tables, judged by predicates, and joined with tables that only
lookups lead to, by one eddy a task that keeps nothing. So keys are asked for that occur in results alone, no
answer is join state, and a micro-batch that runs again finds the answers where the first attempt left them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

import pyarrow as pa
from pyspark.sql import SparkSession

from millrace.engine.plan.expressions import Call, ColumnRef, columns_of, relations_of, rename_columns
from millrace.engine.plan.spec import JoinSpec, OutputColumn, RelationSpec
from millrace.options import Options
from millrace.spark.block import Block, FrameInput, LookupInput, PreparedBlock
from millrace.spark.execute import execute
from millrace.streams.plan import continuous, without_watermark
from millrace.streams.retention import EventTimes

JOINED = "joined"
"""Alias of the join of streams among the relations of the eddy above it."""


def continuous_with_lookups(
    spark: SparkSession, block: Block, times: EventTimes, options: Options
) -> PreparedBlock:
    """Return a block over streams and lookup tables as a streaming DataFrame; nothing runs yet.

    Takes and raises what :func:`millrace.streams.plan.deal` and :func:`millrace.spark.execute.execute` do.
    """
    lookups = {alias for alias, given in block.inputs.items() if isinstance(given, LookupInput)}
    below, above = divided(block.join, times.columns, lookups)
    joined = continuous(spark, replace(block, join=below, result=None), times, options)
    inputs = {r.alias: block.inputs[r.alias] for r in above.relations if r.alias != JOINED}
    inputs[JOINED] = FrameInput(joined.frame)
    result = None if block.result is None else without_watermark(block.result)
    upper = replace(block, join=above, inputs=inputs, result=result, stream=JOINED)
    upper_run = execute(spark, upper, options)
    return replace(upper_run, name=joined.name, plan=f"{joined.plan}\n{upper_run.plan}", reports=None)


def divided(join: JoinSpec, streams: Iterable[str], lookups: Collection[str]) -> tuple[JoinSpec, JoinSpec]:
    """Return the part of a join that needs no lookup, and the part above it.

    The first joins the streams and the tables that they are tied to. The second joins the rest with its
    result, whose relation is called :data:`JOINED` and has the columns that are read above.
    """
    inside = set(streams)
    ties = [set(e.relations) for e in join.equalities]
    ties += [set(relations_of(p)) for p in join.residuals if not isinstance(p, Call)]
    ties = [tie for tie in ties if not tie & set(lookups)]
    while found := [tie for tie in ties if tie & inside and not tie <= inside]:
        inside.update(*found)
    edges = [set(e.relations) <= inside for e in join.equalities]
    asked = [not isinstance(p, Call) and relations_of(p) <= inside for p in join.residuals]
    equalities = [e for e, below in zip(join.equalities, edges, strict=True) if not below]
    residuals = [p for p, below in zip(join.residuals, asked, strict=True) if not below]
    read = [o.source for o in join.output]
    read += [ref for e in equalities for ref in e.ends]
    read += [ref for p in residuals for ref in columns_of(p)]
    own = [ref for ref in dict.fromkeys(read) if ref.relation in inside]
    names = {ref: ColumnRef(JOINED, f"c{place}_{ref.column}") for place, ref in enumerate(own)}
    below = JoinSpec(
        tuple(r for r in join.relations if r.alias in inside),
        tuple(e for e, mine in zip(join.equalities, edges, strict=True) if mine),
        tuple(p for p, mine in zip(join.residuals, asked, strict=True) if mine),
        tuple(OutputColumn(names[ref].column, ref) for ref in own),
    )
    relation = RelationSpec(JOINED, pa.schema(list(below.output_schema)))
    above = JoinSpec(
        (relation, *(r for r in join.relations if r.alias not in inside)),
        *rename_columns((tuple(equalities), tuple(residuals), join.output), lambda ref: names.get(ref, ref)),
    )
    return below, above
