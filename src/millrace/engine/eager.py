"""Eager aggregation: a relation's tuples are aggregated partially before they are joined.

Yan & Larson, "Eager aggregation and lazy aggregation" (VLDB 1995). Of some relation only aggregates may read
more than the column that it is joined by. Those of its tuples that agree in this column meet the same tuples.
So they arrive as one tuple: with its *weight*, which is their number, and with partial results of what is
aggregated of them alone. What is aggregated of other relations counts once for each of them: counts and sums
are multiplied by the weight, least and greatest values stay.

What arrives are tuples like others. So nothing that joins them has to know of this: neither timestamps, nor
the order of joins, which may differ from tuple to tuple, nor state that is moved.

One relation is aggregated so, the largest of which it is known before that its key repeats. Products have to
fit their types: no sum of 64-bit numbers of other relations, nor of decimals without room for the digits of
a weight.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import pyarrow as pa
from pyarrow import types as t

from millrace.engine.aggregate import WEIGHT_DIGITS, AggregateSpec, Partial, PartialAggregation
from millrace.engine.plan.expressions import Column, ColumnRef, columns_of, type_of
from millrace.engine.plan.spec import JoinSpec, OutputColumn, RelationSpec

WEIGHT = "__weight"
"""The column with the number of tuples that a tuple stands for."""


@dataclass(frozen=True)
class EagerAggregation:
    """How the tuples of a relation are aggregated before they are joined.

    Attributes:
        join: The block, with the relation as it is then.
        aggregate: Of the rows of that block.
        own: Of the relation's tuples.
        columns: The relation's columns by the names that ``own`` reads.
        schema: Of these.
    """

    alias: str
    join: JoinSpec
    aggregate: AggregateSpec
    own: AggregateSpec
    columns: Mapping[str, str]
    schema: pa.Schema

    @classmethod
    def of(
        cls, join: JoinSpec, aggregate: AggregateSpec, repeats: Callable[[str, str], bool]
    ) -> EagerAggregation | None:
        """Return how the largest relation that may be aggregated is; None where there is none.

        ``repeats`` tells of a column of whole numbers, after its relation's alias, whether its values repeat.
        """
        for relation in () if join.outer else sorted(join.relations, key=lambda r: -(r.rows or 0)):
            made = _of(join, aggregate, relation)
            if made is not None and repeats(made.alias, *made.own.keys):
                return made
        return None

    def over(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the relation's tuples as they are to be joined."""
        columns = [*self.columns.values()]
        named = (
            pa.RecordBatch.from_arrays([b.column(c) for c in columns], schema=self.schema) for b in batches
        )
        return PartialAggregation(self.own, self.schema).over(named)


def _of(join: JoinSpec, aggregate: AggregateSpec, relation: RelationSpec) -> EagerAggregation | None:
    alias = relation.alias
    shares = any(r.same_as is not None and alias in (r.alias, r.same_as) for r in join.relations)
    if relation.distinct or relation.window or shares:
        return None
    source = {o.name: o.source for o in join.output}
    reads = {p: {ref.column for ref in columns_of(p.value)} if p.value else set() for p in aggregate.partials}
    own = [p for p, names in reads.items() if names and all(source[n].relation == alias for n in names)]
    names = {*aggregate.keys, *(name for p in reads if p not in own for name in reads[p])}
    refs = [source[name] for name in names]
    refs += [ref for e in join.equalities for ref in e.ends]
    refs += [ref for predicate in join.residuals for ref in columns_of(predicate)]
    key, *others = {ref.column for ref in refs if ref.relation == alias} or {""}
    columns = {key: key} | {name: source[name].column for p in own for name in reads[p]}
    if others or not key or columns[key] != key or WEIGHT in source:
        return None
    schema = pa.schema([relation.schema.field(column).with_name(name) for name, column in columns.items()])
    foreign = [p for p in reads if p not in own]
    if not t.is_integer(schema.field(key).type) or not all(_has_room(p, join, source) for p in foreign):
        return None
    spec = AggregateSpec((key,), (Partial(WEIGHT, "count", None, pa.int64()), *own))
    smaller = replace(relation, schema=spec.schema(schema))
    return EagerAggregation(
        alias,
        replace(
            join,
            relations=tuple(smaller if r is relation else r for r in join.relations),
            output=(
                *(o for o in join.output if o.name in names),
                *(OutputColumn(p.name, ColumnRef(alias, p.name)) for p in spec.partials),
            ),
        ),
        replace(aggregate, partials=tuple(_total(p) if p in own else _weighted(p) for p in reads)),
        spec,
        columns,
        schema,
    )


def _total(own: Partial) -> Partial:
    """Return what puts together partial results of the relation."""
    how = "sum" if own.how == "count" else own.how
    return replace(own, how=how, value=Column(ColumnRef("", own.name)))


def _weighted(foreign: Partial) -> Partial:
    return replace(foreign, weight=WEIGHT)


def _has_room(partial: Partial, join: JoinSpec, source: Mapping[str, ColumnRef]) -> bool:
    """Tell whether values times weights fit the type of their sum, on the way too."""
    value = partial.value
    if partial.how != "sum" or value is None or t.is_floating(partial.type):
        return True
    if isinstance(value, Column):
        ref = source[value.ref.column]
        kind = join.relation(ref.relation).schema.field(ref.column).type
    else:
        kind = type_of(value)
    if t.is_decimal(kind):
        return bool(kind.precision + WEIGHT_DIGITS <= min(partial.type.precision, 37))
    return bool(kind.bit_width <= 32)
