"""Rewrite one SELECT so that it reads blocks instead of the relations they took.

A block becomes one relation whose columns have names that nothing else has, and every name that meant one
of them is replaced, qualified or not. USING and NATURAL become ON, so that no column is merged with another
any more, and stars are written out. Result columns and struct fields that took their name from the column get
an explicit alias; those that Spark names after their expression, ``(id + 1)``, get the name that the query as
written gives them, because somebody may read the column by it. All of that is edits of the original text.
"""

# ruff: noqa: S608  # SQL is what this module writes

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import types as t
from sqlglot import exp

from millrace.engine.aggregates import AggregateSpec
from millrace.engine.expressions import ColumnRef
from millrace.engine.spec import OutputColumn
from millrace.sql.aggregation import BARS, Aggregation
from millrace.sql.blocks.conditions import is_boolean
from millrace.sql.blocks.join_graph import JoinGraph, JoinInput
from millrace.sql.blocks.subqueries import existence_test
from millrace.sql.context import PlanContext
from millrace.sql.expr.types import Field
from millrace.sql.names import Attribute, Match, is_path, is_star
from millrace.sql.plan import BlockPlan, Direct
from millrace.sql.session.functions import restored
from millrace.sql.syntax.edits import Edit, Part, Span, quote
from millrace.sql.syntax.parse import Unsupported, name_span, unwrap
from millrace.sql.syntax.scopes import FromItem, Relation, Scope, with_prefix

COUNT = "__count"
"""The column of a block that only counts."""

_ODD = re.compile(r"\W")


@dataclass(eq=False)
class BlockOutput:
    """A block's relation in the rewritten text, which stands for its inputs.

    Attributes:
        fields: All columns of its inputs.
        names: The output name of each column that somebody above reads, in order.
        counting: Whether only the number of its rows is wanted.
        hidden: The same of further columns, which only partial results are computed of.
        aggregation: How its rows are aggregated before they are handed on.
        distinct: Whether equal rows are handed on once, as far as a task has seen them.
    """

    name: str
    alias: str
    inputs: list[JoinInput]
    fields: dict[ColumnRef, Field]
    names: dict[ColumnRef, str] = field(default_factory=dict)
    counting: bool = False
    hidden: dict[ColumnRef, str] = field(default_factory=dict)
    aggregation: Aggregation | None = None
    distinct: bool = False

    @property
    def columns(self) -> tuple[OutputColumn, ...]:
        """The columns of its join."""
        return tuple(OutputColumn(name, ref) for ref, name in (*self.names.items(), *self.hidden.items()))

    @property
    def aggregate(self) -> AggregateSpec | None:
        """What its tasks do with the rows of its join."""
        if self.aggregation is not None:
            return self.aggregation.spec(self.names)
        return AggregateSpec(tuple(self.names.values()), ()) if self.distinct else None

    @property
    def schema(self) -> t.StructType | None:
        """Its columns with Spark's own types and nullability; None where it only counts."""
        if self.counting:
            return None
        kept = ((name, self.fields[ref]) for ref, name in self.names.items())
        partial = self.aggregation.fields if self.aggregation else ()
        return t.StructType([*(t.StructField(n, f.type, f.nullable, f.metadata) for n, f in kept), *partial])


class Rewriting:
    """The edits of one SELECT, committed once all of its blocks are planned; ``inputs`` are theirs."""

    def __init__(self, graph: JoinGraph, inputs: list[JoinInput]) -> None:
        self.plans: list[BlockPlan] = []
        self._graph = graph
        self._conditions = graph.conditions
        self._context = graph.context
        # Results of streams have no end at which they could be counted.
        self._streaming = bool(graph.streams)
        self._select = graph.scope.select
        self._inputs = {id(taken.relation): taken for taken in inputs}
        self._above = OuterReferences(graph, self._inputs)
        self._outputs: list[BlockOutput] = []
        self._edits: list[Edit] = []

    # What is read above a block

    def add_output(self, inputs: list[JoinInput], preferred: list[ColumnRef]) -> BlockOutput:
        """Return the relation that will stand for a block's inputs, with the columns read above them.

        Where none is read, it has one of those preferred, because rows need a column to travel in.

        Raises:
            Unsupported: What reads them cannot be rewritten.
        """
        number = self._context.next_block(len(self._outputs))
        columns = {ColumnRef(i.alias, f.name): f for i in inputs for f in i.columns}
        output = BlockOutput(f"b{number}", f"{self._context.stem}{number}", inputs, columns)
        names = {
            ref: f"{output.alias}_{place}_{_ODD.sub('_', ref.column)}" for place, ref in enumerate(columns)
        }
        is_counted = not self._streaming and not self._wanted(columns)
        output.counting = is_counted and self._above.only_counts(inputs)
        if not output.counting and not self._streaming:
            alone = len(inputs) == len(self._inputs)
            output.aggregation = self._aggregation(columns, names, output.alias, alone=alone)
        output.names = {ref: names[ref] for ref in self._wanted(columns)}
        if output.aggregation is not None:
            reads = output.aggregation.reads
            output.hidden = {r: n for r, n in names.items() if r not in output.names and n in reads}
        if not output.names and not output.hidden and not output.counting:
            fitting = [ref for ref in preferred if ref in columns]
            fitting += [ref for ref, column in columns.items() if column.arrow is not None]
            if not fitting:
                raise Unsupported("no column of the relations can pass through a join here")
            (output.names if output.aggregation is None else output.hidden)[fitting[0]] = names[fitting[0]]
        output.distinct = output.aggregation is None and self._is_set([columns[ref] for ref in output.names])
        self._outputs.append(output)
        return output

    def _is_set(self, columns: Iterable[Field]) -> bool:
        """Tell whether nobody above a block can tell equal rows of these columns from one."""
        if self._streaming or self._above.test is None or not self._context.aggregates:
            return False
        nested = any(column.arrow is None or pa.types.is_nested(column.arrow) for column in columns)
        return not nested and not self._context.determinism.volatile(self._select)

    def _wanted(self, columns: Iterable[ColumnRef]) -> list[ColumnRef]:
        """Return those of the columns that are read above their block."""
        wanted = {
            ColumnRef(owner.alias, owner.columns[place].name)
            for attribute in self._above.read()
            for relation, place in attribute.sources
            if (owner := self._inputs.get(id(relation))) is not None
        }
        return [ref for ref in columns if ref in wanted]

    def _aggregation(
        self, columns: Mapping[ColumnRef, Field], names: Mapping[ColumnRef, str], stem: str, *, alone: bool
    ) -> Aggregation | None:
        """Return how a block's rows are aggregated in its tasks; notes why not where they could be."""
        context = self._context
        if not context.aggregates:
            return None
        try:
            aggregation = Aggregation.of(self._graph, names, stem, alone=alone)
            if aggregation is None:
                return None
            self._above.consumed |= aggregation.consumed
            aggregation.check_keys({ref: columns[ref] for ref in self._wanted(columns)})
        except Unsupported as error:
            self._above.consumed.clear()
            where = context.where(self._graph.scope)
            context.reasons.append(f"{where}: its rows are grouped by Spark alone: {error}")
            return None
        return aggregation

    # Edits

    def commit(self) -> list[exp.Expr] | None:
        """Put the edits into the query's text; return what they leave in WHERE, if they change it.

        Raises:
            Unsupported: Something cannot be rewritten.
        """
        context, graph = self._context, self._graph
        for column, match, is_result in self._above.references():
            self._replace(column, match, is_result=is_result)
        if not self._above.items:
            spans = [context.statement.span(item) for item in self._select.expressions]
            self._edits.append(Edit(spans[0][0], spans[-1][1], ("1",)))
        for item, shown in self._above.stars:
            text = ", ".join(map(self._shown, shown))
            self._edits.append(Edit(*context.statement.span(item), (text,)))
        self._from()
        for output in self._outputs:
            self._edits += output.aggregation.edits if output.aggregation else ()
        context.text.edits += self._edits
        context.blocks += self.plans
        context.placed |= {id(i.relation.node) for o in self._outputs for i in o.inputs}
        context.direct = self._direct()
        for conjunct in self._conditions.used:
            if conjunct.node is not None and context.calls.of(conjunct.node) is not None:
                context.calls.take(conjunct.node)
        return [c.node for c in self._conditions.above if c.node is not None] if graph.source.whole else None

    def _text(self, attribute: Attribute) -> str:
        """Return what names a column of this FROM clause in the rewritten text.

        Raises:
            Unsupported: Nothing does.
        """
        texts = [self._source_text(relation, place) for relation, place in attribute.sources]
        return texts[0] if len(texts) == 1 else f"coalesce({', '.join(texts)})"

    def _source_text(self, relation: Relation, place: int) -> str:
        owner = self._inputs.get(id(relation))
        if owner is not None:
            ref = ColumnRef(owner.alias, owner.columns[place].name)
            return quote(next(o.names[ref] for o in self._outputs if ref in o.names))
        columns = self._context.names.columns(relation)
        name = columns[place]
        others = [r for r in self._graph.source.relations() if id(r) not in self._inputs]
        alias = relation.qualifier[-1] if relation.qualifier else None
        same = [r for r in others if alias is not None and r.qualifier[-1:] == (alias,)]
        if alias is None or len(same) != 1 or [c.lower() for c in columns].count(name.lower()) != 1:
            raise Unsupported(f"column {name} of a relation without a name of its own")
        return f"{quote(alias)}.{quote(name)}"

    def _replace(self, column: exp.Column, match: Match, *, is_result: bool) -> None:
        place = self._context.names.scopes.place_of(column)
        assert place is not None
        # A condition of ON may become one of WHERE, which sees more columns.
        moves = self._graph.source.merges or (place.key == "on" and place.scope is self._graph.scope)
        if not self._above.touches(match.attribute) and (match.qualifier or not moves):
            return
        if is_result and (self._select.args.get("distinct") or place.key == "hint"):
            text = self._result_name(column, match.attribute)
        else:
            text = self._text(match.attribute)
        self._edits.append(Edit(*name_span(column, match.qualifier), (text,)))
        if not match.nested and not isinstance(column.this, exp.Star):
            end = self._named_by(column)
            if end is not None:
                self._edits.append(Edit(end, end, (f" AS {quote(column.parts[match.qualifier].name)}",)))

    def _result_name(self, column: exp.Column, attribute: Attribute) -> str:
        """Return the result column that a column is: with DISTINCT, and in hints, nothing else is known."""
        results = self._context.names.results(self._graph.scope)
        place = next(n for n, r in enumerate(results) if r.attribute == attribute and r.name is not None)
        name = results[place].name or ""
        if sum((r.name or "").lower() == name.lower() for r in results) == 1:
            return quote(name)
        if isinstance(column.parent, exp.Ordered) and self._context.settings.ordinals:
            return str(place + 1)
        raise Unsupported(f"DISTINCT ordered by {name}, of which there are several")

    def _named_by(self, column: exp.Column) -> int | None:
        """Return where to write the name that a column gives to a result column or a field, None if none."""
        statement = self._context.statement
        node: exp.Expr = column
        while isinstance(node.parent, exp.Paren):
            node = node.parent
        parent = node.parent
        if parent is self._select and node.arg_key == "expressions":
            return statement.span(node, "a result column")[1]
        end = column.parts[-1].meta.get("end")
        if isinstance(parent, exp.PropertyEQ) and isinstance(parent.parent, exp.Struct):
            implicit = parent.this.meta.get("start") == column.parts[-1].meta.get("start")
        else:
            implicit = (isinstance(parent, exp.Struct) or _is_row(parent)) and node is column
        if implicit and end is None:
            raise Unsupported("a field of a struct in a form that Millrace does not read")
        return end + 1 if implicit and end is not None else None

    def _shown(self, attribute: Attribute) -> str:
        """Return the item for one of the columns that a star shows."""
        text, name = self._text(attribute), quote(attribute.name)
        same = text.rsplit(".", 1)[-1] == name and len(attribute.sources) == 1
        return text if same else f"{text} AS {name}"

    def _from(self) -> None:
        graph, span = self._graph, self._context.statement.span
        parts: list[Part] = ["FROM "]
        done: set[int] = set()
        for number, step in enumerate(graph.source.steps):
            if number in self._conditions.steps:
                continue
            output = next((o for o in self._outputs if any(i.step == number for i in o.inputs)), None)
            first = len(parts) == 1
            if output is None:
                parts += self._step(step, first=first)
            elif id(output) not in done:
                done.add(id(output))
                parts.append(f"{'' if first else ' CROSS JOIN '}{{{output.name}}} AS {output.alias}")
        where = self._select.args.get("where")
        end = max([graph.source.span[1], *(view.item[1] for view in graph.source.views)])
        if graph.source.whole and where is None and end == graph.source.span[1]:
            parts += self._where()
        elif graph.source.whole:
            self._edits.append(Edit(*((end, end) if where is None else span(where)), tuple(self._where())))
        self._edits.append(Edit(*graph.source.span, tuple(parts)))
        for output in self._outputs:
            if output.counting:
                counted = self._select.expressions[0].unalias()
                self._edits.append(Edit(*span(counted), (f"coalesce(sum({COUNT}), 0)",)))

    def _step(self, step: FromItem, *, first: bool) -> list[Part]:
        """Return a relation that stays, with the conditions that stay with it."""
        if first:
            return [step.item]
        if step.movable:
            return [" CROSS JOIN ", step.item]
        statement = self._context.statement
        terms: list[list[Part]] = [["(", statement.span(on), ")"] for on in step.conditions]
        terms += [[" = ".join(map(self._text, pair))] for pair in self._context.names.keys_of(step)]
        keyword = "CROSS JOIN" if step.keyword == "JOIN" and not terms else step.keyword
        parts: list[Part] = [f" {keyword} ", step.item]
        for number, term in enumerate(terms):
            parts += [" AND " if number else " ON ", *term]
        return parts

    def _where(self) -> Iterator[Part]:
        above = self._conditions.above
        if not above:
            return
        # A lone term need not be boolean by itself: ``NULL``, or a string that AND casts.
        certain = any(c.node is None or is_boolean(c.node) for c in above)
        yield " WHERE " if certain else " WHERE true AND "
        for number, conjunct in enumerate(above):
            yield "(" if number == 0 else " AND ("
            if conjunct.node is not None:
                yield self._context.statement.span(conjunct.node)
            yield " = ".join(map(self._text, conjunct.pair or ())) + ")"

    def _direct(self) -> Direct | None:
        """Return how the SELECT is nothing but columns of its only block, None if it is more."""
        select = self._select
        if select is not self._context.statement.root or len(self._outputs) != 1 or self._conditions.above:
            return None
        (output,) = self._outputs
        bars = [*BARS, "limit", "offset", "with_", "laterals"]
        if output.counting or not self._above.is_whole(output.inputs) or any(map(select.args.get, bars)):
            return None
        stars = {id(item): shown for item, shown in self._above.stars}
        columns: list[Attribute] = []
        for item in select.expressions:
            attribute = self._context.names.attribute(unwrap(item.unalias()))
            if attribute is None and id(item) not in stars:
                return None
            columns += stars.get(id(item)) or ([] if attribute is None else [attribute])
        return Direct(output.name, tuple(self._text(column).strip("`") for column in columns))


def _is_row(node: exp.Expr | None) -> bool:
    """Tell whether a tuple makes a struct, whose fields have the names of its columns."""
    if not isinstance(node, exp.Tuple):
        return False
    parent = node.parent
    while isinstance(parent, exp.Paren | exp.Tuple):
        parent = parent.parent
    grouping = (exp.Group, exp.GroupingSets, exp.Cube, exp.Rollup, exp.In, exp.Window, exp.Order, exp.Ordered)
    compared = (exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE, exp.NullSafeEQ)
    return not isinstance(parent, (*grouping, *compared))


# What stands above the blocks


Reference = tuple[exp.Column, Match, bool]
"""A name above the blocks, the column of this FROM clause that it means, and whether it is a result too."""


class OuterReferences:
    """References outside a block that resolve to columns of its FROM clause: names and stars.

    Conditions that blocks evaluate are not above them. ``taken`` are the ids of the relations of blocks.

    Attributes:
        consumed: Ids of names that the rewritten text has no more.
        test: The EXISTS or IN that the SELECT is the subquery of, to which equal rows are one.
        items: What it shows; nothing to an EXISTS.
    """

    def __init__(self, graph: JoinGraph, taken: Container[int]) -> None:
        self._graph = graph
        self._conditions = graph.conditions
        self._context = graph.context
        self._select = graph.scope.select
        self._taken = taken
        self.consumed: set[int] = set()
        self.test = existence_test(self._select)
        # What EXISTS selects is nobody's business.
        self.items = [] if isinstance(self.test, exp.Exists) else self._select.expressions
        self._unread = {
            id(part) for item in self._select.expressions if not self.items for part in item.walk()
        }

    def touches(self, attribute: Attribute) -> bool:
        """Tell whether a column is of a relation that a block takes."""
        return any(id(relation) in self._taken for relation, _ in attribute.sources)

    def read(self) -> Iterator[Attribute]:
        """Yield the columns of this FROM clause that something above the blocks reads."""
        for _, match, _ in self.references():
            yield match.attribute
        for _, shown in self.stars:
            yield from shown
        for conjunct in self._conditions.above:
            yield from conjunct.pair or ()
        for number, step in enumerate(self._graph.source.steps):
            if not step.movable and number not in self._conditions.steps:
                for pair in self._context.names.keys_of(step):
                    yield from pair

    def references(self) -> Iterator[Reference]:
        """Yield the names above the blocks that mean columns of this FROM clause."""
        used = {id(part) for c in self._conditions.used if c.node is not None for part in c.node.walk()}
        used |= self.consumed | self._unread
        seen = set()
        for column, match, is_result in self._names:
            if id(column) in used:
                continue
            start, _ = name_span(column, 0)
            if start not in seen:  # the parser may use one name in two places
                seen.add(start)
                yield column, match, is_result

    @cached_property
    def _names(self) -> list[Reference]:
        """The names anywhere in the SELECT that mean columns of this FROM clause."""
        names, references = self._context.names, []
        for column in self._select.find_all(exp.Column):
            if column.find_ancestor(exp.Star):
                continue
            resolved = names.find_struct(column) if is_star(column) else names.find(column)
            if resolved is not None and resolved.scope is self._graph.scope and resolved.match is not None:
                references.append((column, resolved.match, resolved.result))
        return references

    @cached_property
    def stars(self) -> list[tuple[exp.Expr, list[Attribute]]]:
        """The stars that have to be written out, with what they show."""
        stars: list[tuple[exp.Expr, list[Attribute]]] = []
        names, graph = self._context.names, self._graph
        for item in self.items:
            if not is_star(item) or (isinstance(item, exp.Column) and names.find_struct(item)):
                continue
            shown = names.starred(graph.scope, item)
            if isinstance(item, exp.Star) or graph.source.merges or any(map(self.touches, shown)):
                stars.append((item, shown))
        written = {id(item) for item, _ in stars}
        for star in self._select.find_all(exp.Star):
            owner: exp.Expr = star.parent if isinstance(star.parent, exp.Column) else star
            if id(owner) in written or owner.parent is self._select or isinstance(star.parent, exp.Count):
                continue
            if star.find_ancestor(exp.Select) is self._select:
                raise Unsupported("a star inside an expression")
        return stars

    def is_whole(self, inputs: list[JoinInput]) -> bool:
        """Tell whether a block of these relations is all of the FROM clause."""
        steps = {*range(len(self._graph.source.steps))} - self._conditions.steps
        return steps <= {i.step for i in inputs} and not self._graph.source.views

    def only_counts(self, inputs: list[JoinInput]) -> bool:
        """Tell whether the SELECT is nothing but a ``count(*)`` of one block."""
        items = self._select.expressions
        barred = self._conditions.above or any(map(self._select.args.get, BARS))
        if barred or len(items) != 1 or not self.is_whole(inputs):
            return False
        count = items[0].unalias()
        counted = count.this if isinstance(count, exp.Count) and not count.expressions else None
        return isinstance(counted, exp.Star) or (isinstance(counted, exp.Literal) and counted.name.isdigit())


# Names that Spark makes up


def keep_names(context: PlanContext, names: Sequence[str]) -> None:
    """Add the aliases that an edited query needs to have the result columns of the query as written.

    Raises:
        Unsupported: It is not known what the query as written calls a column.
    """
    edits = {(e.start, e.end) for e in context.text.edits}
    bound = {(e.start, e.end) for e in context.text.bindings}
    first: exp.Expr | None = context.statement.root  # the SELECT that names the columns of the whole query
    while isinstance(first, exp.SetOperation | exp.Subquery):
        first = first.this
    for scope in context.names.scopes.all:
        # An item that is bound as a whole is so in the query as written.
        changed = [
            (place, (begin, end))
            for place, (begin, end) in _unnamed(context, scope)
            if any(begin <= e[0] and e[1] <= end for e in edits | (bound - {(begin, end)}))
        ]
        if not changed or not _matter(scope.select):
            continue
        results = names if scope.select is first else _names_of(context, scope)
        if results is None:
            raise Unsupported(f"a column without a name in {context.where(scope)}")
        widths = [len(context.names.results_of(scope, item)) for item in scope.select.expressions]
        if sum(widths) != len(results):
            raise Unsupported("an expression that gives several columns without names")
        places = list(accumulate(widths, initial=0))
        for place, (_, end) in changed:
            name = quote(restored(results[places[place]]))
            context.text.edits.append(Edit(end, end, (f" AS {name}",)))


def _unnamed(context: PlanContext, scope: Scope) -> Iterator[tuple[int, Span]]:
    """Yield the items that Spark names after their expression, with their characters."""
    for place, item in enumerate(scope.select.expressions):
        inner = unwrap(item)
        is_named = isinstance(item, exp.Alias | exp.Aliases) or is_star(inner) or is_path(inner)
        if not is_named and context.statement.has_span(item):
            yield place, context.statement.span(item)


def _matter(select: exp.Select) -> bool:
    """Tell whether the names of a SELECT's result columns are seen by anybody."""
    child: exp.Expr = select
    while (parent := child.parent) is not None:
        if isinstance(parent, exp.SetOperation):
            if child.arg_key == "expression" and not parent.args.get("by_name"):
                return False
        elif isinstance(parent, exp.From | exp.CTE | exp.Lateral):
            return True
        elif isinstance(parent, exp.Join):
            return child.arg_key == "this"
        elif not isinstance(parent, exp.Subquery):
            return False
        child = parent
    return True


def _names_of(context: PlanContext, scope: Scope) -> list[str] | None:
    """Return what Spark calls the result columns of a SELECT inside the query, None if it cannot be asked."""
    statement, select = context.statement, scope.select
    if not statement.has_span(select) or context.escapes(select):
        return None
    try:
        prefix = with_prefix(statement, select, context.text.bound)
        text = f"{prefix}SELECT * FROM ({context.text.bound(statement.span(select))})"
        return list(context.schema(text).names)
    except (Unsupported, PySparkException):
        return None
