"""Rewrite one SELECT so that it reads blocks instead of the relations they took.

A block becomes one relation whose columns have names that nothing else has, and every name that meant one
of them is replaced, qualified or not. USING and NATURAL become ON, so that no column is merged with another
any more, and stars are written out. What kept its name without being told to (a column in the SELECT list, a
field of a struct) gets it as an alias. All of that is edits of the original text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark.sql import types as t
from sqlglot import exp

from millrace.engine.aggregates import AggregateSpec
from millrace.engine.expressions import ColumnRef
from millrace.engine.spec import OutputColumn
from millrace.sql.aggregation.aggregation import Aggregation
from millrace.sql.blocks.conditions import Conjunct, SplitConjuncts, is_boolean
from millrace.sql.blocks.join_graph import JoinGraph, JoinInput
from millrace.sql.expr.types import Field
from millrace.sql.names.names import is_star
from millrace.sql.names.outputs import Attribute
from millrace.sql.planner.plan import BlockPlan, Direct
from millrace.sql.rewrite.references import BARS, OuterReferences, Reference
from millrace.sql.syntax.edits import Edit, Part, quote
from millrace.sql.syntax.from_clause import JoinStep, Relation
from millrace.sql.syntax.parse import Unsupported, name_span, unwrap

COUNT = "__count"
"""The column of a block that only counts."""

_ODD = re.compile(r"\W")


@dataclass(eq=False)
class BlockOutput:
    """A block's relation in the rewritten text.

    Attributes:
        name: The block's.
        alias: The relation's.
        members: The relations it stands for, in order.
        names: The output name of each column that somebody above reads, in order.
        counting: Whether only the number of its rows is wanted.
        hidden: The same of further columns, which only partial results are computed of.
        aggregation: How its rows are aggregated before they are handed on.
        distinct: Whether equal rows are handed on once, as far as a task has seen them.
    """

    name: str
    alias: str
    members: list[JoinInput]
    names: dict[ColumnRef, str]
    counting: bool = False
    hidden: dict[ColumnRef, str] = field(default_factory=dict)
    aggregation: Aggregation | None = None
    distinct: bool = False

    @property
    def output(self) -> tuple[OutputColumn, ...]:
        """The columns of its join."""
        return tuple(OutputColumn(name, ref) for ref, name in (*self.names.items(), *self.hidden.items()))

    @property
    def aggregate(self) -> AggregateSpec | None:
        """What its tasks do with the rows of its join."""
        if self.aggregation is not None:
            return self.aggregation.spec(self.names)
        return AggregateSpec(tuple(self.names.values()), ()) if self.distinct else None


class Rewriting:
    """The edits of one SELECT, committed once all of its blocks are planned.

    Args:
        graph: The SELECT's FROM clause.
        found: Its conditions.
        members: The relations that blocks take.
        streaming: Whether some are streams: their results have no end at which they could be counted.

    Attributes:
        plans: The blocks.
    """

    def __init__(
        self, graph: JoinGraph, found: SplitConjuncts, members: list[JoinInput], *, streaming: bool = False
    ) -> None:
        self.plans: list[BlockPlan] = []
        self._graph = graph
        self._found = found
        self._context = graph.context
        self._streaming = streaming
        self._select = graph.scope.select
        self._above = OuterReferences(graph, found, members)
        self._members = {id(member.relation): member for member in members}
        self._pieces: list[BlockOutput] = []
        self._edits: list[Edit] = []

    # What is read above a block

    def piece(self, members: list[JoinInput], preferred: list[ColumnRef]) -> BlockOutput:
        """Return the relation that will stand for the members, with the columns read above them.

        Args:
            members: The block's.
            preferred: Columns to give out where none is read, because rows need a column to travel in.

        Raises:
            Unsupported: What reads them cannot be rewritten.
        """
        number = self._context.next_block(len(self._pieces))
        piece = BlockOutput(f"b{number}", f"{self._context.stem}{number}", members, {})
        columns = {ColumnRef(m.alias, f.name): f for m in members for f in m.columns}
        names = {
            ref: f"{piece.alias}_{place}_{_ODD.sub('_', ref.column)}" for place, ref in enumerate(columns)
        }
        if not self._streaming:
            piece.counting = not self._wanted(columns) and self._above.only_counts(members)
        if not piece.counting and not self._streaming:
            alone = len(members) == len(self._members)
            piece.aggregation = self._aggregation(columns, names, piece.alias, alone=alone)
        piece.names = {ref: names[ref] for ref in self._wanted(columns)}
        if piece.aggregation is not None:
            piece.hidden = {
                ref: name
                for ref, name in names.items()
                if ref not in piece.names and name in piece.aggregation.reads
            }
        if not piece.names and not piece.hidden and not piece.counting:
            fits = [ref for ref, each in columns.items() if each.arrow is not None]
            read = [*preferred, *fits][:1]
            if not read:
                raise Unsupported("no column of the relations can pass through a join here")
            (piece.names if piece.aggregation is None else piece.hidden)[read[0]] = names[read[0]]
        piece.distinct = piece.aggregation is None and self._is_set([columns[ref] for ref in piece.names])
        self._pieces.append(piece)
        return piece

    def _is_set(self, columns: Iterable[Field]) -> bool:
        """Tell whether nobody above a block can tell equal rows of these columns from one."""
        if self._streaming or self._above.test is None or not self._context.aggregates:
            return False
        nested = any(each.arrow is None or pa.types.is_nested(each.arrow) for each in columns)
        return not nested and not self._context.volatility.volatile(self._select)

    def _wanted(self, columns: Iterable[ColumnRef]) -> list[ColumnRef]:
        """Return those of the columns that are read above their block."""
        wanted = {
            ColumnRef(member.alias, member.columns[place].name)
            for attribute in self._above.read()
            for relation, place in attribute.sources
            if (member := self._members.get(id(relation))) is not None
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
            found = Aggregation.of(self._graph, names, stem, alone=alone)
            if found is None:
                return None
            self._above.consumed |= found.consumed
            found.check_keys({ref: columns[ref] for ref in self._wanted(columns)})
        except Unsupported as leave:
            self._above.consumed.clear()
            where = context.where(self._graph.scope)
            context.reasons.append(f"{where}: its rows are grouped by Spark alone: {leave}")
            return None
        return found

    def result(self, piece: BlockOutput) -> t.StructType:
        """Return the columns that a block hands on with Spark's own types and nullability."""
        columns = {ColumnRef(m.alias, f.name): f for m in piece.members for f in m.columns}
        kept = [_column(name, columns[ref]) for ref, name in piece.names.items()]
        return t.StructType([*kept, *(piece.aggregation.fields if piece.aggregation else ())])

    # Edits

    def commit(self) -> list[exp.Expr] | None:
        """Put the edits into the query's text; return what they leave in WHERE, if they change it.

        Raises:
            Unsupported: Something cannot be rewritten.
        """
        context, graph = self._context, self._graph
        for use in self._above.uses():
            self._replace(use)
        if not self._above.items:
            spans = [context.statement.span(item) for item in self._select.expressions]
            self._edits.append(Edit(spans[0][0], spans[-1][1], ("1",)))
        for item, shown in self._above.stars:
            text = ", ".join(self._shown(shown))
            self._edits.append(Edit(*context.statement.span(item), (text,)))
        self._from()
        for piece in self._pieces:
            self._edits += piece.aggregation.edits if piece.aggregation else ()
        context.text.edits += self._edits
        context.blocks += self.plans
        context.placed |= {id(m.relation.node) for p in self._pieces for m in p.members}
        context.direct = self._direct()
        for conjunct in self._found.used:
            if conjunct.node is not None and context.calls.of(conjunct.node) is not None:
                context.calls.take(conjunct.node)
        return [c.node for c in self._found.above if c.node is not None] if graph.source.whole else None

    def reference(self, attribute: Attribute) -> str:
        """Return what names a column of this FROM clause in the rewritten text.

        Raises:
            Unsupported: Nothing does.
        """
        texts = [self._reference(relation, place) for relation, place in attribute.sources]
        return texts[0] if len(texts) == 1 else f"coalesce({', '.join(texts)})"

    def _reference(self, relation: Relation, place: int) -> str:
        member = self._members.get(id(relation))
        if member is not None:
            ref = ColumnRef(member.alias, member.columns[place].name)
            return quote(next(p.names[ref] for p in self._pieces if ref in p.names))
        columns = self._context.names.columns(relation)
        name = columns[place]
        others = [r for r in self._graph.source.relations() if id(r) not in self._members]
        alias = relation.qualifier[-1] if relation.qualifier else None
        same = [r for r in others if alias is not None and r.qualifier[-1:] == (alias,)]
        if alias is None or len(same) != 1 or sum(each.lower() == name.lower() for each in columns) != 1:
            raise Unsupported(f"column {name} of a relation without a name of its own")
        return f"{quote(alias)}.{quote(name)}"

    def _replace(self, use: Reference) -> None:
        column, match = use.column, use.binding.match
        assert match is not None
        taken = self._above.touches(use.attribute)
        moved = match.qualifier == 0 and (self._graph.source.merges or self._is_moved(column))
        if not taken and not moved:
            return
        own = column.parts[match.qualifier]
        text = self.reference(use.attribute)
        bare = not match.nested and not isinstance(column.this, exp.Star)
        place = self._context.names.scopes.place_of(column)
        if (
            use.binding.result
            and place is not None
            and (self._select.args.get("distinct") or place.key == "hint")
        ):
            text = self._result_name(use)
        self._edits.append(Edit(*name_span(column, match.qualifier), (text,)))
        if bare:
            behind = self._named_by(column)
            if behind is not None:
                self._edits.append(Edit(behind, behind, (f" AS {quote(own.name)}",)))

    def _is_moved(self, column: exp.Column) -> bool:
        """Tell whether a name stands in a condition of ON that becomes one of WHERE."""
        place = self._context.names.scopes.place_of(column)
        return place is not None and place.key == "on" and place.scope is self._graph.scope

    def _result_name(self, use: Reference) -> str:
        """Return the result column that a column is: with DISTINCT, and in hints, nothing else is known."""
        results = self._context.names.results(self._graph.scope)
        place = next(n for n, r in enumerate(results) if r.attribute == use.attribute and r.name is not None)
        name = results[place].name or ""
        if sum((r.name or "").lower() == name.lower() for r in results) == 1:
            return quote(name)
        if isinstance(use.column.parent, exp.Ordered) and self._context.settings.ordinals:
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

    def _shown(self, attributes: list[Attribute]) -> Iterator[str]:
        """Yield the items that a star stands for."""
        for each in attributes:
            text = self.reference(each)
            same = text.rsplit(".", 1)[-1] == quote(each.name) and len(each.sources) == 1
            yield text if same else f"{text} AS {quote(each.name)}"

    def _from(self) -> None:
        graph, span = self._graph, self._context.statement.span
        parts: list[Part] = ["FROM "]
        done: set[int] = set()
        for number, step in enumerate(graph.steps):
            if number in self._found.steps:
                continue
            piece = next((p for p in self._pieces if any(m.step == number for m in p.members)), None)
            first = len(parts) == 1
            if piece is None:
                parts += self._step(step, first=first)
            elif id(piece) not in done:
                done.add(id(piece))
                parts.append(f"{'' if first else ' CROSS JOIN '}{{{piece.name}}} AS {piece.alias}")
        where = self._select.args.get("where")
        end = graph.source.end
        if graph.source.whole and where is None and end == graph.source.span[1]:
            parts += self._where()
        elif graph.source.whole:
            self._edits.append(Edit(*((end, end) if where is None else span(where)), tuple(self._where())))
        self._edits.append(Edit(*graph.source.span, tuple(parts)))
        for piece in self._pieces:
            if piece.counting:
                counted = self._select.expressions[0].unalias()
                self._edits.append(Edit(*span(counted), (f"coalesce(sum({COUNT}), 0)",)))

    def _step(self, step: JoinStep, *, first: bool) -> list[Part]:
        """Return a relation that stays, with the conditions that stay with it."""
        item = step.item
        if first:
            return [item.item]
        if step.movable:
            return [" CROSS JOIN ", item.item]
        statement = self._context.statement
        terms: list[list[Part]] = [["(", statement.span(on), ")"] for on in step.conditions]
        terms += [[self._pair(pair)] for pair in self._graph.keys_of(step)]
        keyword = "CROSS JOIN" if item.keyword == "JOIN" and not terms else item.keyword
        parts: list[Part] = [f" {keyword} ", item.item]
        for number, term in enumerate(terms):
            parts += [" AND " if number else " ON ", *term]
        return parts

    def _pair(self, pair: tuple[Attribute, Attribute]) -> str:
        return " = ".join(map(self.reference, pair))

    def _where(self) -> Iterator[Part]:
        above = self._found.above
        if not above:
            return
        # A lone term need not be boolean by itself: ``NULL``, or a string that AND casts.
        certain = any(c.node is None or is_boolean(c.node) for c in above)
        yield " WHERE " if certain else " WHERE true AND "
        for number, conjunct in enumerate(above):
            yield "(" if number == 0 else " AND ("
            yield from self._condition(conjunct)
            yield ")"

    def _condition(self, conjunct: Conjunct) -> Iterator[Part]:
        if conjunct.pair is not None:
            yield self._pair(conjunct.pair)
        else:
            assert conjunct.node is not None
            yield self._context.statement.span(conjunct.node)

    def _direct(self) -> Direct | None:
        """Return how the SELECT is nothing but columns of its only block, None if it is more."""
        select = self._select
        if select is not self._context.statement.root or len(self._pieces) != 1 or self._found.above:
            return None
        (piece,) = self._pieces
        bars = [*BARS, "limit", "offset", "with_", "laterals"]
        if piece.counting or not self._above.is_whole(piece.members) or any(map(select.args.get, bars)):
            return None
        stars = {id(item): shown for item, shown in self._above.stars}
        columns: list[str] = []
        for item in select.expressions:
            node = unwrap(item.unalias())
            binding = self._above.bound(node) if isinstance(node, exp.Column) and not is_star(node) else None
            if id(item) in stars:
                shown = stars[id(item)]
            elif binding is not None and binding.match is not None and not binding.match.nested:
                shown = [binding.match.attribute]
            else:
                return None
            columns += [self.reference(each).strip("`") for each in shown]
        return Direct(piece.name, tuple(columns))


def _column(name: str, column: Field) -> t.StructField:
    return t.StructField(name, column.type, column.nullable, column.metadata)


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
