"""The relations that a block may take: their columns, and where their rows come from.

Where Spark reads a relation for a block, its columns go by their places: it is read as ``SELECT … FROM (…) AS
t(__c0, __c1, …)``, and a condition in it names them so. No name in it can mean anything else.
"""

# ruff: noqa: S608  # SQL is what this module writes

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa
from sqlglot import exp

from millrace.engine.expressions import Value, columns_of
from millrace.engine.spec import RelationSpec
from millrace.errors import InputError
from millrace.parquet.types import fixed_width
from millrace.spark.block import ParquetInput
from millrace.sql.blocks.conditions import SplitConjuncts
from millrace.sql.expr.types import Field
from millrace.sql.lookups.tables import Lookup
from millrace.sql.planner.context import PlanContext, short
from millrace.sql.planner.plan import Read, scanned, show_scanned
from millrace.sql.session.tables import Table
from millrace.sql.syntax.ctes import definitions
from millrace.sql.syntax.edits import Edit
from millrace.sql.syntax.from_clause import Relation
from millrace.sql.syntax.parse import Unsupported, name_span


@dataclass(frozen=True)
class DerivedColumn:
    """An expression over one relation as a column of it.

    Attributes:
        field: The column.
        text: The expression where Spark reads the relation.
        value: The same where tasks read it themselves; None where only Spark computes it.
        hides_errors: Whether it is null in rows in which the expression as written has no value and raises.
    """

    field: Field
    text: str
    value: Value | None = None
    hides_errors: bool = False


@dataclass(eq=False)
class JoinInput:
    """A relation that a block may take.

    Attributes:
        alias: Its name in the block, as the query writes it.
        relation: The relation.
        step: Number of its step in the FROM clause.
        columns: Its columns in order, under names that are unique in the block.
        table: The base table that it is, if it is one.
        computed: Further columns, which are expressions over these.
    """

    alias: str
    relation: Relation
    step: int
    columns: tuple[Field, ...]
    table: Table | None = None
    computed: list[DerivedColumn] = field(default_factory=list)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its columns in the block."""
        return tuple(column.name for column in self.columns)

    @property
    def lookup(self) -> Lookup | None:
        """The lookup table that it is, None for any other relation."""
        return None if self.table is None else self.table.lookup

    @property
    def every(self) -> tuple[Field, ...]:
        """Its columns, and those that are computed."""
        return (*self.columns, *(each.field for each in self.computed))

    def texts(self, columns: Iterable[Field]) -> list[str]:
        """Return what gives columns where Spark reads the relation."""
        known = {column.name: scanned(place) for place, column in enumerate(self.columns)}
        computed = enumerate(self.computed)
        known |= {each.field.name: f"{each.text} AS __e{place}" for place, each in computed}
        return [known[column.name] for column in columns]

    def scan(self, whole: str, wanted: Iterable[str]) -> str:
        """Return a query for expressions over the columns, by their places, of a query for all of these."""
        names = ", ".join(scanned(place) for place in range(len(self.columns)))
        return f"SELECT {', '.join(wanted)} FROM ({whole}) AS __t({names})"


def member_of(context: PlanContext, relation: Relation, step: int, taken: Sequence[str]) -> JoinInput:
    """Return a relation as a member of a block.

    Args:
        context: The query.
        relation: The relation.
        step: Number of its step in the FROM clause.
        taken: The aliases of the members before it.

    Raises:
        Unsupported: It has a form that only Spark handles.
        InputError: It is the result of a join of streams.
    """
    node = relation.node
    shown = short(context.shown(node))
    if not relation.plain:
        kind = "TABLESAMPLE" if node.args.get("sample") else "a version"
        raise Unsupported(f"{kind} of {shown}")
    if relation.kind not in ("table", "cte", "query"):
        raise Unsupported(f"{shown} is a relation that only Spark evaluates")
    table = context.names.table(relation)
    if table is None and any(context.volatility.volatile(part) for part in (node, *definitions(node))):
        raise Unsupported(f"{shown} may give other rows when it runs again")
    fields = context.names.fields(relation)
    if context.is_streaming(node) and context.has_block(node):
        raise InputError(
            f"{shown} joins streams, and its rows are joined with others again, although they may be older "
            "than the watermark by then: join all of the streams in one FROM clause, or write the result of "
            "the inner join to a table and read that as a stream in another query"
        )
    # What files call their columns is what a block calls them, whatever the query does.
    own = table.fields if table is not None and table.parquet is not None else fields
    names: list[str] = []
    for place, each in enumerate(own):
        names.append(each.name if each.name not in names else f"{each.name}#{place}")
    columns = tuple(replace(each, name=name) for each, name in zip(fields, names, strict=True))
    alias = relation.alias or f"#{step}"
    while alias in taken:
        alias += "_"
    return JoinInput(alias, relation, step, columns, table)


def condition_text(context: PlanContext, member: JoinInput, node: exp.Expr) -> str | None:
    """Return a condition over a relation as it stands where Spark reads it; None if it has no text."""
    edits = renamings(context, member, node)
    if edits is None or not context.statement.has_span(node):
        return None
    return context.text.with_edits(context.statement.span(node), edits)


def renamings(context: PlanContext, member: JoinInput, node: exp.Expr) -> list[Edit] | None:
    """Return the edits that name a relation's columns as where Spark reads it; None if it reads others."""
    edits = []
    for column in node.find_all(exp.Column):
        found = context.names.find(column)
        match = None if found is None else found.match
        if match is None or match.attribute.relation is not member.relation:
            return None
        text = scanned(match.attribute.sources[0][1])
        edits.append(Edit(*name_span(column, match.qualifier), (text,)))
    return edits


def reading(context: PlanContext, member: JoinInput, columns: Sequence[Field], where: Sequence[str]) -> Read:
    """Return how Spark reads columns of a relation, filtered.

    Raises:
        Unsupported: The definitions that it needs cannot be put into one WITH clause.
    """
    whole = context.whole(member.relation, context.text.edited)
    barred = context.frames.barred(whole)
    if barred:
        raise Unsupported(f"it reads {' and '.join(barred)}, of which Spark has no rows")
    return read_from(whole, member, columns, where)


def read_from(whole: str, member: JoinInput, columns: Sequence[Field], where: Sequence[str]) -> Read:
    """Return how Spark reads columns of the rows that a query gives, filtered.

    Args:
        whole: A query with all columns of the relation.
        member: The relation.
        columns: The wanted ones.
        where: Conditions.
    """
    condition = " AND ".join(where)
    template = member.scan(whole, member.texts(columns)) + (f" WHERE {condition}" if where else "")
    return Read(template, show_scanned(condition, member.names))


def rows_of(
    context: PlanContext,
    member: JoinInput,
    columns: list[Field],
    found: SplitConjuncts,
    *,
    in_cells: bool = False,
) -> tuple[RelationSpec, ParquetInput | Read]:
    """Return the relation's spec, and where its rows come from.

    ``columns`` are those that the block reads or gives out, in the relation's order. ``in_cells`` says that
    it is one of several streams, which cells keep.

    Raises:
        Unsupported: A column has a type that a block cannot carry, or the relation cannot be read by itself.
    """
    table = member.table
    filters = tuple(dict.fromkeys(found.filters.get(member.alias, ())))
    wanted = {f.name for f in columns} | {ref.column for p in filters for ref in columns_of(p)}
    computed = [each for each in member.computed if each.field.name in wanted]
    by_spark = member.alias in found.spark_only or any(each.value is None for each in computed)
    if table is not None and not by_spark and table.parquet is not None:
        schema = schema_of(member.alias, columns)
        values = tuple((each.field.name, each.value) for each in computed if each.value is not None)
        direct = ParquetInput(table.parquet.with_computed(values), tuple(schema.names), filters)
        return RelationSpec(member.alias, schema), direct
    if not columns:
        # Spark needs a column to send; the narrowest that can be sent will do.
        carried = [f for f in member.columns if f.arrow is not None]
        if not carried:
            raise Unsupported(f"no column of {member.alias} can pass through a join here")
        columns = [min(carried, key=lambda f: fixed_width(f.arrow) or 1 << 20)]
    context.reasons += [
        f"Spark computes {each.field.name}, as null and without an error where it has no value of its type"
        for each in computed
        if each.hides_errors
    ]
    schema = schema_of(member.alias, columns)
    where = list(dict.fromkeys(found.texts.get(member.alias, ())))
    made = _made_on_arrival(columns, computed) if in_cells else {}
    read = reading(context, member, [each for each in columns if each.name not in made], where)
    why = "" if table is None or by_spark else table.why
    known = None if member.alias in found.spark_only else filters
    values = tuple(made.items())
    return RelationSpec(member.alias, schema), replace(read, why=why, filters=known, computed=values)


def _made_on_arrival(columns: Sequence[Field], computed: Sequence[DerivedColumn]) -> dict[str, Value]:
    """Return the columns of a stream that cells compute of what travels, so that less does."""
    values = {each.field.name: each.value for each in computed if each.value is not None}
    travel = {each.name for each in columns} - set(values)
    return {
        name: value for name, value in values.items() if {ref.column for ref in columns_of(value)} <= travel
    }


def schema_of(alias: str, columns: Sequence[Field]) -> pa.Schema:
    """Return columns of a relation in a block's types.

    Raises:
        Unsupported: A block cannot carry one.
    """
    for each in columns:
        if each.arrow is None:
            raise Unsupported(
                f"column {alias}.{each.name} has type {each.type.simpleString()}, "
                "which cannot pass through a join here"
            )
    return pa.schema([pa.field(f.name, f.arrow) for f in columns])
