"""How long a tuple of a stream is of use: what a join's conditions on event times say of it.

A condition ``t_b <= t_a + c`` is a *difference bound*: ``t_b - t_a`` is at most ``c``. Bounds add up along
paths, so their closure (shortest paths) says how much later than a tuple of one stream any tuple of another
can be that meets it in a result. Once the watermark is further on than that, for every other stream, the
tuple may go.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from millrace.errors import InputError

WATERMARK = "spark.watermarkDelayMs"
"""Spark's note that a column has a watermark."""


@dataclass(frozen=True)
class TimeBound:
    """The event time of ``later`` is at most ``most`` microseconds beyond the one of ``earlier``.

    Attributes:
        earlier: Alias of a stream.
        later: Alias of another one.
        most: Microseconds; below 0 where it has to be earlier by so much.
    """

    earlier: str
    later: str
    most: int


@dataclass(frozen=True)
class EventTimes:
    """What a query says about the times of its streams.

    Attributes:
        columns: The column of each stream's event times, by alias.
        bounds: What the conditions say of their differences.
        preserved: The stream that the other one is LEFT joined to, by alias; None for an inner join.
    """

    columns: Mapping[str, str]
    bounds: tuple[TimeBound, ...]
    preserved: str | None = None


_MOMENT = 1000
"""Microseconds of a step of Spark's watermark: only when it is one beyond a bound does Spark add nulls."""


def retention(
    streams: Sequence[str], bounds: Iterable[TimeBound], preserved: str | None = None
) -> Mapping[str, int]:
    """Return for each stream how long its tuples can meet tuples to come: microseconds, by alias.

    A tuple with event time ``t`` meets nothing any more when the watermark has passed ``t`` plus that. It is
    below 0 where whatever it meets is earlier. A tuple of the ``preserved`` stream waits as long for a match,
    and those of the others stay for as long as one that they have matched may wait.

    Raises:
        InputError: For some pair of streams the conditions say nothing, so state would grow without end.
    """
    closure = {(a, b): 0 if a == b else math.inf for a in streams for b in streams}
    for bound in bounds:
        pair = (bound.earlier, bound.later)
        closure[pair] = min(closure[pair], bound.most)
    for via, a, b in product(streams, repeat=3):
        closure[a, b] = min(closure[a, b], closure[a, via] + closure[via, b])
    for (a, b), most in closure.items():
        if most == math.inf:
            raise InputError(
                f"nothing in the query says how much later than {a!r} a row of {b!r} may be, so every row of "
                f"{a!r} would be kept for good: add a condition on their event times, such as {b}.time <= "
                f"{a}.time + INTERVAL 1 HOUR"
            )
    keeps = {a: int(max((closure[a, b] for b in streams if b != a), default=0)) for a in streams}
    if preserved is not None:
        waits = max(0, keeps[preserved]) + _MOMENT - 1
        keeps = {a: waits if a == preserved else keeps[a] + waits for a in streams}
    return keeps
