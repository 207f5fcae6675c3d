"""Are two results the same multiset of rows? Floats with a tolerance, everything else exactly."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

_RELATIVE = 1e-9
_ABSOLUTE = 1e-12
_FLOAT = "<float>"


def difference(left: Iterable[Sequence[Any]], right: Iterable[Sequence[Any]]) -> str | None:
    """Return what is different in words, None when the rows are equal as multisets.

    Rows are grouped by all values but the floats; within a group the floats are sorted and compared
    one by one, so that sums made in another order compare equal.
    """
    ours, theirs = _groups(left), _groups(right)
    for key in ours.keys() | theirs.keys():
        mine, other = ours.get(key, []), theirs.get(key, [])
        if len(mine) != len(other):
            return f"{len(mine)} and {len(other)} rows like {key}"
        for a, b in zip(sorted(mine), sorted(other), strict=True):
            if not all(_close(x, y) for x, y in zip(a, b, strict=True)):
                return f"{a} and {b} in rows like {key}"
    return None


def _groups(rows: Iterable[Sequence[Any]]) -> dict[tuple[Any, ...], list[tuple[float, ...]]]:
    groups: dict[tuple[Any, ...], list[tuple[float, ...]]] = {}
    for row in rows:
        floats = tuple(_orderable(value) for value in row if isinstance(value, float))
        key = tuple(_FLOAT if isinstance(value, float) else _hashable(value) for value in row)
        groups.setdefault(key, []).append(floats)
    return groups


def _orderable(value: float) -> float:
    # NaN equals NaN in Spark; as infinity it also sorts.
    return math.inf if math.isnan(value) else value


def _hashable(value: Any) -> Any:
    if isinstance(value, dict):
        return tuple((key, _hashable(item)) for key, item in value.items())
    if isinstance(value, list | tuple):
        return tuple(_hashable(item) for item in value)
    return bytes(value) if isinstance(value, bytearray) else value


def _close(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=_RELATIVE, abs_tol=_ABSOLUTE)
