"""Tables that fit their terminal: words fold, digits are never cut, and no column is left out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table
from rich.text import Text


class Fitted:
    """A table; where its columns do not fit beside each other, a line for each value.

    Args:
        names: Headers, from left to right.
        rows: Their values.
        title: Stands above.
    """

    def __init__(self, names: Sequence[str], rows: Sequence[Sequence[Any]], title: str = "") -> None:
        self._names, self._rows, self._title = names, rows, title

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        table = self._table()
        # Columns of words fold down to their longest word before Rich cuts any other.
        if console.measure(table, options=options.update(max_width=10_000)).minimum <= options.max_width:
            yield table
            return
        if self._title:
            yield Text(self._title, style="italic")
        for row in self._rows:
            yield Text("─" * 8, style="dim")
            for name, value in zip(self._names, row, strict=True):
                yield Text.assemble((name, "bold"), ": ", _cell(value), overflow="fold")

    def _table(self) -> Table:
        table = Table(title=Text(self._title) if self._title else None, title_justify="left")
        for place, name in enumerate(self._names):
            values = [row[place] for row in self._rows if row[place] is not None]
            numbers = bool(values) and all(map(_is_number, values))
            table.add_column(
                Text(name), justify="right" if numbers else "left", no_wrap=numbers, overflow="fold"
            )
        for row in self._rows:
            table.add_row(*map(_cell, row))
        return table


def _cell(value: Any) -> Text:
    """Return one value as text."""
    if isinstance(value, Text):
        return value
    if value is None:
        return Text("NULL", style="dim")
    if isinstance(value, bool):
        return Text(str(value).lower())
    if isinstance(value, bytes | bytearray):
        return Text(bytes(value).hex())
    return Text(str(value))


def _is_number(value: Any) -> bool:
    """Whether a value stands right: a number, or text of ours that begins with one."""
    if isinstance(value, Text):
        return value.plain[:1].isdigit()
    return isinstance(value, int | float | Decimal) and not isinstance(value, bool)
