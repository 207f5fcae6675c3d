"""EXISTS, IN, their negations, and SEMI and ANTI joins: relations beside a block, asked for matches.

Each becomes a relation with the columns that a match is told by (:mod:`millrace.sql.subqueries`), and an
:class:`~millrace.engine.expressions.Exists` over them. Of the conditions that read both sides, equalities of
two columns are its keys, and what else Millrace evaluates is what a match has to satisfy beside them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql import types as t
from sqlglot import exp

from millrace.engine.expressions import Column, ColumnRef, Compare, Exists, Predicate, and_all, beside
from millrace.engine.spec import Equality, RelationSpec
from millrace.sql.clause import Clause
from millrace.sql.coercion import comparison_type
from millrace.sql.conditions import Conjunct, Sorted
from millrace.sql.ctes import definitions
from millrace.sql.from_clause import Step
from millrace.sql.parse import Leave, conjuncts, unwrap, where_conjuncts
from millrace.sql.plan import Rows
from millrace.sql.subqueries import Found, Inner, Several, Single, Whole, only_relation, plain
from millrace.sql.translate import Translator, constant_operands


@dataclass(frozen=True, eq=False)
class Beside:
    """A relation beside a block, and what is asked of it.

    Attributes:
        exists: What is asked.
        spec: The relation.
        rows: Where its rows come from.
        conjunct: The condition that this stands for.
        step: For a SEMI or ANTI join, the number of its step in the FROM clause.
    """

    exists: Exists
    spec: RelationSpec
    rows: Rows
    conjunct: Conjunct
    step: int | None = None

    @property
    def equalities(self) -> list[Equality]:
        """What joins it where it is joined as a set instead: each tuple has one partner at most then."""
        return [Equality(_ref(key.left), _ref(key.right), key.type) for key in self.exists.keys]


def semijoins(clause: Clause, group: Sequence[str], found: Sorted, hinted: set[str]) -> Iterator[Beside]:
    """Yield what can stand beside a block; what cannot stays where it is, with a reason.

    Args:
        clause: The FROM clause.
        group: The members of the block.
        found: The conditions; those that are yielded are still above.
        hinted: Aliases that hints name, in lower case: Spark is to join them.
    """
    finder = _Finder(clause, group)
    for conjunct in list(found.above):
        asked = None if conjunct.node is None else _asked(conjunct.node)
        if asked is None or conjunct.foreign or not conjunct.reads or not conjunct.reads <= set(group):
            continue
        try:
            query, left, negated = asked
            yield finder.subquery(conjunct, query, left, negated=negated)
        except Leave as leave:
            clause.planning.reasons.append(f"{clause.shown(conjunct)}: {leave}")
    for number, step in enumerate(clause.steps):
        if not step.item.semi or number in found.steps or not finder.reads(step):
            continue
        try:
            yield finder.join(number, step, hinted)
        except Leave as leave:
            name = "" if step.relation is None else f" {step.relation.alias}"
            clause.planning.reasons.append(f"{step.item.keyword}{name}: {leave}")


def asked(clause: Clause) -> Iterator[exp.Expr]:
    """Yield the relations of SEMI and ANTI joins, and the queries of EXISTS and IN in conditions."""
    yield from (step.relation.node for step in clause.steps if step.item.semi and step.relation is not None)
    for term in clause.source.inner_terms if clause.source.whole else ():
        found = _asked(term)
        if found is not None:
            yield found[0]


def _asked(node: exp.Expr) -> tuple[exp.Expr, exp.Expr | None, bool] | None:
    """Return a condition's subquery, the left side of IN, and whether it is negated; None for any other."""
    inner, negated = unwrap(node), False
    while isinstance(inner, exp.Not):
        inner, negated = unwrap(inner.this), not negated
    if isinstance(inner, exp.Exists) and isinstance(inner.this, exp.Query):
        return inner.this, None, negated
    if isinstance(inner, exp.In) and inner.args.get("query") is not None:
        return inner.args["query"], inner.this, negated
    return None


class _Finder:
    """Finds what a block can ask of relations beside it.

    Args:
        clause: The FROM clause.
        group: The members of the block.
    """

    def __init__(self, clause: Clause, group: Sequence[str]) -> None:
        self._clause = clause
        self._planning = clause.planning
        self._group = set(group)
        self._lookups = any(clause.members[alias].lookup for alias in group)
        self._taken = list(clause.members)

    def subquery(
        self, conjunct: Conjunct, query: exp.Expr, left: exp.Expr | None, *, negated: bool
    ) -> Beside:
        """Return what EXISTS or IN asks.

        Raises:
            Leave: Spark has to evaluate it.
        """
        planning = self._planning
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
        except Leave:
            if left is None:
                raise
            inner = Whole(planning, query, self._taken, len(outer))
            own = [(inner.alias, field) for field in inner.fields]
        else:
            inner, terms = self._inner(select)
            items = () if left is None else [unwrap(item.unalias()) for item in select.expressions]
            own = [inner.column(item) for item in items if isinstance(item, exp.Column)]
        if len(own) != len(outer):
            raise Leave("IN over another number of columns")
        keys, nullable = [], False
        for mine, other in zip(outer, own, strict=True):
            if other is None:
                raise Leave("IN compares with something other than a column")
            keys.append(self._key(mine, other, set_operation=True))
            nullable |= mine[1].nullable or other[1].nullable
        null_aware = left is not None and negated and nullable
        return self._beside(conjunct, inner, terms, keys, negated=negated, null_aware=null_aware)

    def join(self, number: int, step: Step, hinted: set[str]) -> Beside:
        """Return what a SEMI or ANTI join asks.

        Raises:
            Leave: Spark has to run it.
        """
        relation = step.relation
        if relation is None or step.item.natural:
            raise Leave("a form that Millrace does not read")
        if (relation.alias or "").lower() in hinted:
            raise Leave("a hint asks Spark to join it")
        self._check_stable(relation.node)
        self._check_calls(relation.node, *step.conditions)
        inner = Single(self._planning, relation, self._taken)
        terms = inner.correlated([term for on in step.conditions for term in conjuncts(on)])
        keys = []
        for a, b in self._clause.keys_of(step):
            mine = self._clause.member_column(a)
            if mine is None or mine[0] not in self._group or len(b.sources) != 1:
                raise Leave("USING over columns that are not the block's")
            keys.append(self._key(mine, inner.field(b.sources[0][1])))
        node = step.conditions[0] if step.conditions else None
        conjunct = Conjunct(node, frozenset(), frozenset(), None)
        negated = step.item.keyword == "LEFT ANTI JOIN"
        return replace(self._beside(conjunct, inner, terms, keys, negated=negated), step=number)

    def reads(self, step: Step) -> bool:
        """Tell whether a join's condition reads the block."""
        compared = [a for a, _ in self._clause.keys_of(step)]
        read = [self._clause.reads_attributes(compared), *map(self._clause.reads, step.conditions)]
        return any(members & self._group for members, _ in read)

    def _inner(self, select: exp.Select) -> tuple[Inner, list[exp.Expr]]:
        """Return what a SELECT reads, and its conditions that read the outer query."""
        planning, terms = self._planning, where_conjuncts(select)
        try:
            single = Single(planning, only_relation(planning, select), self._taken)
            return single, single.correlated(terms)
        except Leave:
            several = Several(planning, select, self._taken)
            return several, several.correlated(terms)

    def _beside(
        self,
        conjunct: Conjunct,
        inner: Inner,
        terms: Sequence[exp.Expr],
        keys: list[Compare],
        *,
        negated: bool,
        null_aware: bool = False,
    ) -> Beside:
        """Return the relation with what the terms, which read both sides, and further keys ask of it."""
        planning, conditions = self._planning, list[Predicate]()
        planning.constants.prepare([c for term in terms for c in constant_operands(term)])
        ansi = planning.settings.ansi
        translator = Translator(
            lambda node: inner.column(node) or self._outer(node), planning.constants, ansi
        )
        for term in terms:
            match translator.predicate(term):
                case None:
                    raise Leave(f"only Spark evaluates {planning.shown(term)}")
                case Compare("=", Column(a), Column(b)) as equality if (a.relation == inner.alias) != (
                    b.relation == inner.alias
                ):
                    turned = replace(equality, left=equality.right, right=equality.left)
                    keys.append(turned if a.relation == inner.alias else equality)
                case predicate:
                    conditions.append(predicate)
        if not keys:
            raise Leave("no equality ties it to the block")
        condition = and_all(tuple(conditions))
        if null_aware and (len(keys) > 1 or condition is not None):
            raise Leave("NOT IN by more than one column, of which some may be null")
        exists = Exists(inner.alias, tuple(dict.fromkeys(keys)), condition, negated, null_aware)
        if negated or condition is not None:
            self._check_place()
        spec, rows = inner.rows(beside(exists))
        self._taken.append(inner.alias)
        return Beside(exists, spec, rows, conjunct)

    def _outer(self, node: exp.Column) -> Found | None:
        found = self._clause.lookup(node)
        return found if found is not None and found[0] in self._group else None

    def _compared(self, left: exp.Expr) -> list[Found]:
        """Return the block's columns that IN compares."""
        node = unwrap(left)
        parts = node.expressions if isinstance(node, exp.Tuple) else [node]
        found = [self._clause.lookup(part) if isinstance(part, exp.Column) else None for part in parts]
        columns = [each for each in found if each is not None]
        if len(columns) != len(found):
            raise Leave("IN compares something other than columns of the block")
        return columns

    def _key(self, outer: Found, inner: Found, *, set_operation: bool = False) -> Compare:
        a, b = outer[1], inner[1]
        kind: pa.DataType | None = None
        if a.comparable and b.comparable:
            kind = comparison_type(a.type, b.type, ansi=self._planning.settings.ansi)
        # IN coerces as set operations do; only where both ways agree it is an equality.
        integral = isinstance(a.type, t.IntegralType) and isinstance(b.type, t.IntegralType)
        if kind is None or (set_operation and a.type != b.type and not integral):
            raise Leave("columns of types that Spark compares in a way of its own")
        left, right = (Column(ColumnRef(alias, field.name)) for alias, field in (outer, inner))
        return Compare("=", left, right, kind)

    def _check_stable(self, node: exp.Expr) -> None:
        planning = self._planning
        if any(planning.volatility.volatile(part) for part in (node, *definitions(node))):
            raise Leave("it may give other rows when it runs again")
        if planning.is_streaming(node):
            raise Leave("it reads a stream")

    def _check_calls(self, *nodes: exp.Expr) -> None:
        """Refuse calls of predicates, whose place in the text a filter of their own has taken."""
        calls = self._planning.calls
        if any(calls.of(part) is not None for node in nodes for part in node.walk()):
            raise Leave("it calls a predicate")

    def _check_place(self) -> None:
        """Refuse where a relation can be joined as a set, but not be looked through for matches."""
        if self._planning.settings.options.memory_budget is not None:
            raise Leave("matches are looked for in memory, which memory_budget bounds")
        if self._lookups:
            raise Leave("beside a lookup table only EXISTS and IN by equalities are taken")
        if len(self._clause.streams) > 1:
            raise Leave("beside a join of streams only EXISTS and IN by equalities are taken")


def _ref(operand: object) -> ColumnRef:
    assert isinstance(operand, Column)
    return operand.ref
