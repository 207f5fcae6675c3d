"""What was planned of a query: as ``explain()`` returns it, and as far as a report of its run tells.

``explain()`` returns text, which a notebook shows in parts that open and close. A report has the shapes of
joins, reasons and settings.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from html import escape
from typing import Any

from millrace.options import Options, name_of

SPARKS_PLAN = "Spark's plan"
_CLOSED = (SPARKS_PLAN, "text that Spark runs")
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

    def _parts(self) -> list[tuple[str, list[str]]]:
        parts: list[tuple[str, list[str]]] = []
        for line in self.split("\n"):
            if parts and (parts[-1][0] == SPARKS_PLAN or line.startswith(" ")):
                parts[-1][1].append(line)
            else:
                parts.append((line, []))
        return parts


def _html(title: str, lines: list[str]) -> str:
    state = "" if title in _CLOSED else " open"
    text = escape("\n".join(lines))
    body = f'<pre style="white-space: pre-wrap; margin: .25em 1em">{text}</pre>' if lines else ""
    return f"<details{state}><summary>{escape(title)}</summary>{body}</details>\n"


@dataclass(frozen=True)
class BlockShape:
    """What a block joins.

    Attributes:
        relations: Aliases in the order of the FROM clause, and behind them those that are only looked through
            for matches.
        joins: ``(alias, alias, condition)`` for each equality.
        predicates: Other conditions, in the order as written.
    """

    relations: tuple[str, ...]
    joins: tuple[tuple[str, str, str], ...] = ()
    predicates: tuple[str, ...] = ()


@dataclass(frozen=True)
class Planned:
    """What a report tells beside figures.

    Attributes:
        shapes: By the block's name; filters have none.
        left_to_spark: What was not taken and why, a sentence each.
        settings: Options that are not the default, by name.
        weaker: What is promised less of limits and lookups because tasks do not reach the coordinator.
        query: The query's text, or what the filter calls.
        made: When this was told, ISO 8601 with the offset from UTC.
    """

    shapes: Mapping[str, BlockShape] = field(default_factory=dict)
    left_to_spark: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    weaker: tuple[str, ...] = ()
    query: str = ""
    made: str = ""


def now() -> str:
    """Return the time, of this machine, as a report tells it."""
    return dt.datetime.now().astimezone().isoformat(timespec="seconds")


def settings(options: Options) -> dict[str, Any]:
    """Return the options that are not the default, as plain data; of ``storage_options`` the names only."""
    default = Options()
    changed = {f.name: getattr(options, f.name) for f in fields(options)}
    if changed["policy"] is not None:
        changed["policy"] = name_of(changed["policy"])
    return {
        name: value if isinstance(value, bool | int | float | str) else repr(value)
        for name, value in changed.items()
        if value != getattr(default, name)
    }
