"""Numbers over time in bounded memory: what is too much is thinned evenly."""

from __future__ import annotations

MOST_POINTS = 240


class Series:
    """Points of one query: seconds since it began, and sums up to then.

    Times that are closer than the spacing of the points replace the last one; when there are too many, every
    second one goes and the spacing doubles. So they cover the whole time, however long it is.

    Args:
        most: Points that are kept.
        spacing: Seconds between points at first.
    """

    def __init__(self, most: int = MOST_POINTS, spacing: float = 0.25) -> None:
        if most < 4:
            raise ValueError(f"{most} points, expected at least 4")
        self._most, self._spacing = most, spacing
        self._points: list[tuple[float, int, int]] = []

    def add(self, seconds: float, rows_in: int, rows_out: int) -> None:
        """Add a point; ``seconds`` never falls."""
        point = (round(seconds, 3), rows_in, rows_out)
        points = self._points
        # The last point moves along until it is far enough from the one before.
        same = bool(points) and points[-1][0] == point[0]
        if same or (len(points) > 1 and points[-1][0] - points[-2][0] < self._spacing):
            points[-1] = point
        else:
            points.append(point)
        while len(points) > self._most:
            self._points = points = [*points[:-1:2], points[-1]]
            self._spacing *= 2

    @property
    def points(self) -> tuple[tuple[float, int, int], ...]:
        """``(seconds, rows read, rows given out)``, in the order of time."""
        return tuple(self._points)

    def rate(self, over: float = 5.0) -> float:
        """Return rows read a second, over the last so many seconds."""
        if len(self._points) < 2:
            return 0.0
        last = self._points[-1]
        first = next((p for p in reversed(self._points[:-1]) if last[0] - p[0] >= over), self._points[0])
        span = last[0] - first[0]
        return (last[1] - first[1]) / span if span > 0 else 0.0
