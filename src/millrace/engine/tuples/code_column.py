"""The codes of one key of a relation, by row.

Most codes are only looked at when their tuples arrive, side by side as they came. So arrays are kept as
they came, and put together when somebody asks for rows in another order.
"""

from __future__ import annotations

import numpy as np

from millrace.engine.arrays import Array

MOST_ROOM = 1 << 24
"""Estimates may be wrong: no room is made for more rows than this before they are there."""

_PARTS = 1024
"""Arrays that are kept as they came, at most."""


class CodeColumn:
    """Appended ``int64`` codes; places count from the first one held.

    Args:
        room: Codes that are expected.
    """

    def __init__(self, room: int = 0) -> None:
        self.size = 0
        self._room = min(room, MOST_ROOM)
        self._settled = np.empty(0, np.int64)
        self._count = 0
        self._parts: list[Array] = []

    @classmethod
    def of(cls, codes: Array) -> CodeColumn:
        """Return a column of codes that are there already."""
        column = cls()
        column._settled, column._count, column.size = codes, len(codes), len(codes)
        return column

    def append(self, codes: Array) -> None:
        """Add codes; they are not copied and must not change afterwards."""
        self._parts.append(codes)
        self.size += len(codes)
        if len(self._parts) > _PARTS:
            self.all()

    def all(self) -> Array:
        """Return all codes side by side, shape ``(size,)``, a view."""
        if self._parts:
            if self.size > len(self._settled):
                grown = np.empty(max(self.size, 2 * len(self._settled), self._room), np.int64)
                grown[: self._count] = self._settled[: self._count]
                self._settled = grown
            for codes in self._parts:
                self._settled[self._count : self._count + len(codes)] = codes
                self._count += len(codes)
            self._parts.clear()
        return self._settled[: self.size]

    def between(self, low: int, high: int) -> Array:
        """Return the codes from place ``low`` up to ``high``, a view."""
        if self._parts:
            start = self.size - len(self._parts[-1])
            if low >= start:
                return self._parts[-1][low - start : high - start]
        return self.all()[low:high]

    def drop(self, below: int) -> None:
        """Forget the codes below a place, and their memory."""
        self._settled = self.all()[below:].copy()
        self._count = self.size = len(self._settled)
