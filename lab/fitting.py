"""Tables that fit their terminal: columns fold, or the least important give way, and no digit is cut."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table
from rich.text import Text

_LEAST_WORDS, _LONGEST_WORD = 12, 24
"""Letters that a column of words has at least, if it has so many; and of a word that is not broken."""

_BORDER = 3
"""Letters that a column takes beside its own."""


@dataclass(frozen=True)
class Column:
    """A column.

    Attributes:
        name: Its header; a narrow column of numbers breaks it between words.
        number: Its cells are numbers: they stand right and are never broken.
        rank: Those of a higher rank give way first; those of rank 0 stay.
    """

    name: str
    number: bool = False
    rank: int = 1


class Fitted:
    """A table that fits where it is printed.

    Where even the columns of rank 0 do not fit, or none may go (``whole``), each row becomes lines of names
    and values.

    Args:
        columns: From left to right.
        rows: A text for each column.
        title: Stands above.
        whole: Leave no column out.
        missing: What to do about columns that are left out, said below.
    """

    def __init__(
        self,
        columns: Sequence[Column],
        rows: Sequence[Sequence[Text | str]],
        title: str | None = None,
        *,
        whole: bool = False,
        missing: str = "",
    ) -> None:
        self._columns = columns
        self._rows = [[each if isinstance(each, Text) else Text(each) for each in row] for row in rows]
        self._title = title
        self._whole = whole
        self._missing = missing

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        kept = self._kept(options.max_width)
        if not kept:
            yield from self._records()
            return
        yield self._table(kept, options.max_width)
        gone = [column.name for place, column in enumerate(self._columns) if place not in kept]
        if gone:
            hint = f"; {self._missing}" if self._missing else ""
            yield Text(f"no room for {', '.join(gone)}{hint}", style="dim")

    def _kept(self, width: int) -> list[int]:
        """Return the places of the columns that fit; none where those that have to stay do not."""
        kept = list(range(len(self._columns)))
        while sum(self._least(place) + _BORDER for place in kept) + 1 > width:
            last = max(reversed(kept), key=lambda place: self._columns[place].rank)
            if self._whole or self._columns[last].rank == 0:
                return []
            kept.remove(last)
        return kept

    def _least(self, place: int) -> int:
        """Return the width that a column needs at least."""
        column = self._columns[place]
        cells = [line for row in self._rows for line in row[place].plain.split("\n")]
        longest = max(map(cell_len, cells), default=0)
        words = max(map(cell_len, column.name.split()), default=0)
        if column.number:
            return max(words, longest)
        word = max((cell_len(word) for line in cells for word in line.split()), default=0)
        return max(words, min(longest, _LEAST_WORDS), min(word, _LONGEST_WORD))

    def _widths(self, kept: Sequence[int], width: int) -> dict[int, int]:
        """Return how wide columns are: what each needs, and of what is left as much as it has use for."""
        widths = {place: self._least(place) for place in kept}
        spare = width - 1 - sum(each + _BORDER for each in widths.values())
        while wanting := [place for place in kept if widths[place] < self._wanted(place)]:
            if spare < len(wanting):
                break
            for place in wanting:
                given = min(spare // len(wanting), self._wanted(place) - widths[place])
                widths[place] += given
            spare = width - 1 - sum(each + _BORDER for each in widths.values())
        return widths

    def _wanted(self, place: int) -> int:
        """Return the width at which nothing in a column is broken."""
        cells = [line for row in self._rows for line in row[place].plain.split("\n")]
        return max(map(cell_len, (self._columns[place].name, *cells)))

    def _table(self, kept: Sequence[int], width: int) -> Table:
        title = Text(self._title) if self._title else None
        table = Table(title=title, title_justify="left", header_style="bold")
        for place, wide in self._widths(kept, width).items():
            column = self._columns[place]
            broken = column.number and cell_len(column.name) > wide
            table.add_column(
                Text(column.name.replace(" ", "\n") if broken else column.name),
                justify="right" if column.number else "left",
                no_wrap=column.number,
                overflow="fold",
                width=wide,
            )
        for row in self._rows:
            table.add_row(*(row[place] for place in kept))
        return table

    def _records(self) -> Iterator[RenderableType]:
        if self._title:
            yield Text(self._title, style="italic")
        for row in self._rows:
            yield Text("─" * 8, style="dim")
            for column, value in zip(self._columns, row, strict=True):
                yield Text.assemble((column.name, "bold"), ": ", value, overflow="fold")
