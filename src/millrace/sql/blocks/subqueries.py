"""Relations beside a block's join: those of EXISTS, IN, their negations, and of SEMI, ANTI and LEFT joins.

Each becomes a relation with the columns that decide a match, which is searched for matches, and an
:class:`~millrace.engine.plan.expressions.Exists` or a
:class:`~millrace.engine.plan.expressions.LeftJoin` over them. Of the conditions that read both sides,
equalities of two columns are its keys, and what else Millrace evaluates is what a match has to satisfy too.
The relation of a LEFT join also has the columns that are read above. It has one of two forms:

- :class:`_Relation`: one relation, with the conditions that read it alone as its filters. Files are scanned
  by the tasks themselves, as those of any other relation.
- :class:`_Query`: a query that Spark or a block of its own runs. Conditions that read the outer query are cut
  out of its text; where it is more than a FROM clause with conditions, there must be none.

EXISTS and IN may also be terms of ANDs and ORs. What is unknown is as good as false there, as it is in WHERE,
but not below NOT. So a NOT is moved down to the terms.
"""

# ruff: noqa: S608  # SQL is what this module writes

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

from pyspark.errors import PySparkException
from pyspark.sql import types as t
from sqlglot import exp

from millrace.engine.plan.expressions import (
    And,
    Column,
    ColumnRef,
    Compare,
    Exists,
    LeftJoin,
    Not,
    Or,
    Predicate,
    and_all,
    beside,
)
from millrace.engine.plan.spec import RelationSpec
from millrace.lookups.table import IndexSpec
from millrace.spark import task_inputs
from millrace.spark.block import FrameInput, Input
from millrace.sql.aggregation import aggregates, is_windowed
from millrace.sql.blocks.access import constants_of, interval_ties, lookup_rows, unbound
from millrace.sql.blocks.conditions import Conjunct, SplitConjuncts, pushable
from millrace.sql.blocks.join_graph import JoinGraph, JoinInput, schema_of
from millrace.sql.context import PlanContext
from millrace.sql.expr.translate import Translator, constant_operands
from millrace.sql.expr.types import AliasedField, Field, FindColumn, field_of
from millrace.sql.names import Match
from millrace.sql.syntax.edits import Edit, Span
from millrace.sql.syntax.parse import (
    Unsupported,
    compared,
    conjuncts,
    disjuncts,
    name_span,
    unwrap,
    where_conjuncts,
)
from millrace.sql.syntax.scopes import FromItem, Relation, Scope, definitions, with_prefix

Taken = TypeVar("Taken")

_Scan = tuple[RelationSpec, Input]
"""A relation, and where its rows come from."""

_PLAIN = frozenset({"expressions", "from_", "joins", "where", "distinct"})
"""What a SELECT may have whose rows are those of its FROM clause that its WHERE keeps."""

_CONSTANT_ITEMS = (exp.Column, exp.Star, exp.Literal, exp.Null, exp.Boolean)
"""What EXISTS may select: nothing that changes the number of rows, or raises."""


SemiJoins = tuple[Predicate, list[_Scan]]
"""What one condition, or one SEMI or ANTI join, asks of other relations, and these.

It asks one Exists, or ANDs and ORs of several and of other predicates.
"""


def take_left_joins(graph: JoinGraph, group: Collection[str]) -> OuterJoins:
    """Take the LEFT joins that a block can evaluate; what it cannot stays above, with a reason.

    What else the clause joins may come behind: ``(a LEFT JOIN x) LEFT JOIN b`` is
    ``(a LEFT JOIN b) LEFT JOIN x``, as long as the ON of ``b`` reads nothing of ``x``.
    """
    if not graph.source.whole:
        return [], []
    finder = _Finder(graph, group)
    taken = [*finder.take_joins(lambda step: step.is_left, finder.left_join)]
    seen = {*group, *(join.relation for join, _ in taken)}
    return taken, [*_take_conditions(graph, seen)] if taken else []


def _take_conditions(graph: JoinGraph, seen: set[str]) -> Iterator[Predicate]:
    """Take the conditions that read nothing but these relations, now that LEFT joins have added some."""
    conditions, translator = graph.conditions, Translator(graph.context, graph.column)
    for conjunct in list(conditions.above):
        if conjunct.node is None or conjunct.node.find(exp.Query) is not None:
            continue
        reads, foreign = graph.reads(conjunct.node)
        if not reads or foreign or not reads <= seen or reads <= graph.inputs.keys():
            continue
        predicate = translator.predicate(conjunct.node)
        if predicate is not None:
            conditions.above.remove(conjunct)
            conditions.used.append(conjunct)
            yield predicate


def take_semi_joins(graph: JoinGraph, group: Collection[str]) -> list[SemiJoins]:
    """Take what a block can evaluate out of the conditions; what it cannot stays above, with a reason."""
    conditions, context = graph.conditions, graph.context
    finder = _Finder(graph, group)
    semi_joins = []
    for conjunct in list(conditions.above):
        if conjunct.node is None or not any(_queries(conjunct.node)):
            continue
        if conjunct.foreign or not conjunct.reads or not conjunct.reads <= set(group):
            continue
        try:
            semi_joins.append(finder.condition(conjunct.node))
        except Unsupported as error:
            context.reasons.append(f"{conjunct.shown(context.shown)}: {error}")
        else:
            conditions.above.remove(conjunct)
            conditions.used.append(conjunct)
    return [*semi_joins, *finder.take_joins(lambda step: step.semi, finder.semi_join)]


def why_joined_as_sets(graph: JoinGraph, group: Iterable[str]) -> str | None:
    """Return why relations are joined to a block as sets, None where they are searched for matches."""
    if len(graph.streams) > 1:  # cells keep what is joined
        return "beside a join of streams only EXISTS and IN by equalities are taken"
    return _why_not_searched(graph, group)


def _why_not_searched(graph: JoinGraph, group: Iterable[str]) -> str | None:
    """Return why a block cannot look for matches, None where it can."""
    if graph.has_lookup(group):  # they may bind it
        return "beside a lookup table only EXISTS and IN by equalities are taken"
    return None


def relations_beside(graph: JoinGraph) -> Iterator[exp.Expr]:
    """Yield the relations of SEMI, ANTI and LEFT joins, and the queries of EXISTS and IN in conditions."""
    for step in graph.source.steps:
        if step.relation is not None and (step.semi or step.is_left):
            yield step.relation.node
    for term in graph.source.inner_terms if graph.source.whole else ():
        yield from _queries(term)


def check_ons(context: PlanContext) -> None:
    """Refuse to edit a text with a subquery in ON that reads several relations of its FROM clause.

    Spark's optimizer refuses it too, but not where it sees before that the join is empty. Behind a block it
    sees less than in the query as written.

    Raises:
        Unsupported: There is one.
    """
    for scope in context.names.scopes.all:
        if scope.clause is None:
            continue
        relations = {*scope.clause.relations()}
        ons = [item.on for item in scope.clause.every() if item.on is not None]
        for node in (node for on in ons for node in on.find_all(exp.In, exp.Exists, exp.Subquery)):
            if node.find(exp.Query) is None:
                continue
            read = context.names.relations_read(node)
            if read is None or len(relations.intersection(read)) > 1:
                where = context.where(scope)
                raise Unsupported(f"{where}: a subquery in ON that reads both sides of the join")


def _queries(node: exp.Expr) -> Iterator[exp.Expr]:
    """Yield the queries of EXISTS and IN among the terms of a condition."""
    left = [node]
    while left:
        inner = unwrap(left.pop())
        if isinstance(inner, exp.And | exp.Or | exp.Not) and inner.find(exp.Query) is not None:
            left += inner.iter_expressions(reverse=True)
        elif (test := _test(inner)) is not None:
            yield test[0]


def _test(node: exp.Expr) -> tuple[exp.Expr, list[exp.Expr] | None] | None:
    """Return the subquery of EXISTS or IN, and what IN compares; None for any other condition."""
    if isinstance(node, exp.Exists) and isinstance(node.this, exp.Query):
        return node.this, None
    if isinstance(node, exp.In) and node.args.get("query") is not None:
        return node.args["query"], compared(node)
    return None


class _Finder:
    """Finds the relations beside a block, which has some inputs of a graph."""

    def __init__(self, graph: JoinGraph, group: Collection[str]) -> None:
        self._graph = graph
        self._context = graph.context
        self._group = set(group)
        self._only_sets = why_joined_as_sets(graph, group)
        self._why_not_searched = _why_not_searched(graph, group)
        self._aliases = [*graph.inputs, *graph.outer]

    def condition(self, node: exp.Expr) -> SemiJoins:
        """Return what a condition with EXISTS and IN among its terms asks."""
        scans: list[_Scan] = []
        predicate = self._predicate(node, scans, negated=False)
        if not isinstance(predicate, Exists):
            self._check_searchable()
        return predicate, scans

    def take_joins(
        self, is_wanted: Callable[[FromItem], bool], take: Callable[[FromItem, int], Taken]
    ) -> Iterator[Taken]:
        """Yield what is made of some joins that read the block; others stay above, with a reason."""
        conditions = self._graph.conditions
        for number, step in enumerate(self._graph.source.steps):
            if not is_wanted(step) or number in conditions.steps or not self._is_read_by(step):
                continue
            try:
                taken = take(step, number)
            except Unsupported as error:
                name = "" if step.relation is None else f" {step.relation.alias}"
                self._context.reasons.append(f"{step.keyword}{name}: {error}")
            else:
                conditions.steps.add(number)
                conditions.used += map(Conjunct, step.conditions)
                yield taken

    def semi_join(self, step: FromItem, number: int) -> SemiJoins:
        """Return what a SEMI or ANTI join asks."""
        exists, scan = self._exists(*self._joined(step, number), negated=step.keyword == "LEFT ANTI JOIN")
        return exists, [scan]

    def left_join(self, step: FromItem, number: int) -> tuple[LeftJoin, _Relation]:
        """Return the LEFT join of the step of some number; those behind it may read its relation."""
        inner, keys = self._joined(step, number)
        why = self._why_not_searched
        if inner.input.lookup is not None:
            why = "lookups are behind a join of streams" if len(self._graph.streams) > 1 else None
        if why is not None:
            raise Unsupported(why)
        if inner.input.lookup is not None and self._is_filtered_above():
            raise Unsupported("only Spark evaluates conditions that tell which of its rows are needed")
        split, condition = self._split(inner, keys)
        if condition is not None and inner.input.lookup is not None:
            ties = interval_ties(inner.alias, inner.input.lookup.table.indexes[0], [condition])
            split = (*split, *(Compare("=", Column(tie.left), Column(tie.right), tie.type) for tie in ties))
        join = LeftJoin(inner.alias, split, condition, inner.bind(split))
        _, rows = inner.rows([field.name for field in inner.input.columns])  # whichever are read above
        self._check_size(rows)
        self._graph.outer[inner.alias] = inner.input
        self._aliases.append(inner.alias)
        self._group.add(inner.alias)
        return join, inner

    def _check_size(self, rows: Input) -> None:
        """Refuse a DataFrame that is too large to travel with tasks of streams; it is not run for that."""
        if len(self._graph.streams) > 1 and isinstance(rows, FrameInput) and isinstance(rows.source, str):
            _, size = self._context.frames.estimate(rows.source)
            if size is not None and size > task_inputs.MOST_TABLE:
                raise Unsupported(f"Spark estimates {size:,} bytes, too many to travel with every task")

    def _is_filtered_above(self) -> bool:
        """Tell whether Spark drops tuples of the block's inner joins, by a condition without a query."""
        inputs = self._group & self._graph.inputs.keys()
        return any(
            conjunct.reads and conjunct.reads <= inputs and not conjunct.foreign
            for conjunct in self._graph.conditions.above
            if conjunct.node is None or conjunct.node.find(exp.Query) is None
        )

    def _joined(self, step: FromItem, number: int) -> tuple[_Relation, list[Compare]]:
        """Return what a step joins, and the keys of its USING."""
        relation = step.relation
        if relation is None or step.natural:
            raise Unsupported("a form that Millrace does not read")
        if (relation.alias or "").lower() in self._graph.hinted:
            raise Unsupported("a hint asks Spark to join it")
        self._check_stable(relation.node)
        self._check_calls(relation.node, *step.conditions)
        inner = _Relation(self._context, relation, self._aliases, step.terms, number, nullable=step.is_left)
        keys = []
        for a, b in self._context.names.keys_of(step):
            outer, own = self._graph.find_column(a), inner.input.find_column(b)
            if outer is None or outer[0] not in self._group or own is None:
                raise Unsupported("USING over columns that are not the block's")
            keys.append(self._key(outer, own))
        return inner, keys

    def _is_read_by(self, step: FromItem) -> bool:
        """Tell whether a join's condition reads the block."""
        left = [a for a, _ in self._context.names.keys_of(step)]
        reads = [self._graph.reads_attributes(left), *map(self._graph.reads, step.conditions)]
        return any(aliases & self._group for aliases, _ in reads)

    def _predicate(self, node: exp.Expr, scans: list[_Scan], *, negated: bool) -> Predicate:
        """Return a condition or its negation; adds the relations that it asks."""
        inner, context = unwrap(node), self._context
        if inner.find(exp.Query) is None:
            predicate = _translator(context, self._outer, [inner]).predicate(inner)
            if predicate is None:
                raise Unsupported(f"only Spark evaluates {context.shown(inner)}")
            return Not(predicate) if negated else predicate
        if isinstance(inner, exp.Not):
            return self._predicate(inner.this, scans, negated=not negated)
        if isinstance(inner, exp.And | exp.Or):
            is_and = isinstance(inner, exp.And)
            nodes = conjuncts(inner) if is_and else disjuncts(inner)
            terms = tuple(self._predicate(term, scans, negated=negated) for term in nodes)
            return And(terms) if is_and is not negated else Or(terms)
        test = _test(inner)
        if test is None:
            raise Unsupported(f"only Spark evaluates {context.shown(node)}")
        exists, scan = self._subquery(*test, negated=negated)
        scans.append(scan)
        return exists

    def _subquery(
        self, query: exp.Expr, left: list[exp.Expr] | None, *, negated: bool
    ) -> tuple[Exists, _Scan]:
        """Return what EXISTS, or IN with these on its left, asks, and of which relation."""
        while isinstance(query, exp.Subquery) and query.is_wrapper:
            query = query.this
        self._check_stable(query)
        outer = [self._outer(part) if isinstance(part, exp.Column) else None for part in left or ()]
        if None in outer:
            raise Unsupported("IN compares something other than columns of the block")
        inner: _Relation | _Query
        columns: Sequence[AliasedField | None]
        try:
            self._check_calls(query)
            select = _plain(query, shown=left is not None)
        except Unsupported:
            if left is None:
                raise
            inner = _Query(self._context, query, self._aliases)
            columns = inner.whole(len(outer))
        else:
            inner = self._inner(select)
            items = () if left is None else [unwrap(item.unalias()) for item in select.expressions]
            columns = [inner.column(item) for item in items if isinstance(item, exp.Column)]
        if len(columns) != len(outer):
            raise Unsupported("IN over another number of columns")
        keys, nullable = [], False
        for mine, other in zip(outer, columns, strict=True):
            if mine is None or other is None:
                raise Unsupported("IN compares with something other than a column")
            keys.append(self._key(mine, other, set_operation=True))
            nullable |= mine[1].nullable or other[1].nullable
        return self._exists(inner, keys, negated=negated, null_aware=negated and nullable)

    def _inner(self, select: exp.Select) -> _Relation | _Query:
        """Return what a SELECT reads, without its conditions that read the outer query."""
        context, terms = self._context, where_conjuncts(select)
        clause = context.names.scopes.of(select).clause
        relations = [] if clause is None or clause.views else [item.relation for item in clause.items]
        with suppress(Unsupported):
            if len(relations) == 1 and relations[0] is not None:
                return _Relation(context, relations[0], self._aliases, terms)
        return _Query(context, select, self._aliases, terms)

    def _exists(
        self, inner: _Relation | _Query, keys: list[Compare], *, negated: bool, null_aware: bool = False
    ) -> tuple[Exists, _Scan]:
        """Return what keys, and conditions that read both sides, ask of a relation, and the relation."""
        given = len(keys)
        split, condition = self._split(inner, keys)
        if null_aware and (given > 1 or inner.correlated):
            raise Unsupported("NOT IN by more than one column, of which some may be null")
        exists = Exists(inner.alias, split, condition, negated, null_aware)
        if negated or condition is not None:
            self._check_searchable()
        scan = inner.rows(beside(exists))
        self._aliases.append(inner.alias)
        return exists, scan

    def _split(
        self, inner: _Relation | _Query, keys: list[Compare]
    ) -> tuple[tuple[Compare, ...], Predicate | None]:
        """Return what conditions that read both sides ask: keys, behind those given, and what else."""
        context, conditions = self._context, list[Predicate]()
        translator = _translator(
            context, lambda node: inner.column(node) or self._outer(node), inner.correlated
        )
        for term in inner.correlated:
            match translator.predicate(term):
                case None:
                    raise Unsupported(f"only Spark evaluates {context.shown(term)}")
                case Compare("=", Column(a), Column(b)) as equality if (a.relation == inner.alias) != (
                    b.relation == inner.alias
                ):
                    turned = replace(equality, left=equality.right, right=equality.left)
                    keys.append(turned if a.relation == inner.alias else equality)
                case predicate:
                    conditions.append(predicate)
        if not keys:
            raise Unsupported("no equality ties it to the block")
        return tuple(dict.fromkeys(keys)), and_all(tuple(conditions))

    def _outer(self, node: exp.Column) -> AliasedField | None:
        column = self._graph.column(node)
        return column if column is not None and column[0] in self._group else None

    def _key(self, outer: AliasedField, inner: AliasedField, *, set_operation: bool = False) -> Compare:
        equality, types = self._graph.equality(outer, inner), (outer[1].type, inner[1].type)
        # IN coerces as set operations do; only where both ways agree it is an equality.
        alike = types[0] == types[1] or all(isinstance(kind, t.IntegralType) for kind in types)
        if equality is None or (set_operation and not alike):
            raise Unsupported("columns of types that Spark compares in a way of its own")
        return Compare("=", Column(equality.left), Column(equality.right), equality.type)

    def _check_stable(self, node: exp.Expr) -> None:
        if any(map(self._context.determinism.volatile, (node, *definitions(node)))):
            raise Unsupported("it may give other rows when it runs again")
        if self._context.is_streaming(node):
            raise Unsupported("it reads a stream")

    def _check_calls(self, *nodes: exp.Expr) -> None:
        """Refuse calls of predicates, whose place in the text a filter of their own has taken."""
        calls = self._context.calls
        if any(calls.of(part) is not None for node in nodes for part in node.walk()):
            raise Unsupported("it calls a predicate")

    def _check_searchable(self) -> None:
        if self._only_sets is not None:
            raise Unsupported(self._only_sets)


class _Relation:
    """One relation; those of ``terms`` that read nothing else are its filters, the others correlated.

    Its columns are ``nullable`` where it may be joined as nulls.
    """

    def __init__(
        self,
        context: PlanContext,
        relation: Relation,
        aliases: Collection[str],
        terms: Sequence[exp.Expr],
        step: int = 0,
        *,
        nullable: bool = False,
    ) -> None:
        self._context = context
        self.input = JoinInput.of(context, relation, step, aliases)
        lookup = self.input.lookup
        if lookup is not None and not (nullable and lookup.needs_keys):
            raise Unsupported("it reads a lookup table")
        self._index: IndexSpec | None = None
        if nullable:
            self.input.columns = tuple(replace(column, nullable=True) for column in self.input.columns)
        self.alias = self.input.alias
        if any(term.find(exp.Query) is not None for term in terms):
            raise Unsupported("a subquery in its condition")
        own, self.correlated = list[exp.Expr](), list[exp.Expr]()
        for term in terms:
            sources = [source for _, match in _meant(context, term) for source, _ in match.attribute.sources]
            (own if all(source is relation for source in sources) else self.correlated).append(term)
        translator = _translator(context, self.column, own)
        alone, none = frozenset({self.alias}), frozenset[int]()
        filters = []
        for term in own:
            is_pushable = lookup is None and pushable(term, context.determinism)
            filters.append(Conjunct(term, alone, none, translator.predicate(term), is_pushable))
        self._filters = SplitConjuncts.of(
            filters, translator, lambda _, node: self.input.condition_text(context, node)
        )
        for conjunct in self._filters.above:
            raise Unsupported(f"only Spark evaluates {conjunct.shown(context.shown)}")

    def column(self, node: exp.Column) -> AliasedField | None:
        """Return its column that a name means, None if it means anything else."""
        attribute = self._context.names.attribute(node)
        return None if attribute is None else self.input.find_column(attribute)

    def bind(self, keys: Sequence[Compare]) -> tuple[str, ...]:
        """Choose the index of a lookup table that keys give values to; return its bind columns.

        Unsupported where they do for none; nothing for any other relation, whose rows all come.
        """
        lookup = self.input.lookup
        if lookup is None:
            return ()
        columns = {key.right.ref.column for key in keys if isinstance(key.right, Column)}
        bound = [index for index in lookup.table.indexes if columns.issuperset(index.columns)]
        if lookup.table.is_set:
            raise Unsupported("equal rows of it are one, wherever they come from")
        if not bound:
            raise Unsupported(unbound(self.alias, lookup))
        filters = self._filters.filters.get(self.alias, ())
        refs = (ColumnRef(self.alias, column) for column in bound[0].bind)
        if any(constants_of(filters, ref, lookup) is not None for ref in refs):
            raise Unsupported("constants tell which of its rows are needed")
        self._index = bound[0]
        return self._index.columns

    def rows(self, read: Collection[str]) -> _Scan:
        """Return it, filtered, with these of its columns."""
        columns = [field for field in self.input.columns if field.name in read]
        if self._index is not None:
            return lookup_rows(self._context, self.input, columns, self._filters, (self._index,), scans=False)
        return self.input.rows(self._context, columns, self._filters)


OuterJoins = tuple[list[tuple[LeftJoin, _Relation]], list[Predicate]]
"""The LEFT joins of a block, as written, and the conditions of WHERE that read what they add."""


class _Query:
    """A query that is read by itself, with columns ``c0``, ``c1``, …

    With ``terms``, the WHERE of a SELECT that :func:`_plain` has passed, it is read without the correlated
    ones, and its columns are those of its FROM clause that are looked up. Without, it is :meth:`whole`.
    """

    def __init__(
        self,
        context: PlanContext,
        query: exp.Expr,
        aliases: Collection[str],
        terms: Sequence[exp.Expr] | None = None,
    ) -> None:
        self._context = context
        self._query = query
        self.alias = "subquery"
        while self.alias in aliases:
            self.alias += "_"
        self.correlated: list[exp.Expr] = []
        self._columns: dict[tuple[Relation, int], tuple[Field, Span]] = {}
        self._whole: tuple[list[Field], FrameInput] | None = None
        if terms is not None:
            self._cut(query, terms)

    def whole(self, count: int) -> list[AliasedField]:
        """Take the query as it stands, of any form, and return its columns."""
        context, names = self._context, [f"c{n}" for n in range(count)]
        if context.escapes(self._query):
            raise Unsupported("it reads the outer query in a form that Millrace does not read")
        read = self._read(names, context.text.edits)
        try:
            schema = context.schema(self._template(names, ()))
        except PySparkException:
            raise Unsupported("Spark cannot analyse it by itself") from None
        fields = [field_of(column) for column in schema.fields]
        self._whole = fields, read
        return [(self.alias, field) for field in fields]

    def column(self, node: exp.Column) -> AliasedField | None:
        """Return its column that a name means, None if it means anything else."""
        names = self._context.names
        attribute, resolved = names.attribute(node), names.find(node)
        is_own = resolved is not None and resolved.scope.select is self._query
        if not is_own or attribute is None or attribute.relation is None:
            return None
        relation, place = source = attribute.sources[0]
        if source not in self._columns:
            # An outer join may add nulls to what a relation has.
            field = replace(names.fields(relation)[place], name=f"c{len(self._columns)}", nullable=True)
            self._columns[source] = field, name_span(node)
        return self.alias, self._columns[source][0]

    def _cut(self, select: exp.Expr, terms: Sequence[exp.Expr]) -> None:
        """Find the conditions that read the outer query; refuse one that reads it somewhere else."""
        inside = {id(part) for part in select.walk() if isinstance(part, exp.Select)}

        def is_inside(node: exp.Expr) -> bool:
            return all(id(scope.select) in inside for scope, _ in _meant(self._context, node))

        self.correlated = [term for term in terms if not is_inside(term)]
        dropped = {id(part) for node in (*self.correlated, *select.expressions) for part in node.walk()}
        if not all(is_inside(column) for column in select.find_all(exp.Column) if id(column) not in dropped):
            raise Unsupported("it reads the outer query somewhere else than in WHERE")

    def rows(self, read: Collection[str]) -> _Scan:
        """Return it with these of its columns; as it stands, with all."""
        if self._whole is not None:
            fields, rows = self._whole
        else:
            text, span = self._context.text, self._context.statement.span
            columns = [(field, name) for field, name in self._columns.values() if field.name in read]
            spans = [span(item) for item in self._query.expressions]
            start, end = spans[0][0], spans[-1][1]
            edits = [Edit(start, end, (", ".join(text.edited(name) for _, name in columns),))]
            edits += [Edit(*span(term), ("true",)) for term in self.correlated]
            edits += [edit for edit in text.edits if edit.end < start or edit.start > end]
            fields = [field for field, _ in columns]
            rows = self._read([field.name for field in fields], edits)
        return RelationSpec(self.alias, schema_of(self.alias, fields)), rows

    def _read(self, names: Iterable[str], edits: Iterable[Edit]) -> FrameInput:
        template = self._template(names, edits)
        if self._context.catalog.barred(template):
            raise Unsupported("it reads a lookup table")
        return FrameInput(template)

    def _template(self, names: Iterable[str], edits: Iterable[Edit]) -> str:
        statement = self._context.statement

        def render(span: Span) -> str:
            return self._context.text.with_edits(span, edits)

        text = render(statement.span(self._query, "a subquery"))
        prefix = with_prefix(statement, self._query, render)
        return f"{prefix}SELECT * FROM ({text}) AS __t({', '.join(names)})"


def _translator(context: PlanContext, lookup: FindColumn, nodes: Iterable[exp.Expr]) -> Translator:
    """Return a translator of some conditions, whose constants Spark is asked for at once."""
    context.constants.prepare([constant for node in nodes for constant in constant_operands(node)])
    return Translator(context, lookup)


def _meant(context: PlanContext, node: exp.Expr) -> Iterator[tuple[Scope, Match]]:
    """Yield what names of columns mean, each with its SELECT; refuse names that are not certain."""
    for column in node.find_all(exp.Column):
        resolved = context.names.find(column)
        if resolved is None:
            continue
        if resolved.why or resolved.match is None:
            raise Unsupported(f"it is not certain what {column.name} means")
        yield resolved.scope, resolved.match


def _plain(select: exp.Expr, *, shown: bool) -> exp.Select:
    """Return a SELECT whose rows are those of its FROM clause that its WHERE keeps; refuse any other query.

    Where it is ``shown``, its columns matter; otherwise they only must not change the number of rows.
    """
    plain = _from_and_where(select)
    items = [unwrap(item.unalias()) for item in plain.expressions]
    if not all(isinstance(item, exp.Column if shown else _CONSTANT_ITEMS) for item in items):
        raise Unsupported("a subquery that computes columns")
    return plain


def _from_and_where(select: exp.Expr) -> exp.Select:
    """Return a SELECT that has nothing but items, FROM and WHERE."""
    if not isinstance(select, exp.Select):
        raise Unsupported("a set operation")
    more = [name for name, value in select.args.items() if value and name not in _PLAIN]
    distinct = select.args.get("distinct")
    if more or select.args.get("from_") is None or (distinct is not None and distinct.args.get("on")):
        raise Unsupported(f"a subquery with {more[0].rstrip('_').upper() if more else 'an odd form'}")
    return select


def existence_test(select: exp.Select) -> exp.Exists | exp.In | None:
    """Return the EXISTS or IN that a SELECT is the subquery of, to which equal rows of its FROM are one.

    None for any other SELECT, and for one whose rows are not each made of one of FROM.
    """
    node: exp.Expr = select
    while isinstance(node.parent, exp.Subquery) and node.parent.is_wrapper:
        node = node.parent
    around = node.parent
    with suppress(Unsupported):
        if isinstance(around, exp.Exists):
            _plain(select, shown=False)
            return around
        if isinstance(around, exp.In) and node.arg_key == "query":
            return None if aggregates(_from_and_where(select)) or is_windowed(select) else around
    return None
