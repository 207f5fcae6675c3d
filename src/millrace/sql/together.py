"""Blocks of several queries that join the same tables in the same way become one block.

The shared block reads what any of its queries reads: all columns, and the rows that pass the filters of some
query. What every query asks is asked once. What only some ask comes with their lineages, or behind the join
(:mod:`millrace.engine.sharing`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, fields, replace

import pyarrow as pa
from pyspark.sql import types as t

from millrace.engine.lineage import name_of
from millrace.engine.plan.expressions import (
    Call,
    ColumnRef,
    Or,
    Predicate,
    and_all,
    columns_of,
    exists_in,
    relations_of,
    rename_columns,
    show,
    terms,
)
from millrace.engine.plan.spec import Equality, JoinSpec, OutputColumn, RelationSpec
from millrace.engine.sharing import Sharing, SharingQuery
from millrace.spark.block import Input, ParquetInput
from millrace.spark.types import spark_schema
from millrace.sql.plan import BlockPlan

NUMBER = "__query"
"""The column that says whose a row is."""
ALONE = "no other query joins the same tables by the same columns"


@dataclass(frozen=True)
class SharedBlock:
    """One block for several.

    Attributes:
        block: Its result has the columns ``NUMBER``, and ``c0``, ``c1``, … of all queries.
        members: The blocks that it stands for, by the number of the query, under the names of its relations.
        own: What only each of them asks, for explanations.
    """

    block: BlockPlan
    members: tuple[BlockPlan, ...]
    own: tuple[tuple[Predicate, ...], ...]

    def columns(self, number: int) -> list[tuple[str, t.StructField]]:
        """Return a query's columns: the name in the shared result, and what its text knows it as."""
        assert self.block.sharing is not None
        places = self.block.sharing.queries[number].places
        return [(f"c{p}", field) for p, field in zip(places, _result(self.members[number]), strict=True)]

    def shown_conditions(self, number: int) -> str:
        """Return what only one of the queries asks, as text."""
        return " AND ".join(map(show, self.own[number])) or "all"


def why_not_shared(block: BlockPlan) -> str | None:
    """Return why a block's join is for its own query alone, or None."""
    join = block.join
    for alias, rows in block.inputs.items():
        if not isinstance(rows, ParquetInput):
            return f"{alias} is no Parquet table that tasks read themselves"
    if block.stream is not None or block.times is not None:
        return "it joins streams"
    if join.beside or any(relation.distinct for relation in join.relations):
        return "a LEFT JOIN, EXISTS or IN stands beside the join"
    if any(isinstance(p, Call) or any(exists_in(p)) for p in join.residuals):
        return "it calls predicates of Python"
    if any(len(relations_of(p)) < 2 for p in join.residuals):
        return "a condition reads no two of the tables"
    if not join.equalities:
        return "no equality joins its tables"
    return None


def shared_blocks(blocks: Sequence[BlockPlan]) -> list[list[int]]:
    """Return which blocks, by their places, may be one: those of each group."""
    groups: dict[Hashable, list[list[int]]] = {}
    for place, block in enumerate(blocks):
        same = groups.setdefault(_shape(block), [])
        for group in same:
            if all(_computes_alike(blocks[other], block) for other in group):
                group.append(place)
                break
        else:
            same.append([place])
    return [group for same in groups.values() for group in same]


def share(name: str, blocks: Sequence[BlockPlan]) -> SharedBlock:
    """Return one block for blocks of a group."""
    first = blocks[0]
    aliases = {tag: alias for alias, tag in _tags(first).items()}
    members = [_rename(b, {alias: aliases[tag] for alias, tag in _tags(b).items()}) for b in blocks]
    filters: list[dict[str, tuple[Predicate, ...]]] = [{} for _ in members]
    relations = []
    inputs: dict[str, Input] = {}
    for alias in first.join.aliases:
        read = [_input(member, alias) for member in members]
        common, own = _divide([tuple(terms(each.filters)) for each in read])
        for asked, mine in zip(filters, own, strict=True):
            if any(own):
                asked[alias] = mine
        some = [test for test in map(and_all, own) if test is not None]
        if len(some) == len(own):
            common = (*common, Or(tuple(dict.fromkeys(some))) if len(some) > 1 else some[0])
        table = read[0].table
        for each in read[1:]:
            known = {name for name, _ in table.computed}
            table = table.with_computed(tuple(c for c in each.table.computed if c[0] not in known))
        columns = {f.name: f for member in members for f in member.join.relation(alias).schema}
        for ref in (ref for test in some for ref in columns_of(test)):
            column = table.resolve(ref.column)
            columns.setdefault(ref.column, table.schema.field(column).with_name(ref.column))
        schema = pa.schema(list(columns.values()))
        relations.append(RelationSpec(alias, schema))
        inputs[alias] = ParquetInput(table, tuple(schema.names), common)
    residuals, others = _divide([member.join.residuals for member in members])
    types, places = _layout(members)
    queries = tuple(
        SharingQuery(asked, rest, member.join.output, member.aggregate, taken)
        for member, asked, rest, taken in zip(members, filters, others, places, strict=True)
    )
    reads = {ref: name_of(ref) for query in queries for ref in sorted(query.reads, key=str)}
    output = tuple(OutputColumn(name, ref) for ref, name in reads.items())
    join = JoinSpec(tuple(relations), members[0].join.equalities, residuals, output)
    result = t.StructType([spark for spark, _ in types])
    schema = pa.schema([arrow for _, arrow in types])
    block = BlockPlan(name, join, inputs, result, sharing=Sharing(queries, schema))
    asks = [
        (*(p for each in asked.values() for p in each), *rest)
        for asked, rest in zip(filters, others, strict=True)
    ]
    return SharedBlock(block, tuple(members), tuple(asks))


def _input(block: BlockPlan, alias: str) -> ParquetInput:
    found = block.inputs[alias]
    assert isinstance(found, ParquetInput)
    return found


def _tags(block: BlockPlan) -> dict[str, Hashable]:
    """Return what tells a block's relations apart in every query: the table, and a name if it repeats."""
    tables = {alias: _input(block, alias).table for alias in block.join.aliases}
    counts = Counter(tables.values())
    return {a: (table, a.lower() if counts[table] > 1 else "") for a, table in tables.items()}


def _shape(block: BlockPlan) -> Hashable:
    """Return what blocks that may be one have in common."""
    tags = _tags(block)

    def edge(equality: Equality) -> Hashable:
        return frozenset((tags[end.relation], end.column) for end in equality.ends), equality.type

    return frozenset(tags.values()), frozenset(map(edge, block.join.equalities))


def _computes_alike(one: BlockPlan, other: BlockPlan) -> bool:
    """Tell whether no computed columns of the same name have different values."""
    by_tag = {tag: alias for alias, tag in _tags(one).items()}
    for alias, tag in _tags(other).items():
        values = dict(_input(one, by_tag[tag]).table.computed)
        if any(values.get(name, value) != value for name, value in _input(other, alias).table.computed):
            return False
    return True


def _divide(
    given: Sequence[tuple[Predicate, ...]],
) -> tuple[tuple[Predicate, ...], list[tuple[Predicate, ...]]]:
    """Return the conditions that all queries have, and those of each beyond."""
    common = tuple(p for p in dict.fromkeys(given[0]) if all(p in each for each in given[1:]))
    return common, [tuple(p for p in each if p not in common) for each in given]


def _result(block: BlockPlan) -> t.StructType:
    return block.result or spark_schema(block.schema)


def _layout(
    blocks: Sequence[BlockPlan],
) -> tuple[list[tuple[t.StructField, pa.Field]], list[tuple[int, ...]]]:
    """Return the columns of the shared result, and where those of each block are behind the first one.

    Blocks have columns of one type in common; no block uses one twice.
    """
    types = [(t.StructField(NUMBER, t.IntegerType(), False), pa.field(NUMBER, pa.int32(), False))]
    found: dict[Hashable, int] = {}
    places = []
    for block in blocks:
        counts: Counter[Hashable] = Counter()
        own = []
        for spark, arrow in zip(_result(block), block.schema, strict=True):
            has_zero = isinstance(spark.dataType, t.AtomicType) and not isinstance(
                spark.dataType, t.VariantType
            )
            nullable = spark.nullable or not has_zero
            kind = (spark.dataType.json(), arrow.type, nullable)
            slot = (kind, counts[kind])
            counts[kind] += 1
            if slot not in found:
                name = f"c{len(found)}"
                found[slot] = len(found)
                types.append(
                    (t.StructField(name, spark.dataType, nullable), pa.field(name, arrow.type, nullable))
                )
            own.append(found[slot])
        places.append(tuple(own))
    return types, places


def _rename(block: BlockPlan, aliases: Mapping[str, str]) -> BlockPlan:
    """Return a block with other aliases of its relations."""

    def rename(ref: ColumnRef) -> ColumnRef:
        return replace(ref, relation=aliases.get(ref.relation, ref.relation))

    join = block.join
    inputs: dict[str, Input] = {}
    for alias in join.aliases:
        read = _input(block, alias)
        inputs[aliases[alias]] = replace(read, filters=rename_columns(read.filters, rename))
    relations = tuple(replace(relation, alias=aliases[relation.alias]) for relation in join.relations)
    changed = {f.name: rename_columns(getattr(join, f.name), rename) for f in fields(join)}
    return replace(block, join=replace(join, **{**changed, "relations": relations}), inputs=inputs)
