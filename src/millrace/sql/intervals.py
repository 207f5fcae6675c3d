"""How long constant intervals are: days and months differ, by calendar and clock changes."""

# ruff: noqa: S608  # SQL is what this module writes

from __future__ import annotations

from sqlglot import exp

from millrace.sql.parse import unwrap
from millrace.sql.planning import Planning

_DAY = 86_400_000_000
_FIXED = ("UTC", "Etc/UTC", "GMT", "Z", "+00:00")
"""Time zones without clock changes."""


def shifted(node: exp.Expr) -> tuple[exp.Expr, exp.Expr, int] | None:
    """Return what a sum or a difference adds an interval to, the interval, and 1 or -1; None for all else."""
    if not isinstance(node, exp.Add | exp.Sub):
        return None
    time, interval = unwrap(node.this), unwrap(node.expression)
    if isinstance(time, exp.Interval) and isinstance(node, exp.Add):
        time, interval = interval, time
    return time, interval, 1 if isinstance(node, exp.Add) else -1


def length_of(planning: Planning, node: exp.Expr) -> tuple[int, int] | None:
    """Return the shortest and the longest time that an interval can be, microseconds.

    None if it is not one, or so long that there are no times after it.

    Spark is asked for each day of thirty years, in the session's time zone, and once for each interval.
    """
    if not isinstance(node, exp.Interval) or not planning.statement.has_span(node):
        return None
    text = planning.text.bound(planning.statement.span(node))
    if text not in planning.lengths:
        days = "sequence(TIMESTAMP'2000-01-01 00:00:00', TIMESTAMP'2030-01-01 00:00:00', INTERVAL 1 DAY)"
        lengths = f"transform({days}, d -> unix_micros(try_add(d, {text})) - unix_micros(d))"
        found = "array_min(lengths), array_max(lengths), exists(lengths, each -> each IS NULL)"
        row = planning.frames.sql(f"SELECT {found} FROM (SELECT {lengths} AS lengths)").collect()[0]
        planning.lengths[text] = None if row[2] else (int(row[0]), int(row[1]))
    return planning.lengths[text]


def exact_length_of(planning: Planning, node: exp.Expr) -> int | None:
    """Return how long an interval is after any time, microseconds; None if that is not always the same."""
    length = length_of(planning, node)
    if length is None or length[0] != length[1]:
        return None
    # A time of day has no part that follows the calendar, nor have days where all have 24 hours. Four years
    # would be as long as each other in these thirty years, and not around 2100.
    most = 28 * _DAY if planning.settings.time_zone in _FIXED else _DAY
    return length[0] if abs(length[0]) < most else None
