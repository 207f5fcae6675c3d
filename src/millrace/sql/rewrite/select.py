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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import types as t
from sqlglot import exp

from millrace.engine.aggregate import AggregateSpec
from millrace.engine.plan.expressions import ColumnRef
from millrace.engine.plan.spec import OutputColumn
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

_ODD = re.compile(r"\W")


Reference = tuple[exp.Column, Match, bool]
"""A name above the blocks, the column of this FROM clause that it means, and whether it is a result too."""


@dataclass(frozen=True, eq=False)
class BlockOutput:
    """A block's relation in the rewritten text, which stands for its inputs.

    Attributes:
        names: The output name of each column that somebody above reads, in order.
        columns: These, and further ones that only partial results are computed of.
        aggregate: What its tasks do with the rows of its join.
        schema: Its columns with Spark's own types and nullability; None where it only counts.
        counted: What the text calls the number of its rows, if that is all that is wanted.
        edits: What its partial results change in the text.
    """

    name: str
    alias: str
    inputs: list[JoinInput]
    names: dict[ColumnRef, str]
    columns: tuple[OutputColumn, ...]
    aggregate: AggregateSpec | None
    schema: t.StructType | None
    counted: str | None
    edits: list[Edit]


class Rewriting:
    """The edits of one SELECT, committed once all of its blocks are planned; ``inputs`` are theirs.

    Names and stars that mean columns of its FROM clause stand above the blocks, but in conditions that these
    evaluate.
    """

    def __init__(self, graph: JoinGraph, inputs: list[JoinInput]) -> None:
        self.plans: list[BlockPlan] = []
        self._graph = graph
        self._conditions = graph.conditions
        self._context = graph.context
        # Results of streams have no end at which they could be counted.
        self._streaming = bool(graph.streams)
        self._select = graph.scope.select
        self._inputs = {taken.relation: taken for taken in inputs}
        self._outputs: list[BlockOutput] = []
        self._edits: list[Edit] = []
        # The EXISTS or IN that the SELECT is the subquery of, to which equal rows are one.
        self._test = existence_test(self._select)
        # What EXISTS selects is nobody's business.
        unread = self._select.expressions if isinstance(self._test, exp.Exists) else []
        self._items = [] if unread else self._select.expressions
        self._consumed = {id(part) for item in unread for part in item.walk()}
        """Ids of names that the rewritten text has no more."""

    # What is read above a block

    def add_output(self, inputs: list[JoinInput], preferred: list[ColumnRef]) -> BlockOutput:
        """Return the relation that will stand for a block's inputs, with the columns read above them.

        Where none is read, it has one of those preferred, because rows need a column to travel in.

        Raises:
            Unsupported: What reads them cannot be rewritten.
        """
        number = self._context.next_block(len(self._outputs))
        alias = f"{self._context.stem}{number}"
        fields = {ColumnRef(i.alias, f.name): f for i in inputs for f in i.columns}
        texts = {ref: f"{alias}_{place}_{_ODD.sub('_', ref.column)}" for place, ref in enumerate(fields)}
        aggregation = self._aggregation(fields, texts, alias, alone=len(inputs) == len(self._inputs))
        names = {ref: texts[ref] for ref in self._wanted(fields)}
        reads = aggregation.reads if aggregation is not None else set[str]()
        hidden = {ref: text for ref, text in texts.items() if ref not in names and text in reads}
        counted = aggregation.only_count if aggregation and not names and self._is_all(inputs) else None
        if not names and not hidden and counted is None:
            fitting = [ref for ref in preferred if ref in fields]
            fitting += [ref for ref, column in fields.items() if column.arrow is not None]
            if not fitting:
                raise Unsupported("no column of the relations can pass through a join here")
            (names if aggregation is None else hidden)[fitting[0]] = texts[fitting[0]]
        kept = [(text, fields[ref]) for ref, text in names.items()]
        schema = t.StructType([t.StructField(text, f.type, f.nullable, f.metadata) for text, f in kept])
        aggregate = None
        if aggregation is not None:
            aggregate = aggregation.spec(names)
            schema = t.StructType([*schema.fields, *aggregation.fields])
        elif self._is_set(column for _, column in kept):
            aggregate = AggregateSpec(tuple(names.values()), ())
        output = BlockOutput(
            f"b{number}",
            alias,
            inputs,
            names,
            tuple(OutputColumn(text, ref) for ref, text in (*names.items(), *hidden.items())),
            None if counted else aggregate,
            None if counted else schema,
            counted,
            [] if aggregation is None else aggregation.edits,
        )
        self._outputs.append(output)
        return output

    def _is_set(self, columns: Iterable[Field]) -> bool:
        """Tell whether nobody above a block can tell equal rows of these columns from one."""
        if self._streaming or self._test is None or not self._context.aggregates:
            return False
        nested = any(column.arrow is None or pa.types.is_nested(column.arrow) for column in columns)
        return not nested and not self._context.determinism.volatile(self._select)

    def _wanted(self, columns: Iterable[ColumnRef]) -> list[ColumnRef]:
        """Return those of the columns that are read above their block."""
        wanted = {
            ColumnRef(owner.alias, owner.columns[place].name)
            for attribute in self._read()
            for relation, place in attribute.sources
            if (owner := self._inputs.get(relation)) is not None
        }
        return [ref for ref in columns if ref in wanted]

    def _aggregation(
        self, columns: Mapping[ColumnRef, Field], names: Mapping[ColumnRef, str], stem: str, *, alone: bool
    ) -> Aggregation | None:
        """Return how a block's rows are aggregated in its tasks; notes why not where they could be."""
        context, consumed = self._context, self._consumed
        if self._streaming or not context.aggregates:
            return None
        try:
            aggregation = Aggregation.of(self._graph, names, stem, alone=alone)
            if aggregation is not None:
                self._consumed = consumed | aggregation.consumed
                aggregation.check_keys({ref: columns[ref] for ref in self._wanted(columns)})
        except Unsupported as error:
            self._consumed = consumed
            where = context.where(self._graph.scope)
            context.reasons.append(f"{where}: its rows are grouped by Spark alone: {error}")
            return None
        return aggregation

    # What stands above the blocks

    def _touches(self, attribute: Attribute) -> bool:
        """Tell whether a column is of a relation that a block takes."""
        return any(relation in self._inputs for relation, _ in attribute.sources)

    def _read(self) -> Iterator[Attribute]:
        """Yield the columns of this FROM clause that something above the blocks reads."""
        for _, match, _ in self._references():
            yield match.attribute
        for _, shown in self._stars:
            yield from shown
        for conjunct in self._conditions.above:
            yield from conjunct.pair or ()
        for number, step in enumerate(self._graph.source.steps):
            if not step.movable and number not in self._conditions.steps:
                for pair in self._context.names.keys_of(step):
                    yield from pair

    def _references(self) -> Iterator[Reference]:
        """Yield the names above the blocks that mean columns of this FROM clause."""
        used = {id(part) for c in self._conditions.used if c.node is not None for part in c.node.walk()}
        used |= self._consumed
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
    def _stars(self) -> list[tuple[exp.Expr, list[Attribute]]]:
        """The stars that have to be written out, with what they show."""
        stars: list[tuple[exp.Expr, list[Attribute]]] = []
        graph = self._graph
        for item in filter(is_star, self._items):
            results = self._context.names.results_of(graph.scope, item)
            shown = [result.attribute for result in results if result.attribute is not None]
            is_plain = isinstance(item, exp.Star)
            if is_plain or (shown and graph.source.merges) or any(map(self._touches, shown)):
                stars.append((item, shown))
        for star in self._select.find_all(exp.Star):
            around = star.parent.parent if isinstance(star.parent, exp.Column) else star.parent
            is_plain = around is self._select or isinstance(star.parent, exp.Count)
            if not is_plain and star.find_ancestor(exp.Select) is self._select:
                raise Unsupported("a star inside an expression")
        return stars

    # Edits

    def commit(self) -> list[exp.Expr] | None:
        """Put the edits into the query's text; return what they leave in WHERE, if they change it.

        Raises:
            Unsupported: Something cannot be rewritten.
        """
        context, graph = self._context, self._graph
        for column, match, is_result in self._references():
            self._replace(column, match, is_result=is_result)
        if not self._items:
            spans = [context.statement.span(item) for item in self._select.expressions]
            self._edits.append(Edit(spans[0][0], spans[-1][1], ("1",)))
        for item, shown in self._stars:
            text = ", ".join(map(self._shown, shown))
            self._edits.append(Edit(*context.statement.span(item), (text,)))
        self._from()
        for output in self._outputs:
            self._edits += output.edits
        context.text.edits += self._edits
        context.blocks += self.plans
        context.placed |= {id(i.relation.node) for o in self._outputs for i in o.inputs}
        context.direct = self._direct()
        for conjunct in self._conditions.used:
            if conjunct.node is not None and context.calls.of(conjunct.node) is not None:
                context.calls.take(conjunct.node)
        return [c.node for c in self._conditions.above if c.node is not None] if graph.source.whole else None

    def _text(self, attribute: Attribute) -> str:
        """Return what names a column of this FROM clause in the new text; Unsupported if nothing does."""
        texts = [self._source_text(relation, place) for relation, place in attribute.sources]
        return texts[0] if len(texts) == 1 else f"coalesce({', '.join(texts)})"

    def _source_text(self, relation: Relation, place: int) -> str:
        owner = self._inputs.get(relation)
        if owner is not None:
            ref = ColumnRef(owner.alias, owner.columns[place].name)
            return quote(next(o.names[ref] for o in self._outputs if ref in o.names))
        columns = self._context.names.columns(relation)
        name = columns[place]
        others = [r for r in self._graph.source.relations() if r not in self._inputs]
        same = [r for r in others if r.qualifier and r.qualifier[-1:] == relation.qualifier[-1:]]
        if len(same) != 1 or [c.lower() for c in columns].count(name.lower()) != 1:
            raise Unsupported(f"column {name} of a relation without a name of its own")
        return f"{quote(relation.qualifier[-1])}.{quote(name)}"

    def _replace(self, column: exp.Column, match: Match, *, is_result: bool) -> None:
        place = self._context.names.scopes.find_place(column)
        assert place is not None
        # A condition of ON may become one of WHERE, which sees more columns.
        moves = self._graph.source.merges or (place.key == "on" and place.scope is self._graph.scope)
        if not self._touches(match.attribute) and (match.qualifier or not moves):
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
        by_place = self._context.settings.conf.is_on("spark.sql.orderByOrdinal", "true")
        if isinstance(column.parent, exp.Ordered) and by_place:
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
        if isinstance(parent, exp.PropertyEQ) and isinstance(parent.parent, exp.Struct):
            implicit = parent.this.meta.get("start") == column.parts[-1].meta.get("start")
        else:
            implicit = (isinstance(parent, exp.Struct) or _is_row(parent)) and node is column
        return name_span(column)[1] if implicit else None

    def _shown(self, attribute: Attribute) -> str:
        """Return the item for one of the columns that a star shows."""
        text, name = self._text(attribute), quote(attribute.name)
        same = text.rsplit(".", 1)[-1] == name and len(attribute.sources) == 1
        return text if same else f"{text} AS {name}"

    def _from(self) -> None:
        graph, span = self._graph, self._context.statement.span
        parts: list[Part] = ["FROM "]
        owners = {i.step: output for output in self._outputs for i in output.inputs}
        done: set[int] = set()
        for number, step in enumerate(graph.source.steps):
            if number in self._conditions.steps:
                continue
            output, first = owners.get(number), len(parts) == 1
            if output is None:
                parts += self._step(step, first=first)
            elif id(output) not in done:
                done.add(id(output))
                columns = f"({output.counted})" if output.counted else ""
                parts.append(f"{'' if first else ' CROSS JOIN '}{{{output.name}}} AS {output.alias}{columns}")
        where = self._select.args.get("where")
        end = max([graph.source.span[1], *(view.item[1] for view in graph.source.views)])
        if graph.source.whole and where is None and end == graph.source.span[1]:
            parts += self._where()
        elif graph.source.whole:
            self._edits.append(Edit(*((end, end) if where is None else span(where)), tuple(self._where())))
        self._edits.append(Edit(*graph.source.span, tuple(parts)))

    def _step(self, step: FromItem, *, first: bool) -> list[Part]:
        """Return a relation that stays, with the conditions that stay with it."""
        if first:
            return [step.item]
        if step.movable:
            return [" CROSS JOIN ", step.item]
        terms = self._terms(step.conditions, self._context.names.keys_of(step))
        keyword = "CROSS JOIN" if step.keyword == "JOIN" and not terms else step.keyword
        return [f" {keyword} ", step.item, *([" ON ", *terms] if terms else [])]

    def _where(self) -> list[Part]:
        above = self._conditions.above
        nodes = [conjunct.node for conjunct in above if conjunct.node is not None]
        # A lone term need not be boolean by itself: ``NULL``, or a string that AND casts.
        certain = len(nodes) < len(above) or any(map(is_boolean, nodes))
        terms = self._terms(nodes, [conjunct.pair for conjunct in above if conjunct.pair is not None])
        return [" WHERE " if certain else " WHERE true AND ", *terms] if above else []

    def _terms(self, nodes: Iterable[exp.Expr], pairs: Iterable[tuple[Attribute, Attribute]]) -> list[Part]:
        """Return conditions and equalities of columns, joined by AND."""
        terms: list[list[Part]] = [["(", self._context.statement.span(node), ")"] for node in nodes]
        terms += [[f"({' = '.join(map(self._text, pair))})"] for pair in pairs]
        return [part for number, term in enumerate(terms) for part in (*([" AND "] if number else []), *term)]

    def _is_all(self, inputs: Sequence[JoinInput]) -> bool:
        """Tell whether a block's inputs are all of the FROM clause, with every condition."""
        others = {*range(len(self._graph.source.steps))} - self._conditions.steps - {i.step for i in inputs}
        return not (others or self._conditions.above or self._graph.source.views)

    def _direct(self) -> Direct | None:
        """Return how the SELECT is nothing but columns of its only block, None if it is more."""
        select = self._select
        if select is not self._context.statement.root or len(self._outputs) != 1:
            return None
        (output,) = self._outputs
        is_all = self._is_all(output.inputs)
        bars = [*BARS, "limit", "offset", "with_", *([] if self._graph.source.whole else ["where"])]
        if output.aggregate or output.counted or not is_all or any(map(select.args.get, bars)):
            return None
        shown = [result.attribute for result in self._context.names.results(self._graph.scope)]
        columns = [self._text(attribute).strip("`") for attribute in shown if attribute is not None]
        return Direct(output.name, tuple(columns)) if len(columns) == len(shown) else None


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
