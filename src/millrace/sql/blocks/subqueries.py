"""The relation that EXISTS, IN, and SEMI and ANTI joins look for matches in, as a block can have it.

- :class:`Single`: one relation, with the conditions that read it alone as its filters. Files are scanned by
  the tasks themselves, as those of any other relation.
- :class:`Several`: a FROM clause that Spark or a block of its own runs; conditions that read the outer query
  are cut out of the text.
- :class:`Whole`: a subquery of any form that reads nothing of the outer query.
"""

# ruff: noqa: S608  # SQL is what this module writes

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Protocol

from pyspark.errors import PySparkException
from sqlglot import exp

from millrace.engine.spec import RelationSpec
from millrace.sql.aggregation.calls import aggregates, is_windowed
from millrace.sql.blocks.conditions import Conjunct, SplitConjuncts, pushable, sort_conditions
from millrace.sql.blocks.join_inputs import condition_text, member_of, rows_of, schema_of
from millrace.sql.expr.translate import Translator, constant_operands
from millrace.sql.expr.types import Field, field_of
from millrace.sql.names.outputs import Match
from millrace.sql.planner.context import PlanContext
from millrace.sql.planner.plan import Read, Rows
from millrace.sql.syntax.ctes import with_prefix
from millrace.sql.syntax.edits import Edit, Span
from millrace.sql.syntax.from_clause import Relation
from millrace.sql.syntax.parse import Unsupported, name_span, unwrap
from millrace.sql.syntax.scopes import Scope

Found = tuple[str, Field]
"""An alias, and a column of the relation of that alias."""

_PLAIN = frozenset({"expressions", "from_", "joins", "where", "distinct"})
"""What a SELECT may have whose rows are those of its FROM clause that its WHERE keeps."""

_SHOWN = (exp.Column, exp.Star, exp.Literal, exp.Null, exp.Boolean)


class Inner(Protocol):
    """A relation to look for matches in.

    Attributes:
        alias: Its name beside the block.
    """

    alias: str

    def column(self, node: exp.Column) -> Found | None:
        """Return its column that a name means, None if it means anything else."""

    def correlated(self, terms: Sequence[exp.Expr]) -> list[exp.Expr]:
        """Take the conditions that read nothing but it, and return the others.

        Raises:
            Unsupported: One of them cannot be told apart, or taken.
        """

    def rows(self, read: Collection[str]) -> tuple[RelationSpec, Rows]:
        """Return it with these of its columns, in an order of its own.

        Raises:
            Unsupported: It cannot be read by itself.
        """


class Single:
    """One relation.

    Args:
        context: The query.
        relation: The relation.
        taken: Aliases that are in use.
    """

    def __init__(self, context: PlanContext, relation: Relation, taken: Sequence[str]) -> None:
        self._context = context
        self._member = member_of(context, relation, 0, taken)
        if self._member.lookup:
            raise Unsupported("it reads a lookup table")
        self.alias = self._member.alias
        self._found = SplitConjuncts()

    def column(self, node: exp.Column) -> Found | None:
        """Return its column that a name means."""
        match = self._context.names.match(node)
        if match is None or match.nested:
            return None
        sources = match.attribute.sources
        if len(sources) != 1 or sources[0][0] is not self._member.relation:
            return None
        return self.alias, self._member.columns[sources[0][1]]

    def field(self, place: int) -> Found:
        """Return a column by its place."""
        return self.alias, self._member.columns[place]

    def correlated(self, terms: Sequence[exp.Expr]) -> list[exp.Expr]:
        """Take the conditions that read nothing but it as filters."""
        context, others = self._context, list[exp.Expr]()
        if any(term.find(exp.Query) is not None for term in terms):
            raise Unsupported("a subquery in its condition")
        mine: list[exp.Expr] = []
        for term in terms:
            (mine if _reads_only(context, term, self._member.relation) else others).append(term)
        context.constants.prepare([c for term in mine for c in constant_operands(term)])
        translator = Translator(context, self.column)
        found = []
        for term in mine:
            scanned = pushable(term) and not context.volatility.volatile(term)
            reads = frozenset({self.alias})
            found.append(Conjunct(term, reads, frozenset(), translator.predicate(term), scanned))
        self._found = sort_conditions(
            found, translator, lambda _, node: condition_text(context, self._member, node)
        )
        if self._found.above:
            node = self._found.above[0].node
            assert node is not None
            raise Unsupported(f"only Spark evaluates {context.shown(node)}")
        return others

    def rows(self, read: Collection[str]) -> tuple[RelationSpec, Rows]:
        """Return the relation, filtered."""
        columns = [field for field in self._member.columns if field.name in read]
        return rows_of(self._context, self._member, columns, self._found)


class Several:
    """A FROM clause that is read by itself.

    Args:
        context: The query.
        select: A SELECT that :func:`plain` has passed.
        taken: Aliases that are in use.
    """

    def __init__(self, context: PlanContext, select: exp.Select, taken: Sequence[str]) -> None:
        self._context = context
        self._select = select
        self._scope = context.names.scopes.of(select)
        self.alias = _fresh(taken)
        self._columns: dict[tuple[int, int], tuple[Field, Span]] = {}
        self._cut: list[exp.Expr] = []

    def column(self, node: exp.Column) -> Found | None:
        """Return its column that a name means."""
        names = self._context.names
        found = names.find(node)
        if found is None or found.why or found.match is None or found.match.nested:
            return None
        sources = found.match.attribute.sources
        if found.scope is not self._scope or len(sources) != 1:
            return None
        relation, place = sources[0]
        key = (id(relation), place)
        if key not in self._columns:
            # An outer join may add nulls to what a relation has.
            field = replace(names.fields(relation)[place], name=f"c{len(self._columns)}", nullable=True)
            self._columns[key] = field, name_span(node)
        return self.alias, self._columns[key][0]

    def correlated(self, terms: Sequence[exp.Expr]) -> list[exp.Expr]:
        """Return the conditions that read the outer query; the text is read without them."""
        inside = _inside(self._select)
        self._cut = [term for term in terms if not _is_inside(self._context, term, inside)]
        apart = {id(part) for term in self._cut for part in term.walk()}
        apart |= {id(part) for item in self._select.expressions for part in item.walk()}
        rest = [part for part in self._select.walk() if id(part) not in apart]
        if not all(_is_inside(self._context, part, inside) for part in rest if isinstance(part, exp.Column)):
            raise Unsupported("it reads the outer query somewhere else than in WHERE")
        return self._cut

    def rows(self, read: Collection[str]) -> tuple[RelationSpec, Rows]:
        """Return the FROM clause with what is left of WHERE."""
        context, statement = self._context, self._context.statement
        chosen = [each for each in self._columns.values() if each[0].name in read]
        items = ", ".join(context.text.edited(span) for _, span in chosen)
        spans = [statement.span(item) for item in self._select.expressions]
        start, end = spans[0][0], spans[-1][1]
        edits = [Edit(start, end, (items,)), *(Edit(*statement.span(term), ("true",)) for term in self._cut)]
        edits += [each for each in context.text.edits if each.end < start or each.start > end]
        prefix = with_prefix(statement, self._select, context.text.edited)
        text = context.text.with_edits(statement.span(self._select, "a subquery"), edits)
        names = ", ".join(field.name for field, _ in chosen)
        made = f"{prefix}SELECT * FROM ({text}) AS __t({names})"
        if context.frames.barred(made):
            raise Unsupported("it reads a lookup table")
        return RelationSpec(self.alias, schema_of(self.alias, [field for field, _ in chosen])), Read(made)


class Whole:
    """A subquery that reads nothing of the outer one; its columns are ``c0``, ``c1``, …

    Args:
        context: The query.
        query: The subquery.
        taken: Aliases that are in use.
        count: Number of its columns.
    """

    def __init__(self, context: PlanContext, query: exp.Expr, taken: Sequence[str], count: int) -> None:
        statement, text = context.statement, context.text
        if context.escapes(query):
            raise Unsupported("it reads the outer query in a form that Millrace does not read")
        self.alias = _fresh(taken)
        span, names = statement.span(query, "a subquery"), ", ".join(f"c{n}" for n in range(count))
        asked, self._made = (
            f"{with_prefix(statement, query, render)}SELECT * FROM ({render(span)}) AS __in({names})"
            for render in (text.bound, text.edited)
        )
        if context.frames.barred(self._made):
            raise Unsupported("it reads a lookup table")
        try:
            self.fields = [field_of(column) for column in context.schema(asked).fields]
        except PySparkException:
            raise Unsupported("Spark cannot analyse it by itself") from None

    def column(self, node: exp.Column) -> Found | None:
        """Return None: no name outside of it means one of its columns."""
        return None

    def correlated(self, terms: Sequence[exp.Expr]) -> list[exp.Expr]:
        """Return no condition: all of them are within it."""
        return []

    def rows(self, read: Collection[str]) -> tuple[RelationSpec, Rows]:
        """Return it with all of its columns."""
        return RelationSpec(self.alias, schema_of(self.alias, self.fields)), Read(self._made)


def plain(select: exp.Expr, *, shown: bool) -> exp.Select:
    """Return a SELECT whose rows are those of its FROM clause that its WHERE keeps.

    Args:
        select: A query.
        shown: Whether its columns matter; otherwise they only must not change the number of rows.

    Raises:
        Unsupported: It is another form of query.
    """
    found = _from_and_where(select)
    items = [unwrap(item.unalias()) for item in found.expressions]
    if not all(isinstance(item, exp.Column if shown else _SHOWN) for item in items):
        raise Unsupported("a subquery that computes columns")
    return found


def _from_and_where(select: exp.Expr) -> exp.Select:
    """Return a SELECT that has nothing but items, FROM and WHERE; raises as :func:`plain` does."""
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
    try:
        if isinstance(around, exp.Exists):
            plain(select, shown=False)
            return around
        if isinstance(around, exp.In) and node.arg_key == "query":
            return None if aggregates(_from_and_where(select)) or is_windowed(select) else around
    except Unsupported:
        pass
    return None


def only_relation(context: PlanContext, select: exp.Select) -> Relation:
    """Return the one relation of a SELECT's FROM clause.

    Raises:
        Unsupported: There are several, or the FROM clause has a form that only Spark handles.
    """
    scope = context.names.scopes.of(select)
    if scope.clause is None:
        raise Unsupported(scope.why or "a subquery without FROM")
    content = scope.clause.items[0].content
    if len(scope.clause.items) > 1 or not isinstance(content, Relation) or scope.clause.views:
        raise Unsupported("a subquery over several relations")
    return content


def _fresh(taken: Sequence[str]) -> str:
    alias = "subquery"
    while alias in taken:
        alias += "_"
    return alias


def _inside(select: exp.Select) -> set[int]:
    return {id(part) for part in select.walk() if isinstance(part, exp.Select)}


def _meant(context: PlanContext, node: exp.Expr) -> Iterator[tuple[Scope, Match]]:
    """Yield what names mean, each with the SELECT whose column it is; nothing for those that are no columns.

    Raises:
        Unsupported: It is not certain what one means.
    """
    for column in node.find_all(exp.Column):
        found = context.names.find(column)
        if found is None:
            continue
        if found.why or found.match is None:
            raise Unsupported(f"it is not certain what {column.name} means")
        yield found.scope, found.match


def _is_inside(context: PlanContext, node: exp.Expr, inside: Collection[int]) -> bool:
    """Tell whether every name means a column of these SELECTs.

    Raises:
        Unsupported: It is not certain what one means.
    """
    return all(id(scope.select) in inside for scope, _ in _meant(context, node))


def _reads_only(context: PlanContext, node: exp.Expr, relation: Relation) -> bool:
    """Tell whether every name outside of subqueries means a column of a relation.

    Raises:
        Unsupported: It is not certain what one means.
    """
    matches = (match for _, match in _meant(context, node))
    return all(each is relation for match in matches for each, _ in match.attribute.sources)
