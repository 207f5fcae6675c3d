"""The join graph of one FROM clause: relations that a block may take, their rows, and what links them.

Where Spark reads a relation for a block, its columns go by their places: it is read as ``SELECT … FROM (…) AS
t(__c0, __c1, …)``, and a condition in it names them so. No name in it can mean anything else.
"""

# ruff: noqa: S608  # SQL is what this module writes

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import pyarrow as pa
from sqlglot import exp

from millrace.engine.arrays import fixed_width
from millrace.engine.plan.expressions import ColumnRef, Value, columns_of
from millrace.engine.plan.spec import Equality, RelationSpec
from millrace.errors import InputError
from millrace.spark.block import FrameInput, ParquetInput
from millrace.sql.blocks.conditions import SplitConjuncts
from millrace.sql.context import PlanContext, short
from millrace.sql.expr.types import AliasedField, Field, comparison_type
from millrace.sql.names import Attribute
from millrace.sql.plan import scanned, show_scanned
from millrace.sql.session.tables import Lookup, Table
from millrace.sql.syntax.edits import Edit
from millrace.sql.syntax.parse import Unsupported, name_span
from millrace.sql.syntax.scopes import FromClause, Relation, Scope, definitions


@dataclass(frozen=True)
class DerivedColumn:
    """An expression over one relation as a column of it.

    Attributes:
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
        step: Number of its step in the FROM clause.
        columns: In order, under names that are unique in the block.
        computed: Further columns, which are expressions over these.
    """

    alias: str
    relation: Relation
    step: int
    columns: tuple[Field, ...]
    table: Table | None = None
    computed: list[DerivedColumn] = field(default_factory=list)

    @classmethod
    def of(cls, context: PlanContext, relation: Relation, step: int, aliases: Collection[str]) -> JoinInput:
        """Return a relation as an input with an alias unlike those in use.

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
        table = context.table(relation)
        if table is not None and table.lookup is not None and relation.columns:
            raise Unsupported(f"a list of column names behind {shown}")
        if table is None and any(context.determinism.volatile(part) for part in (node, *definitions(node))):
            raise Unsupported(f"{shown} may give other rows when it runs again")
        fields = context.names.fields(relation)
        if context.is_streaming(node) and context.has_block(node):
            raise InputError(
                f"{shown} joins streams, and its rows are joined with others again, although they may be "
                "older than the watermark by then: join all of the streams in one FROM clause, or write the "
                "result of the inner join to a table and read that as a stream in another query"
            )
        # What files call their columns is what a block calls them, whatever the query does.
        own = table.fields if table is not None and table.parquet is not None else fields
        names: list[str] = []
        for place, column in enumerate(own):
            names.append(column.name if column.name not in names else f"{column.name}#{place}")
        columns = tuple(
            replace(column, name=name, nullable=column.nullable or relation.is_nullable)
            for column, name in zip(fields, names, strict=True)
        )
        alias = relation.alias or f"#{step}"
        while alias in aliases:
            alias += "_"
        return cls(alias, relation, step, columns, table)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its columns in the block."""
        return tuple(column.name for column in self.columns)

    @property
    def lookup(self) -> Lookup | None:
        """The lookup table that it is, None for any other relation."""
        return None if self.table is None else self.table.lookup

    @property
    def is_scanned(self) -> bool:
        """Whether it is files, no lookup table, that tasks would read themselves."""
        return self.table is not None and self.lookup is None and self.table.parquet is not None

    @property
    def every(self) -> tuple[Field, ...]:
        """Its columns, and those that are computed."""
        return (*self.columns, *(column.field for column in self.computed))

    def find_column(self, attribute: Attribute) -> AliasedField | None:
        """Return the alias and the column that an attribute is, None if it is no column of it."""
        owned = attribute.relation is self.relation
        return (self.alias, self.columns[attribute.sources[0][1]]) if owned else None

    def texts(self, columns: Iterable[Field]) -> list[str]:
        """Return what gives columns where Spark reads the relation."""
        texts = {column.name: scanned(place) for place, column in enumerate(self.columns)}
        computed = enumerate(self.computed)
        texts |= {column.field.name: f"{column.text} AS __e{place}" for place, column in computed}
        return [texts[column.name] for column in columns]

    def scan(self, query: str, items: Iterable[str]) -> str:
        """Return a query for expressions over the columns, by their places, of a query for all of these."""
        names = ", ".join(scanned(place) for place in range(len(self.columns)))
        return f"SELECT {', '.join(items)} FROM ({query}) AS __t({names})"

    def condition_text(self, context: PlanContext, node: exp.Expr) -> str | None:
        """Return a condition as it stands where Spark reads the relation; None if it has no text."""
        edits = self.renamings(context, node)
        if edits is None or not context.statement.has_span(node):
            return None
        return context.text.with_edits(context.statement.span(node), edits)

    def renamings(self, context: PlanContext, node: exp.Expr) -> list[Edit] | None:
        """Return the edits that name its columns as where Spark reads it; None if it reads other ones."""
        edits = []
        for column in node.find_all(exp.Column):
            match = context.names.match(column)
            if match is None or match.attribute.relation is not self.relation:
                return None
            text = scanned(match.attribute.sources[0][1])
            edits.append(Edit(*name_span(column, match.qualifier), (text,)))
        return edits

    # Where its rows come from: files that tasks read, or a query that Spark runs

    def rows(
        self,
        context: PlanContext,
        columns: list[Field],
        conditions: SplitConjuncts,
        *,
        dealt_by: Collection[str] | None = None,
    ) -> tuple[RelationSpec, ParquetInput | FrameInput]:
        """Return its spec, and where its rows come from.

        ``columns`` are those that the block reads or gives out, in their order. ``dealt_by`` are the
        columns by which tuples may be dealt to cells, where it is one of several streams, which these keep.

        Raises:
            Unsupported: A column has a type that a block cannot carry, or it cannot be read by itself.
        """
        table, alias = self.table, self.alias
        filters = tuple(dict.fromkeys(conditions.filters.get(alias, ())))
        read = {f.name for f in columns} | {ref.column for p in filters for ref in columns_of(p)}
        computed = [column for column in self.computed if column.field.name in read]
        by_spark = alias in conditions.spark_only or any(column.value is None for column in computed)
        if table is not None and not by_spark and table.parquet is not None:
            schema = schema_of(alias, columns)
            values = tuple(
                (column.field.name, column.value) for column in computed if column.value is not None
            )
            direct = ParquetInput(table.parquet.with_computed(values), tuple(schema.names), filters)
            return RelationSpec(alias, schema), direct
        if not columns:
            # Spark needs a column to send; the narrowest that can be sent will do.
            carried = [f for f in self.columns if f.arrow is not None]
            if not carried:
                raise Unsupported(f"no column of {alias} can pass through a join here")
            columns = [min(carried, key=lambda f: fixed_width(f.arrow) or 1 << 20)]
        context.reasons += [
            f"Spark computes {column.field.name}, as null and without an error where it has no value of its "
            "type"
            for column in computed
            if column.hides_errors
        ]
        schema = schema_of(alias, columns)
        where = list(dict.fromkeys(conditions.texts.get(alias, ())))
        on_arrival = {} if dealt_by is None else _computed_on_arrival(columns, computed, dealt_by)
        query = context.whole(self.relation, context.text.edited)
        if barred := context.catalog.barred(query):
            raise Unsupported(f"it reads {' and '.join(barred)}, of which Spark has no rows")
        rows = self.read_from(query, [f for f in columns if f.name not in on_arrival], where)
        why = "" if table is None or by_spark else table.why
        judged = None if alias in conditions.spark_only else filters
        return RelationSpec(alias, schema), replace(
            rows, why=why, filters=judged, computed=tuple(on_arrival.items())
        )

    def read_from(self, query: str, columns: Sequence[Field], where: Sequence[str]) -> FrameInput:
        """Return how Spark reads some of its columns, filtered, of a query for all of them."""
        condition = " AND ".join(where)
        template = self.scan(query, self.texts(columns)) + (f" WHERE {condition}" if where else "")
        return FrameInput(template, where=show_scanned(condition, self.names))


def _computed_on_arrival(
    columns: Sequence[Field], computed: Sequence[DerivedColumn], dealt_by: Collection[str]
) -> dict[str, Value]:
    """Return the columns of a stream that cells compute of what travels, so that less does.

    What tells the cell of a tuple travels.
    """
    later = [column for column in computed if column.field.name not in dealt_by]
    values = {column.field.name: column.value for column in later if column.value is not None}
    travel = {column.name for column in columns} - set(values)
    return {name: v for name, v in values.items() if {ref.column for ref in columns_of(v)} <= travel}


def schema_of(alias: str, columns: Sequence[Field]) -> pa.Schema:
    """Return columns of a relation in a block's types; raises Unsupported where it cannot carry one."""
    for column in columns:
        if column.arrow is None:
            raise Unsupported(
                f"column {alias}.{column.name} has type {column.type.simpleString()}, "
                "which cannot pass through a join here"
            )
    return pa.schema([pa.field(f.name, f.arrow) for f in columns])


@dataclass(eq=False)
class JoinGraph:
    """One FROM clause being worked on, the ``source``.

    Attributes:
        inputs: The relations that a block may take, by alias.
        outer: The relations of LEFT joins that a block takes, by alias.
        conditions: What links and filters them, by who evaluates it.
    """

    context: PlanContext
    scope: Scope
    source: FromClause
    inputs: dict[str, JoinInput] = field(default_factory=dict)
    outer: dict[str, JoinInput] = field(default_factory=dict)
    conditions: SplitConjuncts = field(default_factory=SplitConjuncts)

    @property
    def streams(self) -> list[str]:
        """The aliases of the inputs that are streams."""
        return [alias for alias, i in self.inputs.items() if self.context.is_streaming(i.relation.node)]

    @cached_property
    def hinted(self) -> set[str]:
        """The relations that hints name, in lower case: Spark is to join them as the user chose."""
        hint = self.scope.select.args.get("hint")
        joins = () if hint is None else hint.find_all(exp.JoinHint)
        return {table.name.lower() for join in joins for table in join.expressions}

    def has_lookup(self, aliases: Iterable[str]) -> bool:
        return any(self.inputs[alias].lookup for alias in aliases)

    # What names mean

    @property
    def taken(self) -> list[JoinInput]:
        """All of its relations that a block takes, or may."""
        return [*self.inputs.values(), *self.outer.values()]

    def find_column(self, attribute: Attribute) -> AliasedField | None:
        """Return the alias and the column that an attribute is, None if it is no column of an input."""
        return next(filter(None, (owner.find_column(attribute) for owner in self.taken)), None)

    def column(self, name: exp.Column) -> AliasedField | None:
        """Return the alias and the column that a name means, None if it means anything else."""
        attribute = self.context.names.attribute(name)
        return None if attribute is None else self.find_column(attribute)

    def reads(self, node: exp.Expr) -> tuple[frozenset[str], frozenset[int]]:
        """Return the inputs that a condition reads, and the numbers of other steps that it reads.

        What lies outside of this FROM clause, or is not known, has the number -1.
        """
        names = self.context.names
        attributes: list[Attribute] = []
        outside = False
        for column in node.find_all(exp.Column):
            resolved = names.find(column)
            if resolved is not None and resolved.scope is self.scope:
                if resolved.match is not None:
                    attributes.append(resolved.match.attribute)
                    continue
                outside = True
            place = names.scopes.find_place(column)
            outside |= place is not None and place.scope is self.scope
        reads, foreign = self.reads_attributes(attributes)
        return reads, foreign | {-1} if outside else foreign

    def reads_attributes(self, attributes: Iterable[Attribute]) -> tuple[frozenset[str], frozenset[int]]:
        """Return the inputs that columns are of, and the numbers of other steps."""
        aliases = {join_input.relation: join_input.alias for join_input in self.taken}
        relations = {relation for attribute in attributes for relation, _ in attribute.sources}
        numbers = map(self.source.number, relations - aliases.keys())
        return frozenset(aliases[each] for each in relations & aliases.keys()), frozenset(numbers)

    # USING and NATURAL

    def inner_keys(self) -> list[tuple[Attribute, Attribute]]:
        """Return the pairs of columns that USING and NATURAL compare where inner joins may move."""
        clauses = dict.fromkeys((self.source, *(step.clause for step in self.source.steps if step.movable)))
        items = [item for clause in clauses for item in clause.items if item.movable]
        return [pair for item in items for pair in self.context.names.keys_of(item)]

    def equality(self, left: AliasedField | None, right: AliasedField | None) -> Equality | None:
        """Return an equality of two columns as an edge of the graph, None where Spark has to compare."""
        if left is None or right is None or not (left[1].comparable and right[1].comparable):
            return None
        kind = comparison_type(left[1].type, right[1].type, ansi=self.context.settings.ansi)
        a, b = (ColumnRef(alias, field.name) for alias, field in (left, right))
        return None if kind is None else Equality(a, b, kind)

    # What is not certain

    def check_certain(self) -> None:
        """Refuse a SELECT in which it is not certain what some name means."""
        names = self.context.names
        parts = list(self.scope.select.walk())
        for column in parts:
            if not isinstance(column, exp.Column) or column.find_ancestor(exp.Star) is not None:
                continue  # EXCEPT of a star names what it shows
            resolved = names.find(column)
            if resolved is None or resolved.scope is not self.scope:
                continue
            if resolved.why or resolved.match is None:
                shown = ".".join(part.name for part in column.parts)
                raise Unsupported(f"it is not certain what {shown} means: {resolved.why}")
        self._check_words(parts)

    def _check_words(self, parts: Sequence[exp.Expr]) -> None:
        """Refuse a word that is the name of an input's column, and that the parser did not take for a name.

        Functions that are called without parentheses could be columns: ``current_date``.
        """
        statement, columns = self.context.statement, self.context.names.columns
        start, end = statement.span(self.scope.select) if statement.has_span(self.scope.select) else (0, 0)
        named = {name.lower() for i in self.taken for name in (*i.names, *columns(i.relation))}
        parsed = {part.meta.get("start") for part in parts if isinstance(part, exp.Identifier)}
        syntax = {part.name.lower() for part in parts if isinstance(part, exp.Var)}
        syntax |= {part.sql().lower() for part in parts if isinstance(part, exp.DataType)}
        for (first, last), word in statement.names:
            if start <= first < end and word in named and first not in parsed and word not in syntax:
                parameter = statement.text[max(0, first - 2) : first].lstrip()[-1:] == ":"
                if not parameter and statement.text[last:].lstrip()[:1] != "(":
                    raise Unsupported(f"{word} stands in a form that Millrace does not read")
