"""What ``explain()`` returns: text, which a notebook shows in parts that open and close."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

_CLOSED = ("Spark's plan", "text that Spark runs")
"""Parts that are shown when somebody asks."""


class Explanation(str):
    """Text. Lines that are not indented begin a part; what follows :data:`_CLOSED` is long."""

    __slots__ = ()

    def __repr__(self) -> str:
        """Return the text itself: at a prompt nobody wants it quoted."""
        return str(self)

    def _repr_html_(self) -> str:
        """Return what notebooks show."""
        return "".join(_html(*part) for part in self._parts())

    def _parts(self) -> Iterator[tuple[str, list[str]]]:
        title: str | None = None
        rest: list[str] = []
        for line in self.split("\n"):
            if title == _CLOSED[0] or (title is not None and line.startswith(" ")):
                rest.append(line)
                continue
            if title is not None:
                yield title, rest
            title, rest = line, []
        if title is not None:
            yield title, rest


def _html(title: str, lines: list[str]) -> str:
    state = "" if title in _CLOSED else " open"
    text = escape("\n".join(lines))
    body = f'<pre style="white-space: pre-wrap; margin: .25em 1em">{text}</pre>' if lines else ""
    return f"<details{state}><summary>{escape(title)}</summary>{body}</details>\n"
