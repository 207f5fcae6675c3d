"""What a query says about the event times of the streams that it joins."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from pyspark.sql import types as t
from sqlglot import exp

from millrace.engine.expressions import And, ColumnRef, Predicate, relations_of
from millrace.errors import InputError
from millrace.sql.blocks.components import Groups
from millrace.sql.blocks.conditions import SplitConjuncts
from millrace.sql.blocks.join_graph import JoinGraph
from millrace.sql.blocks.join_inputs import JoinInput
from millrace.sql.expr.derived import length_of, shifted
from millrace.sql.syntax.parse import Unsupported, conjuncts, unwrap
from millrace.streams.retention import EventTimes, TimeBound, retention

WATERMARK = "spark.watermarkDelayMs"
"""Spark's note that a column has a watermark."""

_AT_MOST = (exp.LT, exp.LTE)
_AT_LEAST = (exp.GT, exp.GTE)


@dataclass(frozen=True)
class _Shifted:
    """The event time of a stream, and what is added to it: at least, and at most, microseconds."""

    alias: str
    least: int = 0
    most: int = 0


def check_streams(graph: JoinGraph, groups: list[list[str]]) -> None:
    """Refuse a FROM clause with streams that is not one block.

    Raises:
        Unsupported: Spark would join something with the block's result, and keep all of that.
    """
    streams, lookups = graph.streams, any(member.lookup for member in graph.members.values())
    if not streams:
        return
    inside = {alias for group in groups for alias in group}
    if len(groups) > 1 or len(inside) < len(graph.steps):
        raise Unsupported("streams are joined by more than inner joins with equalities and ranges of time")
    if len(streams) == 1 and not lookups:
        raise Unsupported("one stream joined with tables keeps no state, so Spark joins them as they come")


def event_times(graph: JoinGraph, group: list[str]) -> EventTimes | None:
    """Return the event times of a block's streams and what conditions say of them; None below two streams.

    Raises:
        InputError: A stream has no watermark, or nothing says how long its rows are of use.
    """
    streams = [alias for alias in graph.streams if alias in group]
    if len(streams) < 2:
        return None
    columns = {alias: _time_of(graph, alias) for alias in streams}
    bounds = tuple(_bounds(graph, columns))
    retention(streams, bounds)
    return EventTimes(columns, bounds)


def same_streams(graph: JoinGraph, times: EventTimes | None, found: SplitConjuncts) -> list[list[JoinInput]]:
    """Return the streams that are one, filtered and joined alike: if all have one's columns, one is read.

    Args:
        graph: The FROM clause.
        times: Of the streams of a block; None without any.
        found: Its conditions.
    """
    keys = Groups.tied([each.ends for each in found.equalities])
    groups: dict[tuple[object, ...], list[JoinInput]] = {}
    for alias in () if times is None else times.columns:
        member = graph.members[alias]
        node = member.relation.node.copy()
        node.set("alias", None)
        texts = found.texts.get(alias, ())
        same = groups.setdefault((node, member.names, *texts), [member])
        pairs = ([ColumnRef(each, name) for each in (same[0].alias, alias)] for name in member.names)
        if member is not same[0] and any(map(keys.are_together, pairs)):
            same.append(member)
    return [group for group in groups.values() if len(group) > 1]


def with_same_columns(members: list[JoinInput], read: Collection[ColumnRef]) -> set[ColumnRef]:
    """Let streams that are one have the same columns.

    Args:
        members: The streams; each gets the columns that are computed for others.
        read: The columns that are read of them and of others.

    Returns:
        The columns that are to be read of them.
    """
    computed = {each.field.name: each for member in members for each in member.computed}
    for member in members:
        member.computed = list(computed.values())
    aliases = {member.alias for member in members}
    names = {ref.column for ref in read if ref.relation in aliases}
    return {ColumnRef(alias, name) for alias in aliases for name in names}


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
    fields = graph.members[alias].columns
    times = [field for field in fields if WATERMARK in field.metadata]
    if len(times) != 1 or not isinstance(times[0].type, t.TimestampType | t.TimestampNTZType):
        found = [field.name for field in fields if isinstance(field.type, t.TimestampType)]
        told = ", ".join(f"{field.name} ({field.type.simpleString()})" for field in times) or "none"
        raise InputError(
            f"stream {alias!r} needs one timestamp column with a watermark, so that its rows can be "
            f"forgotten one day, and it has {told}: give it one before the join, such as "
            f'df.withWatermark("{found[0] if found else "time"}", "10 minutes")'
        )
    return times[0].name


def _bounds(graph: JoinGraph, columns: dict[str, str]) -> Iterator[TimeBound]:
    """Yield what the conditions of a FROM clause and its WHERE say of differences between event times."""
    for term in graph.source.inner_terms:
        for node in map(unwrap, conjuncts(term)):
            match node:
                case exp.Between():
                    middle = _shifted(graph, columns, node.this)
                    low, high = (_shifted(graph, columns, node.args[name]) for name in ("low", "high"))
                    yield from _at_most(low, middle)
                    yield from _at_most(middle, high)
                case exp.EQ() | exp.LT() | exp.LTE() | exp.GT() | exp.GTE():
                    left, right = (_shifted(graph, columns, side) for side in (node.this, node.expression))
                    if not isinstance(node, _AT_LEAST):
                        yield from _at_most(left, right)
                    if not isinstance(node, _AT_MOST):
                        yield from _at_most(right, left)
    for left_key, right_key in graph.merged():
        sides = graph.member_column(left_key), graph.member_column(right_key)
        a, b = (
            _Shifted(side[0]) if side is not None and columns.get(side[0]) == side[1].name else None
            for side in sides
        )
        yield from (*_at_most(a, b), *_at_most(b, a))


def _at_most(left: _Shifted | None, right: _Shifted | None) -> Iterator[TimeBound]:
    """Yield what ``left <= right`` says."""
    if left is not None and right is not None and left.alias != right.alias:
        yield TimeBound(right.alias, left.alias, right.most - left.least)


def _shifted(graph: JoinGraph, columns: dict[str, str], node: exp.Expr) -> _Shifted | None:
    """Return an operand as a shifted event time; None if it is anything else."""
    node = unwrap(node)
    if isinstance(node, exp.Column):
        found = graph.lookup(node)
        known = found is not None and columns.get(found[0]) == found[1].name
        return _Shifted(found[0]) if found is not None and known else None
    parts = shifted(node)
    if parts is None:
        return None
    time, interval, sign = parts
    of = _shifted(graph, columns, time)
    length = length_of(graph.context, interval) if of is not None else None
    if of is None or length is None:
        return None
    least, most = sorted(sign * each for each in length)
    return _Shifted(of.alias, of.least + least, of.most + most)
