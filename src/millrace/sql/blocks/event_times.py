"""What a query says about the event times of the streams that it joins."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pyspark.sql import types as t
from sqlglot import exp

from millrace.engine.plan.expressions import And, Predicate, relations_of
from millrace.errors import InputError
from millrace.sql.aggregation import groups, is_windowed
from millrace.sql.blocks.derived import Shifted, find_shifted
from millrace.sql.blocks.join_graph import JoinGraph
from millrace.sql.context import PlanContext
from millrace.sql.syntax.parse import Unsupported, unwrap
from millrace.sql.syntax.scopes import FromClause, FromItem, Scope
from millrace.streams.retention import WATERMARK, EventTimes, TimeBound, retention


def check_streams(graph: JoinGraph, groups: list[list[str]]) -> None:
    """Refuse streams that are not one block: Spark would join its result, and keep all of that.

    It keeps nothing where it widens the result by tables: LEFT joins with these may stay above.
    """
    streams = graph.streams
    if not streams:
        return
    inside = {alias for group in groups for alias in group}
    taken = {graph.inputs[alias].step for alias in inside}
    others = [step for number, step in enumerate(graph.source.steps) if number not in taken]
    if len(groups) > 1 or not all(_widens(graph, step) for step in others):
        raise Unsupported("streams are joined by more than inner joins with equalities and ranges of time")
    if len(streams) == 1 and not graph.has_lookup(graph.inputs):
        raise Unsupported("one stream joined with tables keeps no state, so Spark joins them as they come")


def _widens(graph: JoinGraph, step: FromItem) -> bool:
    """Tell whether a step is a LEFT join with rows that Spark has, and that end."""
    relation, context = step.relation, graph.context
    if relation is None or not step.is_left:
        return False
    return not context.is_streaming(relation.node) and context.lookup(relation) is None


def event_times(graph: JoinGraph, group: list[str]) -> EventTimes | None:
    """Return the event times of a block's streams and what conditions say of them; None below two streams.

    Raises:
        InputError: A stream has no watermark, or nothing says how long its rows are of use.
        Unsupported: The same beside a LEFT join with a table; or Spark adds nulls at other times.
    """
    streams = [alias for alias in graph.streams if alias in group]
    if len(streams) < 2:
        return None
    try:
        columns = {alias: _time_of(graph, alias) for alias in streams}
        bounds = tuple(_bounds(graph, columns))
        keeps = retention(streams, bounds)
    except InputError as error:
        left = [step.relation.node for step in graph.source.steps if step.is_left and step.relation]
        if graph.has_lookup(group) or all(map(graph.context.is_streaming, left)):
            raise
        raise Unsupported(str(error)) from None
    if not graph.source.preserves:
        return EventTimes(columns, bounds)
    preserved = streams[0]
    _check_matches(graph, preserved)
    _check_waits(graph, columns, preserved)
    if keeps[preserved] < 0 or len({bound.most for bound in bounds if bound.earlier == preserved}) > 1:
        raise Unsupported("when its rows can have no match any more Spark tells otherwise")
    return EventTimes(columns, bounds, preserved)


def is_left_join_of_streams(context: PlanContext, clause: FromClause) -> bool:
    """Tell whether a FROM clause is a stream LEFT JOIN a stream, and nothing else."""
    relations = [item.relation for item in clause.items]
    return (
        len(relations) == 2
        and not clause.views
        and clause.items[1].is_left
        and all(each is not None and context.is_streaming(each.node) for each in relations)
    )


def check_preserved(context: PlanContext, scope: Scope) -> None:
    """Refuse a LEFT join of streams that is read by something which waits for a watermark, or by names."""
    select = scope.select
    if scope.clause is None or scope.clause.merges:
        raise Unsupported("USING and NATURAL joins of streams are inner ones here")
    bars = any(map(select.args.get, ("order", "sort", "limit", "offset")))
    if select is not context.statement.root or bars or groups(select) or is_windowed(select):
        raise Unsupported("what Spark does above it may need its watermark")


def _check_matches(graph: JoinGraph, preserved: str) -> None:
    """Refuse a LEFT join whose rows without a match Spark adds at other times, or several cells would."""
    conditions = graph.conditions
    if preserved in conditions.texts:
        raise Unsupported(f"its ON asks something of {preserved} alone, whose rows Spark then adds at once")
    if not conditions.equalities:
        raise Unsupported("no equality ties it to the other stream")


def _check_waits(graph: JoinGraph, columns: dict[str, str], preserved: str) -> None:
    """Refuse conditions by which Spark ends the wait for a match at another time.

    It goes by an equality of event times before all else, takes strict bounds for a moment less, days and
    months for as many hours as they mostly have, and other times of the stream for event times.
    """
    for kind, *sides in _ordered(graph):
        found = [each for each in sides if each is not None]
        are_times = [columns.get(each.alias) == each.field.name for each in found]
        if not any(are_times):
            continue
        is_strict = kind in (exp.LT, exp.GT) and len(found) > 1 and found[1].alias == preserved
        has_length = all(each.least == each.most for each in found)
        if kind is exp.EQ or is_strict or not all(are_times) or not has_length:
            raise Unsupported("its ON bounds event times in a way by which Spark waits longer or shorter")


def together(predicates: Iterable[Predicate]) -> list[Predicate]:
    """Return predicates with those over the same relations as one.

    Ranges of event times have two ends, which are one question: a micro-batch has too few tuples for asking
    each by itself to pay.
    """
    groups: dict[frozenset[str], list[Predicate]] = {}
    for predicate in predicates:
        groups.setdefault(frozenset(relations_of(predicate)), []).append(predicate)
    return [group[0] if len(group) == 1 else And(tuple(group)) for group in groups.values()]


def _time_of(graph: JoinGraph, alias: str) -> str:
    fields = graph.inputs[alias].columns
    times = [field for field in fields if WATERMARK in field.metadata]
    if len(times) != 1 or not isinstance(times[0].type, t.TimestampType | t.TimestampNTZType):
        example = next((field.name for field in fields if isinstance(field.type, t.TimestampType)), "time")
        marked = ", ".join(f"{field.name} ({field.type.simpleString()})" for field in times) or "none"
        raise InputError(
            f"stream {alias!r} needs one timestamp column with a watermark, so that its rows can be "
            f"forgotten one day, and it has {marked}: give it one before the join, such as "
            f'df.withWatermark("{example}", "10 minutes")'
        )
    return times[0].name


def _bounds(graph: JoinGraph, columns: dict[str, str]) -> Iterator[TimeBound]:
    """Yield what the conditions of a FROM clause and its WHERE say of differences between event times."""
    for _, low, high in _ordered(graph):
        if low is None or high is None or low.alias == high.alias:
            continue
        if all(columns.get(side.alias) == side.field.name for side in (low, high)):
            yield TimeBound(high.alias, low.alias, high.most - low.least)


def _ordered(graph: JoinGraph) -> Iterator[tuple[type[exp.Expr], Shifted | None, Shifted | None]]:
    """Yield pairs of operands of which the first one is at most the second, behind what compares them.

    None stands for an operand that is no time.
    """
    for node in map(unwrap, graph.source.inner_terms):
        match node:
            case exp.Between(this=middle, args=ends):
                yield exp.LTE, find_shifted(graph, ends["low"]), find_shifted(graph, middle)
                yield exp.LTE, find_shifted(graph, middle), find_shifted(graph, ends["high"])
            case exp.EQ() | exp.LT() | exp.LTE() | exp.GT() | exp.GTE():
                left, right = find_shifted(graph, node.this), find_shifted(graph, node.expression)
                if isinstance(node, exp.EQ | exp.LT | exp.LTE):
                    yield type(node), left, right
                if isinstance(node, exp.EQ | exp.GT | exp.GTE):
                    yield type(node), right, left
    for pair in graph.inner_keys():
        a, b = (None if column is None else Shifted(*column) for column in map(graph.find_column, pair))
        yield from ((exp.EQ, a, b), (exp.EQ, b, a))
