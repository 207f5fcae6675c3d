"""What binds the lookup tables of a block: equalities, constants, or nothing.

An index can be asked when each of its bind columns has a value from relations that can be read first
(Raman, Deshpande & Hellerstein 2003, section 2.2). Constants of the query become a relation of their own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from millrace.engine.plan.expressions import (
    And,
    Column,
    ColumnRef,
    Compare,
    InList,
    Literal,
    Or,
    Predicate,
    relations_of,
)
from millrace.engine.plan.spec import Equality, RelationSpec
from millrace.lookups.source import name_ends
from millrace.lookups.table import IndexSpec
from millrace.spark.block import FrameInput, LookupInput, ParquetInput
from millrace.sql.blocks.conditions import SplitConjuncts, group_connected
from millrace.sql.blocks.join_graph import JoinInput, schema_of
from millrace.sql.context import PlanContext
from millrace.sql.expr.types import Field
from millrace.sql.session.tables import Lookup
from millrace.sql.syntax.parse import Unsupported

_MOST_CONSTANTS = 100_000

_END = {">=": 0, ">": 0, "<=": 1, "<": 1}
"""Which end of an interval each comparison gives, the lower one first."""


@dataclass(eq=False)
class AccessPlan:
    """How the lookup tables of a block are reached.

    Attributes:
        equalities: The block's, with those that constants add.
        residuals: What became of equalities that compare a bind column in a second type.
        constants: Constant keys as relations of the block.
        indexes: Per lookup table that is asked, the indexes that are bound; none for one that is only
            scanned by sources.
    """

    equalities: list[Equality]
    residuals: list[Predicate] = field(default_factory=list)
    constants: list[tuple[RelationSpec, FrameInput]] = field(default_factory=list)
    indexes: dict[str, tuple[IndexSpec, ...]] = field(default_factory=dict)


def bind(
    inputs: Sequence[JoinInput],
    others: Sequence[RelationSpec],
    equalities: Sequence[Equality],
    residuals: Sequence[Predicate],
    filters: Mapping[str, list[Predicate]],
    *,
    scans: bool = True,
) -> AccessPlan:
    """Find out how the lookup tables among the relations of a block are reached.

    ``others`` are relations of subqueries. ``residuals`` are over several relations; ``filters`` are, per
    alias, what the block applies to the relation alone. Without ``scans`` no lookup table is scanned.
    Unsupported where one is bound by nothing.
    """
    lookups = {m.alias: m.lookup for m in inputs if m.lookup is not None}
    plan = AccessPlan(list(equalities))
    if not lookups:
        return plan
    # Where lookup tables are compared with each other, one of them is asked first.
    residuals = sorted(residuals, key=lambda each: len(relations_of(each) & lookups.keys()))
    for alias, lookup in lookups.items():
        plan.equalities += interval_ties(alias, lookup.table.indexes[0], residuals)
        if not lookup.table.is_set:
            _keep_one_type(plan, alias, lookup)
    reached = {join_input.alias for join_input in inputs} | {spec.alias for spec in others}
    reached -= {alias for alias, lookup in lookups.items() if not (scans and lookup.table.is_scanned)}
    while True:
        ties = _ties(plan.equalities)
        while fresh := {
            alias
            for alias in lookups.keys() - reached
            if any(all(ties[alias, c] & reached for c in columns) for columns in lookups[alias].table.bind)
        }:
            reached |= fresh
        lost = [alias for alias in lookups if alias not in reached]
        if not lost:
            break
        for alias in lost:
            binds = lookups[alias].table.bind
            free = [[c for c in columns if not ties[alias, c] & reached] for columns in binds]
            keys = _constants(alias, lookups[alias], free, filters.get(alias, ()), len(plan.constants))
            if keys:
                break
        else:
            raise Unsupported("; ".join(unbound(alias, lookups[alias]) for alias in lost))
        for spec, rows, equality in keys:
            ends = lookups[equality.right.relation].table.indexes[0].ends
            if any(end.name == equality.right.column for end in ends):  # each has one bound
                plan.equalities = [each for each in plan.equalities if equality.right not in each.ends]
            plan.constants.append((spec, rows))
            plan.equalities.append(equality)
            reached.add(spec.alias)
    for alias, lookup in lookups.items():
        bound = tuple(i for i in lookup.table.indexes if all(ties[alias, c] for c in i.columns))
        if bound or lookup.needs_keys or not scans:
            plan.indexes[alias] = bound
    return plan


def unbound(alias: str, lookup: Lookup) -> str:
    """Return what a lookup table lacks that nothing binds, for explanations."""
    name = lookup.table.name
    shown = f"lookup table {name!r}" + ("" if alias.lower() == name.lower() else f" ({alias})")
    return f"{shown} needs values for {lookup.table.needs(alias)}"


def interval_ties(alias: str, index: IndexSpec, predicates: Iterable[Predicate]) -> list[Equality]:
    """Return what ties the ends of an index's intervals to columns of other relations.

    Intervals are closed, and the first bound of each side is an end: the predicates still judge what comes.
    """
    ties: dict[str, Equality] = {}
    for end, bound in _interval_ends(alias, index, predicates):
        if isinstance(bound, Column) and bound.ref.relation != alias:
            ties.setdefault(end, Equality(bound.ref, ColumnRef(alias, end), index.schema.field(end).type))
    return list(ties.values())


def _interval_ends(
    alias: str, index: IndexSpec, predicates: Iterable[Predicate]
) -> Iterator[tuple[str, object]]:
    """Yield ends of an index's intervals, and what predicates, all of which hold, compare there.

    They compare in the column's own type: a source has no others in order.
    """
    ref = Column(ColumnRef(alias, index.between))
    for predicate in predicates if index.between else ():
        match predicate:
            case And(arguments):
                yield from _interval_ends(alias, index, arguments)
            case Compare(op, left, right, kind) if op in _END and ref in (left, right):
                if kind == index.schema.field(index.between).type:
                    place = _END[op] if left == ref else 1 - _END[op]
                    yield name_ends(index.between)[place], right if left == ref else left


def _keep_one_type(plan: AccessPlan, alias: str, lookup: Lookup) -> None:
    """Let each bind column be compared in one type: asked in two, a row could come twice."""
    for column in lookup.table.bind[0]:
        own = lookup.table.indexes[0].schema.field(column).type
        ref = ColumnRef(alias, column)
        touching = [e for e in plan.equalities if ref in e.ends]
        kinds = list(dict.fromkeys(e.type for e in touching))
        if len(kinds) < 2:
            continue
        kept = own if own in kinds else kinds[0]
        for equality in touching:
            if equality.type != kept:
                plan.equalities.remove(equality)
                sides = Column(equality.left), Column(equality.right)
                plan.residuals.append(Compare("=", *sides, equality.type))


def _ties(equalities: Iterable[Equality]) -> Mapping[tuple[str, str], set[str]]:
    """Return, per relation and column, the other relations that equalities of one type tie it to."""
    pairs = [((e.left, e.type), (e.right, e.type)) for e in equalities]
    ties: dict[tuple[str, str], set[str]] = defaultdict(set)
    for group in group_connected(pairs):
        for ref, _ in group:
            ties[ref.relation, ref.column] |= {other.relation for other, _ in group} - {ref.relation}
    return ties


def _constants(
    alias: str, lookup: Lookup, free: Sequence[list[str]], filters: Sequence[Predicate], number: int
) -> list[tuple[RelationSpec, FrameInput, Equality]]:
    """Return relations of constants that bind an index of a lookup table, none if there are none.

    ``free`` are, for each index, the columns that no other relation has values for.
    """
    keys = [{c: constants_of(filters, ColumnRef(alias, c), lookup) for c in columns} for columns in free]
    bound = (constants for constants in keys if None not in constants.values())
    relations = []
    for place, (column, constants) in enumerate(min(bound, key=len, default={}).items(), number):
        kind = lookup.table.indexes[0].schema.field(column).type
        rows = pa.table({"key": pa.array(constants or (), kind)})
        spec = RelationSpec(f"__key{place}", rows.schema, rows=rows.num_rows)
        equality = Equality(ColumnRef(spec.alias, "key"), ColumnRef(alias, column), kind)
        relations.append((spec, FrameInput(rows), equality))
    return relations


def constants_of(filters: Sequence[Predicate], ref: ColumnRef, lookup: Lookup) -> list[pa.Scalar] | None:
    """Return distinct values, in the column's type, one of which a row must have; None if any may do."""
    index = lookup.table.indexes[0]
    kind = index.schema.field(ref.column).type
    ends = [bound for end, bound in _interval_ends(ref.relation, index, filters) if end == ref.column]
    if literals := [each.value for each in ends if isinstance(each, Literal)]:
        return [pa.scalar(value, kind) for value in literals[:1] if value is not None]
    for predicate in filters:
        values = _values(predicate, ref)
        if values is not None and len(values) <= _MOST_CONSTANTS:
            exact = (_exactly(value, kind) for value in values)
            return list(dict.fromkeys(value for value in exact if value is not None))
    return None


def _values(predicate: Predicate, ref: ColumnRef) -> list[pa.Scalar] | None:
    match predicate:
        case Compare("=" | "<=>", Column(left), Literal(value, _), kind) if left == ref and value is not None:
            return [pa.scalar(value, kind)]
        case InList(Column(left), values, kind) if left == ref:
            return [pa.scalar(value, kind) for value in values if value is not None]
        case And(arguments):
            sets = [_values(a, ref) for a in arguments]
            return min((values_ for values_ in sets if values_ is not None), key=len, default=None)
        case Or(arguments):
            sets = [_values(a, ref) for a in arguments]
            return None if None in sets else [value for values_ in sets for value in values_ or ()]
    return None


def _exactly(value: pa.Scalar, kind: pa.DataType) -> pa.Scalar | None:
    """Return a constant in a column's type; None if no value of that type is equal to it."""
    try:
        exact = value.cast(kind)
        return exact if exact.cast(value.type).equals(value) else None
    except pa.ArrowInvalid:
        return None


def lookup_rows(
    context: PlanContext,
    join_input: JoinInput,
    columns: list[Field],
    conjuncts: SplitConjuncts,
    indexes: tuple[IndexSpec, ...],
    *,
    scans: bool = True,
) -> tuple[RelationSpec, LookupInput]:
    """Return the spec of a lookup table that is asked, and how it is; without ``scans`` by key alone."""
    lookup = join_input.lookup
    assert lookup is not None
    table = lookup.table
    if table.is_set:
        columns = list(join_input.columns)
    filters = tuple(dict.fromkeys(conjuncts.filters.get(join_input.alias, ())))
    ends = [end for index in indexes for end in index.ends]
    schema = pa.schema([*schema_of(join_input.alias, columns), *ends])
    scan: ParquetInput | FrameInput | None = None
    if scans and lookup.parquet is not None:
        scan = ParquetInput(lookup.parquet, tuple(schema.names), filters)
    elif scans and lookup.scan is not None:
        placeholder = context.frames.place(lookup.scan)
        whole = f"SELECT * FROM {placeholder}"  # noqa: S608
        scan = join_input.read_from(whole, columns, conjuncts.texts.get(join_input.alias, ()))
    # Of a set, equal tuples from several access methods are one by that alone.
    spec = RelationSpec(join_input.alias, schema)
    return spec, LookupInput(indexes, scan, table.sources if scans else (), filters)
