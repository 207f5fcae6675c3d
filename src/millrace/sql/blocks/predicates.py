"""Calls of the caller's predicates in the text of a query, and the filters that they are merged to.

A block calls those that are conditions of its joins. The others that are conditions of a WHERE become one
call of one function, in which an eddy finds the cheapest order for each row: Spark evaluates every Python
function of a filter for every row. The merged call stands in the place of the first one, over the arguments
of all of them, and the others become TRUE; whatever else the WHERE says stays, and Spark applies it before
the function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyspark.sql import types as t
from sqlglot import exp

from millrace.engine.plan.expressions import Call, Column, ColumnRef, Literal, Operand
from millrace.errors import PredicateError
from millrace.predicates import PredicateSpec, Values
from millrace.spark.mask import Slot
from millrace.spark.predicates import Predicate, check_arity
from millrace.spark.types import arrow_type
from millrace.sql.expr.types import Constant, FindColumn
from millrace.sql.plan import FilterPlan
from millrace.sql.session.functions import filter_name
from millrace.sql.syntax.edits import Edit, Part
from millrace.sql.syntax.parse import Statement, function_of, unwrap, where_conjuncts
from millrace.sql.syntax.scopes import Scope

if TYPE_CHECKING:
    from millrace.sql.context import PlanContext  # which has the calls of its query

# Arguments that are none: what they stand for, or what they do, only Spark knows.
_NO_ARGUMENTS = (exp.Star, exp.Distinct, exp.Lambda, exp.Order, exp.Alias)

ValueOf = Callable[[exp.Expr], Constant | None]

# What conditions and expressions are parts of.
_AROUND = (exp.Query, exp.Where, exp.Join, exp.And, exp.Having, exp.Order, exp.Group, exp.Alias)


@dataclass(eq=False)
class Calls:
    """The calls of one query.

    Attributes:
        predicates: The caller's, by lower-case name.
        nodes: In the order of the text.
        taken: Ids of the calls that an eddy runs.

    Raises:
        PredicateError: A call has arguments that the predicate does not take.
    """

    statement: Statement
    predicates: Mapping[str, Predicate]
    nodes: list[exp.Anonymous] = field(default_factory=list)
    taken: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        if self.statement.root is None or not self.predicates:
            return
        for node in self.statement.root.find_all(exp.Anonymous, bfs=False):
            spec = self._spec(node)
            if spec is not None:
                self.nodes.append(node)
                _check_arguments(spec, node)

    def _spec(self, node: exp.Expr) -> PredicateSpec | None:
        name = function_of(node)
        return None if name is None else self.predicates[name].spec

    def of(self, conjunct: exp.Expr | None) -> tuple[PredicateSpec, exp.Expr] | None:
        """Return the predicate and the call, when the conjunct is nothing but a call."""
        node = None if conjunct is None else unwrap(conjunct)
        if node is None or any(_is_no_argument(a) for a in node.expressions):
            return None
        spec = self._spec(node)
        return None if spec is None else (spec, node)

    def arguments(self, conjunct: exp.Expr) -> list[exp.Expr]:
        """Return the arguments of a conjunct that is a call, none of another."""
        call = self.of(conjunct)
        return [] if call is None else list(call[1].expressions)

    def in_block(
        self, conjunct: exp.Expr, find: FindColumn, value_of: ValueOf, values: Values
    ) -> Call | None:
        """Return the conjunct for a block, None where a block cannot evaluate it.

        A block calls deterministic predicates of plain columns and constants.
        """
        call = self.of(conjunct)
        if call is None or not call[0].deterministic:
            return None
        arguments = [_operand(node, find, value_of) for node in call[1].expressions]
        operands = tuple(a for a in arguments if a is not None)
        return Call(call[0], operands, values) if len(operands) == len(arguments) else None

    def take(self, conjunct: exp.Expr) -> None:
        """Note that an eddy runs the conjunct's call."""
        self.taken.add(id(unwrap(conjunct)))

    def reasons(self) -> Iterator[str]:
        """Say of each condition or expression in which Spark calls predicates that it does."""
        left = [node for node in self.nodes if id(node) not in self.taken]
        for text in dict.fromkeys(map(self._around, left)):
            yield f"{text} is evaluated by Spark, row by row"

    def _around(self, node: exp.Expr) -> str:
        """Return the text of the whole condition or expression that a call is part of."""
        best = node if self.statement.has_span(node) else None
        parent = node.parent
        while parent is not None and not isinstance(parent, _AROUND):
            if self.statement.has_span(parent):
                best = parent
            parent = parent.parent
        return f"a call of {function_of(node)}" if best is None else self.statement.shown(best)


def _is_no_argument(node: exp.Expr) -> bool:
    return isinstance(node, _NO_ARGUMENTS) or (isinstance(node, exp.Column) and node.is_star)


def _check_arguments(spec: PredicateSpec, node: exp.Anonymous) -> None:
    """Raise where the number of arguments is wrong, as far as the text tells it."""
    for argument in node.expressions:
        if isinstance(argument, exp.Kwarg | exp.PropertyEQ):
            raise PredicateError(
                f"predicate {spec.name!r} is called with a named argument ({argument.this}): give its "
                "arguments by position"
            )
    if any(_is_no_argument(argument) for argument in node.expressions):
        return
    if not node.expressions:
        raise PredicateError(
            f"predicate {spec.name!r} is called without arguments: it could only be constant"
        )
    check_arity(spec, len(node.expressions))


def _operand(node: exp.Expr, find: FindColumn, value_of: ValueOf) -> Operand | None:
    inner = unwrap(node)
    if isinstance(inner, exp.Column):
        column = find(inner)
        if column is None or column[1].arrow is None:
            return None
        return Column(ColumnRef(column[0], column[1].name))
    constant = value_of(node)
    if constant is None or isinstance(constant.type, t.NullType):
        return None
    return Literal(constant.value, arrow_type(constant.type))


def take_filter(context: PlanContext, scope: Scope, placed: list[exp.Expr] | None) -> None:
    """Merge the calls of the WHERE of a SELECT; those of the SELECTs inside it are merged before.

    ``placed`` are the conditions that are in its WHERE by now, when taking blocks has changed it.
    """
    nodes = where_conjuncts(scope.select) if placed is None else placed
    calls = [(node, *call) for node in nodes if (call := _mergeable(context, scope, node)) is not None]
    if not calls:
        return
    arguments: list[exp.Expr] = []
    places: dict[str, int] = {}
    slots = []
    for _, spec, inner in calls:
        columns = []
        for argument in inner.expressions:
            text = context.text.bound(context.statement.span(argument))
            place = places.get(text)
            if place is None or context.determinism.volatile(argument):
                place = places[text] = len(arguments)
                arguments.append(argument)
            columns.append(place)
        slots.append(Slot(spec, tuple(columns)))
    span = context.statement.span
    labels = tuple(map(context.shown, arguments))
    name = filter_name()
    # In parentheses, for a keyword may follow without a space.
    parts: list[Part] = [f"({name}("]
    for place, argument in enumerate(arguments):
        parts += [", ", span(argument)] if place else [span(argument)]
    first, *others = merged = [node for node, _, _ in calls]
    context.text.edits.append(Edit(*span(first), (*parts, "))")))
    context.text.edits += [Edit(*span(node), ("(TRUE)",)) for node in others]
    for node in merged:
        context.calls.take(node)
    shown = tuple(map(context.shown, merged))
    context.filters.append(FilterPlan(f"f{len(context.filters) + 1}", name, tuple(slots), labels, shown))


def _mergeable(context: PlanContext, scope: Scope, node: exp.Expr) -> tuple[PredicateSpec, exp.Expr] | None:
    """Return the predicate and the call, when a condition is nothing but a call that may be merged."""
    call = context.calls.of(node)
    if call is None or not all(map(context.statement.has_span, (node, *call[1].expressions))):
        return None
    # Spark treats subqueries, and columns from around this SELECT, condition by condition.
    if context.names.scopes.find_place(scope.select) is not None:
        names = [context.names.find(column) for column in call[1].find_all(exp.Column)]
        if not all(name is not None and not name.why and name.scope is scope for name in names):
            return None
    return call if call[1].find(exp.Query) is None else None
