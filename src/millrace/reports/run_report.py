"""What a run did: figures per block and cell, in total, per module and per order.

A report is plain data. ``str(report)`` is readable text, :meth:`RunReport.to_dict` is ready for JSON,
:meth:`RunReport.save` draws it as a page.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from millrace.engine.figures import (
    LARGEST,
    CellFigures,
    Counts,
    JoinFigures,
    ModuleFigures,
    StateFigures,
    Sums,
    read,
    summed,
)
from millrace.errors import InputError, SetupError
from millrace.limits.budget import Spent
from millrace.limits.progress import LookupProgress
from millrace.reports.planned import Planned
from millrace.reports.tables import table_of

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

S = TypeVar("S", bound=Sums)

SCHEMA = 1
"""Of :meth:`RunReport.to_dict`; it grows when a name in it gets another meaning."""


@dataclass(frozen=True, kw_only=True)
class Totals(Counts):
    """Sums over cells and map tasks; what is exchanged, both ends count, and it counts once here.

    Attributes:
        cells: Number of eddies that ran.
        worker_seconds: Wall time of all cells and map tasks, added up.
        slowest_seconds: Wall time of the slowest of them.
    """

    cells: int = 0
    worker_seconds: float = 0.0
    slowest_seconds: float = 0.0


@dataclass(frozen=True)
class OrderShare:
    """How much went one way: ``share`` is ``tuples`` over all the block's routed source tuples."""

    block: str
    order: str
    tuples: int
    share: float


@dataclass(frozen=True)
class RunReport:
    """The figures of a finished run.

    Args:
        blocks: Figures of every cell and map task, by the name of the block they worked for.
        planned: What the query joins, what was left to Spark, and the settings.
        lookups: How far its lookups came.
        budgets: What was spent of the budgets of its lookups and predicates, over all its runs.
        calls: What calls of its predicates have come to, of those with limits or shared answers; their keys
            are questions that are asked once.
    """

    blocks: Mapping[str, Iterable[CellFigures]] = field(default_factory=dict)
    planned: Planned = field(default_factory=Planned)
    lookups: tuple[LookupProgress, ...] = ()
    budgets: tuple[Spent, ...] = ()
    calls: tuple[LookupProgress, ...] = ()

    def __post_init__(self) -> None:
        fixed = {name: tuple(figures) for name, figures in self.blocks.items()}
        object.__setattr__(self, "blocks", fixed)

    @classmethod
    def of_parts(cls, parts: Sequence[RunReport]) -> RunReport:
        """Return the figures of a pipeline's parts together; block ``b0`` of the second part is ``2.b0``."""
        numbered = list(enumerate(parts, 1))
        shapes = {f"{n}.{name}": shape for n, part in numbered for name, shape in part.planned.shapes.items()}
        planned = Planned(
            shapes,
            tuple(why for part in parts for why in part.planned.left_to_spark),
            {name: value for part in parts for name, value in part.planned.settings.items()},
            tuple(dict.fromkeys(text for part in parts for text in part.planned.weaker)),
            "\n".join(dict.fromkeys(part.planned.query for part in parts)),
            max((part.planned.made for part in parts), default=""),
        )
        return cls(
            {f"{n}.{name}": figures for n, part in numbered for name, figures in part.blocks.items()},
            planned,
            tuple(each for part in parts for each in part.lookups),
            tuple(each for part in parts for each in part.budgets),
            tuple(each for part in parts for each in part.calls),
        )

    def cells(self) -> Iterator[tuple[str, CellFigures]]:
        """Yield ``(block name, figures)`` for every cell and map task."""
        for name, figures in self.blocks.items():
            for cell in figures:
                yield name, cell

    @property
    def totals(self) -> Totals:
        """The sums over all blocks."""
        return total(cell for _, cell in self.cells())

    def orders(self) -> list[OrderShare]:
        """Return the orders of every block, the most travelled first."""
        result = []
        for name, figures in self.blocks.items():
            counts: Counter[str] = Counter()
            for cell in figures:
                counts.update(dict(cell.orders))
            whole = counts.total() or 1
            ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
            result += [OrderShare(name, order, tuples, tuples / whole) for order, tuples in ordered]
        return result

    def modules(self) -> list[tuple[str, ModuleFigures]]:
        """Return ``(block name, figures)`` per module and action, added up over cells."""
        return self._added(lambda cell: cell.modules)

    def state(self) -> list[tuple[str, StateFigures]]:
        """Return ``(block name, figures)`` per SteM and STAIR, added up over cells."""
        return self._added(lambda cell: cell.state)

    def joins(self) -> list[tuple[str, JoinFigures]]:
        """Return ``(block name, figures)`` per span and join, added up over cells."""
        return self._added(lambda cell: cell.joins)

    def _added(self, of: Callable[[CellFigures], Iterable[S]]) -> list[tuple[str, S]]:
        """Return ``(block name, figures)`` of every kind, added up over cells."""
        return [
            (name, figures)
            for name, cells in self.blocks.items()
            for figures in summed(one for cell in cells for one in of(cell))
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return everything as dictionaries, lists, strings and numbers (docs/guides/reports.md)."""
        made: dict[str, Any] = json.loads(self.to_json())
        return made

    def to_json(self, indent: int | None = None) -> str:
        """Return :meth:`to_dict` as JSON text."""
        whole = {
            "schema": SCHEMA,
            "totals": self.totals,
            "orders": self.orders(),
            "modules": [{"block": block, **vars(figures)} for block, figures in self.modules()],
            "blocks": {
                name: {"totals": total(figures), "cells": figures} for name, figures in self.blocks.items()
            },
            "lookups": self.lookups,
            "budgets": self.budgets,
            "calls": self.calls,
            "planned": self.planned,
        }
        separators = (",", ":") if indent is None else None
        return json.dumps(
            whole, default=vars, indent=indent, separators=separators, ensure_ascii=False, allow_nan=False
        )

    @classmethod
    def from_json(cls, text: str) -> RunReport:
        """Read what :meth:`to_json` wrote, for example to compare runs of different days.

        Raises:
            InputError: It is something else.
        """
        try:
            raw = json.loads(text)
            if raw["schema"] != SCHEMA:
                raise InputError(f"the report has schema {raw['schema']!r}: expected {SCHEMA}")
            blocks = {name: block["cells"] for name, block in raw["blocks"].items()}
            own = {name: raw[name] for name in ("planned", "lookups")}  # every report has them
            return read(cls, {**raw, **own, "blocks": blocks})
        except (ValueError, TypeError, KeyError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"this is no report in JSON, as to_json() writes it: {error!r}") from None

    def to_pandas(self, table: str = "modules") -> pd.DataFrame:
        """Return one of the report's tables as a DataFrame.

        Args:
            table: ``"modules"``, ``"cells"``, ``"orders"``, ``"changes"``, ``"readings"``, ``"joins"``,
                ``"state"``, ``"lookups"`` or ``"calls"``; docs/guides/reports.md has their columns.

        Raises:
            OptionError: There is no such table.
        """
        return table_of(self, table).to_pandas()

    def to_polars(self, table: str = "modules") -> pl.DataFrame:
        """Return one of the report's tables as a DataFrame of Polars; see :meth:`to_pandas`.

        Raises:
            OptionError: There is no such table.
            SetupError: Polars is not installed.
        """
        found = table_of(self, table)
        try:
            import polars as pl
        except ImportError:
            raise SetupError(
                "to_polars needs Polars, which is not installed: pip install polars; to_pandas needs nothing"
            ) from None
        made = pl.from_arrow(found)
        assert isinstance(made, pl.DataFrame)
        return made

    def to_trace(self) -> str:
        """Return the report as a trace of Chrome's event format, for https://ui.perfetto.dev.

        Each cell and map task has a row there, with its modules' work in microseconds and the changes of
        order. All of them begin at 0, for a report does not know which began first.
        """
        from millrace.reports.trace import trace_of

        return trace_of(self)

    def to_html(self) -> str:
        """Return the report as one page that needs nothing beside it; values of rows are never in it."""
        from millrace.reports.pages.page import page

        return page(self)

    def save(self, path: str | Path) -> Path:
        """Write :meth:`to_html` to a file, whole or not at all, and return its path.

        An older report page is replaced; any other file is left alone.

        Raises:
            InputError: The name does not end in ``.html``, there is no such folder, or a file that is no
                report page stands there.
        """
        from millrace.reports.pages.files import save

        return save(self.to_html(), Path(path))

    def show(self) -> None:
        """Show the page: in a notebook below the cell, else in the browser, from a temporary file.

        Raises:
            SetupError: There is no browser; it says where the page is.
        """
        from millrace.reports.pages.files import show

        show(self)

    def _repr_html_(self) -> str:
        """Return what notebooks show: plain text where nothing is installed that draws pages."""
        from millrace.reports.pages.page import part, view_of

        return part("fragment.html", view_of(self), self)

    def __repr__(self) -> str:
        sums = self.totals
        return (
            f"<RunReport: {len(self.blocks)} block(s), {sums.cells} cell(s), {sums.output_tuples:,} rows; "
            "print() shows more>"
        )

    def __str__(self) -> str:
        from millrace.reports.views import text_of

        return text_of(self)


def total(cells: Iterable[CellFigures]) -> Totals:
    """Add up cells and map tasks.

    What is exchanged is counted where it leaves (map tasks, cell -1) and where it arrives (cells);
    the larger of the two counts is taken, so that a run which reports only one end is right too.
    """
    everything = list(cells)
    ends = [c for c in everything if c.cell < 0], [c for c in everything if c.cell >= 0]

    def of(name: str) -> Any:
        if name.endswith("_exchanged"):
            return max(sum(getattr(c, name) for c in end) for end in ends)
        values = [getattr(c, name) for c in everything]
        return max(values, default=0) if name in LARGEST else sum(values)

    seconds = [c.seconds for c in everything]
    return Totals(
        cells=len(ends[1]),
        worker_seconds=sum(seconds),
        slowest_seconds=max(seconds, default=0.0),
        **{each.name: of(each.name) for each in fields(Counts)},
    )
