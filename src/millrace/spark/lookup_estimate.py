"""What the lookups of a block will be asked for: distinct keys that Spark counts, and a sample of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as sf

from millrace.engine.expressions import ColumnRef
from millrace.engine.spec import Equality, JoinSpec, OutputColumn, RelationSpec
from millrace.lookups.index_spec import IndexSpec
from millrace.options import Options
from millrace.predicates.estimate import LookupEstimate
from millrace.spark.block import Block, LookupInput
from millrace.spark.execute import execute
from millrace.spark.judging import drawn

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def lookup_estimates(
    spark: SparkSession, block: Block, options: Options, sample: int, seed: int
) -> tuple[list[LookupEstimate], list[str]]:
    """Return what the lookups of a block are expected to take, and which cannot be estimated and why.

    Keys are those of one relation that is read without a lookup, its own conditions applied. A sample of
    them is really asked for, on the lookup's own terms; its cache has the answers then.

    Args:
        spark: The session.
        block: The block.
        options: Of the run.
        sample: Keys to ask each lookup for, at most.
        seed: Of the sample.

    Raises:
        OptionError: The size of the sample is out of range.
        InputError: A relation is a streaming DataFrame.
        MillraceError: As the query itself: a source that does not answer, a budget that is spent.
    """
    found: list[LookupEstimate] = []
    unknown: list[str] = []
    for alias, given in block.inputs.items():
        if not isinstance(given, LookupInput):
            continue
        if given.scan is not None or given.sources:
            unknown.append(
                f"lookup {alias}, which has a scan too: how much of it is asked for shows as it runs"
            )
            continue
        for spec in given.indexes:
            bound = _binder(block, alias, spec)
            if bound is None:
                unknown.append(f"lookup {spec.name}, whose keys come from other lookups, or several tables")
            else:
                found.append(_estimate(spark, block, options, spec, bound, sample, seed))
    return found, unknown


def _binder(block: Block, alias: str, spec: IndexSpec) -> tuple[RelationSpec, list[str]] | None:
    """Return a relation that can be read and has all bind columns, with these; None if there is none."""
    equal = [_equal_to(ColumnRef(alias, column), block.join.equalities) for column in spec.columns]
    for relation in block.join.relations:
        columns = [
            next((ref.column for ref in refs if ref.relation == relation.alias), None) for refs in equal
        ]
        source = block.inputs.get(relation.same_as or relation.alias)
        if source is None or isinstance(source, LookupInput) or None in columns:
            continue
        return relation, [column for column in columns if column is not None]
    return None


def _equal_to(ref: ColumnRef, equalities: Iterable[Equality]) -> list[ColumnRef]:
    """Return all columns that equalities make equal to one, nearest first."""
    found = [ref]
    for each in found:  # it grows meanwhile
        for equality in equalities:
            for one, other in ((equality.left, equality.right), (equality.right, equality.left)):
                if one == each and other not in found:
                    found.append(other)
    return found[1:]


def _estimate(
    spark: SparkSession,
    block: Block,
    options: Options,
    spec: IndexSpec,
    bound: tuple[RelationSpec, list[str]],
    sample: int,
    seed: int,
) -> LookupEstimate:
    from millrace.lookups.sampled import sampled

    relation, columns = bound
    source = block.inputs[relation.same_as or relation.alias]
    names = [f"key{place}" for place in range(len(columns))]
    output = tuple(
        OutputColumn(name, ColumnRef(relation.alias, column))
        for name, column in zip(names, columns, strict=True)
    )
    join = JoinSpec((replace(relation, same_as=None, window=None),), output=output)
    keys = Block(f"{block.name} keys", join, {relation.alias: source})
    frame = execute(spark, keys, replace(options, report=False)).frame.dropna().distinct()
    chosen = drawn(frame, [sf.col(name) for name in names], sample, seed, "an estimate")
    most = frame.count()
    batch = pa.RecordBatch.from_arrays(chosen, names=list(spec.columns))
    alone = all(
        each.alias == relation.alias or isinstance(block.inputs.get(each.same_as or each.alias), LookupInput)
        for each in block.join.relations
    )
    one = sum(isinstance(each, LookupInput) for each in block.inputs.values()) == 1
    least = most if alone and one and not block.join.residuals else 0
    return sampled(spec, batch).of(spec, least, most)
