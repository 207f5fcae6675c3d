"""EXISTS, IN, their negations, and SEMI and ANTI joins: relations beside a block, asked for matches.

Each becomes a relation with the columns that a match is told by (:mod:`millrace.sql.blocks.subqueries`), and
an :class:`~millrace.engine.expressions.Exists` over them. Of the conditions that read both sides, equalities
of two columns are its keys, and what else Millrace evaluates is what a match has to satisfy beside them.

EXISTS and IN may also be terms of ANDs and ORs. What is unknown is as good as false there, as it is in WHERE,
but not below NOT. So a NOT is moved down to the terms.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql import types as t
from sqlglot import exp

from millrace.engine.expressions import (
    And,
    Column,
    ColumnRef,
    Compare,
    Exists,
    Not,
    Or,
    Predicate,
    and_all,
    beside,
)
from millrace.engine.spec import Equality, RelationSpec
from millrace.sql.blocks.conditions import Conjunct, SplitConjuncts
from millrace.sql.blocks.join_graph import JoinGraph
from millrace.sql.blocks.subqueries import Found, Inner, Several, Single, Whole, only_relation, plain
from millrace.sql.expr.translate import Translator, constant_operands
from millrace.sql.expr.types import comparison_type
from millrace.sql.planner.plan import Rows
from millrace.sql.syntax.ctes import definitions
from millrace.sql.syntax.from_clause import JoinStep
from millrace.sql.syntax.parse import Unsupported, conjuncts, disjuncts, unwrap, where_conjuncts

_Read = tuple[RelationSpec, Rows]
"""A relation, and where its rows come from."""


@dataclass(frozen=True, eq=False)
class SemiJoins:
    """Relations beside a block, and what is asked of them.

    Attributes:
        asked: One Exists, or ANDs and ORs of several and of other predicates.
        relations: The relations, and where the rows of each come from.
        conjunct: The condition that this stands for.
        step: For a SEMI or ANTI join, the number of its step in the FROM clause.
    """

    asked: Predicate
    relations: list[_Read]
    conjunct: Conjunct
    step: int | None = None

    @property
    def equalities(self) -> list[Equality]:
        """What joins it where it is joined as a set instead: each tuple has one partner at most then."""
        assert isinstance(self.asked, Exists)
        return [Equality(_ref(key.left), _ref(key.right), key.type) for key in self.asked.keys]


def semijoins(
    graph: JoinGraph, group: Sequence[str], found: SplitConjuncts, hinted: set[str]
) -> Iterator[SemiJoins]:
    """Yield what can stand beside a block; what cannot stays where it is, with a reason.

    Args:
        graph: The FROM clause.
        group: The members of the block.
        found: The conditions; those that are yielded are still above.
        hinted: Aliases that hints name, in lower case: Spark is to join them.
    """
    finder = _Finder(graph, group)
    for conjunct in list(found.above):
        if conjunct.node is None or not any(_queries(conjunct.node)):
            continue
        if conjunct.foreign or not conjunct.reads or not conjunct.reads <= set(group):
            continue
        try:
            yield finder.condition(conjunct)
        except Unsupported as leave:
            graph.context.reasons.append(f"{graph.shown(conjunct)}: {leave}")
    for number, step in enumerate(graph.steps):
        if not step.item.semi or number in found.steps or not finder.reads(step):
            continue
        try:
            yield finder.join(number, step, hinted)
        except Unsupported as leave:
            name = "" if step.relation is None else f" {step.relation.alias}"
            graph.context.reasons.append(f"{step.item.keyword}{name}: {leave}")


def asked(graph: JoinGraph) -> Iterator[exp.Expr]:
    """Yield the relations of SEMI and ANTI joins, and the queries of EXISTS and IN in conditions."""
    yield from (step.relation.node for step in graph.steps if step.item.semi and step.relation is not None)
    for term in graph.source.inner_terms if graph.source.whole else ():
        yield from _queries(term)


def _queries(node: exp.Expr) -> Iterator[exp.Expr]:
    """Yield the queries of EXISTS and IN among the terms of a condition."""
    left = [node]
    while left:
        inner = unwrap(left.pop())
        if isinstance(inner, exp.And | exp.Or | exp.Not) and inner.find(exp.Query) is not None:
            left += inner.iter_expressions(reverse=True)
        elif (found := _asked(inner)) is not None:
            yield found[0]


def _asked(node: exp.Expr) -> tuple[exp.Expr, exp.Expr | None] | None:
    """Return the subquery of EXISTS or IN, and the left side of IN; None for any other condition."""
    if isinstance(node, exp.Exists) and isinstance(node.this, exp.Query):
        return node.this, None
    if isinstance(node, exp.In) and node.args.get("query") is not None:
        return node.args["query"], node.this
    return None


class _Finder:
    """Finds what a block can ask of relations beside it.

    Args:
        graph: The FROM clause.
        group: The members of the block.
    """

    def __init__(self, graph: JoinGraph, group: Sequence[str]) -> None:
        self._graph = graph
        self._context = graph.context
        self._group = set(group)
        self._lookups = any(graph.members[alias].lookup for alias in group)
        self._taken = list(graph.members)

    def condition(self, conjunct: Conjunct) -> SemiJoins:
        """Return what a condition with EXISTS and IN among its terms asks.

        Raises:
            Unsupported: Spark has to evaluate it.
        """
        assert conjunct.node is not None
        relations: list[_Read] = []
        asked = self._predicate(conjunct.node, relations, negated=False)
        if not isinstance(asked, Exists):
            self._check_place()
        return SemiJoins(asked, relations, conjunct)

    def _predicate(self, node: exp.Expr, relations: list[_Read], *, negated: bool) -> Predicate:
        """Return a condition or its negation; adds the relations that it asks."""
        inner = unwrap(node)
        if inner.find(exp.Query) is None:
            return self._plain(inner, negated=negated)
        match inner:
            case exp.Not():
                return self._predicate(inner.this, relations, negated=not negated)
            case exp.And() | exp.Or():
                is_and = isinstance(inner, exp.And)
                terms = conjuncts(inner) if is_and else disjuncts(inner)
                found = tuple(self._predicate(term, relations, negated=negated) for term in terms)
                return And(found) if is_and is not negated else Or(found)
        asked = _asked(inner)
        if asked is None:
            raise Unsupported(f"only Spark evaluates {self._context.shown(node)}")
        exists, read = self._subquery(*asked, negated=negated)
        relations.append(read)
        return exists

    def _plain(self, node: exp.Expr, *, negated: bool) -> Predicate:
        """Return a condition without subqueries, or its negation."""
        context = self._context
        context.constants.prepare(list(constant_operands(node)))
        found = Translator(context, self._outer).predicate(node)
        if found is None:
            raise Unsupported(f"only Spark evaluates {context.shown(node)}")
        return Not(found) if negated else found

    def _subquery(self, query: exp.Expr, left: exp.Expr | None, *, negated: bool) -> tuple[Exists, _Read]:
        """Return what EXISTS or IN asks, and of which relation."""
        context = self._context
        while isinstance(query, exp.Subquery) and query.is_wrapper:
            query = query.this
        self._check_stable(query)
        outer = [] if left is None else self._compared(left)
        inner: Inner
        terms: list[exp.Expr] = []
        own: list[Found | None]
        try:
            self._check_calls(query)
            select = plain(query, shown=left is not None)
        except Unsupported:
            if left is None:
                raise
            inner = Whole(context, query, self._taken, len(outer))
            own = [(inner.alias, field) for field in inner.fields]
        else:
            inner, terms = self._inner(select)
            items = () if left is None else [unwrap(item.unalias()) for item in select.expressions]
            own = [inner.column(item) for item in items if isinstance(item, exp.Column)]
        if len(own) != len(outer):
            raise Unsupported("IN over another number of columns")
        keys, nullable = [], False
        for mine, other in zip(outer, own, strict=True):
            if other is None:
                raise Unsupported("IN compares with something other than a column")
            keys.append(self._key(mine, other, set_operation=True))
            nullable |= mine[1].nullable or other[1].nullable
        null_aware = left is not None and negated and nullable
        return self._exists(inner, terms, keys, negated=negated, null_aware=null_aware)

    def join(self, number: int, step: JoinStep, hinted: set[str]) -> SemiJoins:
        """Return what a SEMI or ANTI join asks.

        Raises:
            Unsupported: Spark has to run it.
        """
        relation = step.relation
        if relation is None or step.item.natural:
            raise Unsupported("a form that Millrace does not read")
        if (relation.alias or "").lower() in hinted:
            raise Unsupported("a hint asks Spark to join it")
        self._check_stable(relation.node)
        self._check_calls(relation.node, *step.conditions)
        inner = Single(self._context, relation, self._taken)
        terms = inner.correlated([term for on in step.conditions for term in conjuncts(on)])
        keys = []
        for a, b in self._graph.keys_of(step):
            mine = self._graph.member_column(a)
            if mine is None or mine[0] not in self._group or len(b.sources) != 1:
                raise Unsupported("USING over columns that are not the block's")
            keys.append(self._key(mine, inner.field(b.sources[0][1])))
        node = step.conditions[0] if step.conditions else None
        conjunct = Conjunct(node, frozenset(), frozenset(), None)
        negated = step.item.keyword == "LEFT ANTI JOIN"
        exists, read = self._exists(inner, terms, keys, negated=negated)
        return SemiJoins(exists, [read], conjunct, number)

    def reads(self, step: JoinStep) -> bool:
        """Tell whether a join's condition reads the block."""
        compared = [a for a, _ in self._graph.keys_of(step)]
        read = [self._graph.reads_attributes(compared), *map(self._graph.reads, step.conditions)]
        return any(members & self._group for members, _ in read)

    def _inner(self, select: exp.Select) -> tuple[Inner, list[exp.Expr]]:
        """Return what a SELECT reads, and its conditions that read the outer query."""
        context, terms = self._context, where_conjuncts(select)
        try:
            single = Single(context, only_relation(context, select), self._taken)
            return single, single.correlated(terms)
        except Unsupported:
            several = Several(context, select, self._taken)
            return several, several.correlated(terms)

    def _exists(
        self,
        inner: Inner,
        terms: Sequence[exp.Expr],
        keys: list[Compare],
        *,
        negated: bool,
        null_aware: bool = False,
    ) -> tuple[Exists, _Read]:
        """Return what terms, which read both sides, and further keys ask of a relation, and the relation."""
        context, conditions = self._context, list[Predicate]()
        context.constants.prepare([c for term in terms for c in constant_operands(term)])
        translator = Translator(context, lambda node: inner.column(node) or self._outer(node))
        for term in terms:
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
        condition = and_all(tuple(conditions))
        if null_aware and (len(keys) > 1 or condition is not None):
            raise Unsupported("NOT IN by more than one column, of which some may be null")
        exists = Exists(inner.alias, tuple(dict.fromkeys(keys)), condition, negated, null_aware)
        if negated or condition is not None:
            self._check_place()
        read = inner.rows(beside(exists))
        self._taken.append(inner.alias)
        return exists, read

    def _outer(self, node: exp.Column) -> Found | None:
        found = self._graph.lookup(node)
        return found if found is not None and found[0] in self._group else None

    def _compared(self, left: exp.Expr) -> list[Found]:
        """Return the block's columns that IN compares."""
        node = unwrap(left)
        parts = node.expressions if isinstance(node, exp.Tuple) else [node]
        found = [self._graph.lookup(part) if isinstance(part, exp.Column) else None for part in parts]
        columns = [each for each in found if each is not None]
        if len(columns) != len(found):
            raise Unsupported("IN compares something other than columns of the block")
        return columns

    def _key(self, outer: Found, inner: Found, *, set_operation: bool = False) -> Compare:
        a, b = outer[1], inner[1]
        kind: pa.DataType | None = None
        if a.comparable and b.comparable:
            kind = comparison_type(a.type, b.type, ansi=self._context.settings.ansi)
        # IN coerces as set operations do; only where both ways agree it is an equality.
        integral = isinstance(a.type, t.IntegralType) and isinstance(b.type, t.IntegralType)
        if kind is None or (set_operation and a.type != b.type and not integral):
            raise Unsupported("columns of types that Spark compares in a way of its own")
        left, right = (Column(ColumnRef(alias, field.name)) for alias, field in (outer, inner))
        return Compare("=", left, right, kind)

    def _check_stable(self, node: exp.Expr) -> None:
        context = self._context
        if any(context.volatility.volatile(part) for part in (node, *definitions(node))):
            raise Unsupported("it may give other rows when it runs again")
        if context.is_streaming(node):
            raise Unsupported("it reads a stream")

    def _check_calls(self, *nodes: exp.Expr) -> None:
        """Refuse calls of predicates, whose place in the text a filter of their own has taken."""
        calls = self._context.calls
        if any(calls.of(part) is not None for node in nodes for part in node.walk()):
            raise Unsupported("it calls a predicate")

    def _check_place(self) -> None:
        """Refuse where a relation can be joined as a set, but not be looked through for matches."""
        if self._context.settings.options.memory_budget is not None:
            raise Unsupported("matches are looked for in memory, which memory_budget bounds")
        if self._lookups:
            raise Unsupported("beside a lookup table only EXISTS and IN by equalities are taken")
        if len(self._graph.streams) > 1:
            raise Unsupported("beside a join of streams only EXISTS and IN by equalities are taken")


def _ref(operand: object) -> ColumnRef:
    assert isinstance(operand, Column)
    return operand.ref
