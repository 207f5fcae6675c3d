"""Two reports side by side: what one run did more of, or less."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from millrace.reports.run_report import RunReport
from millrace.reports.tables import FIGURES, Table, columns, table

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Difference:
    """One figure of both runs.

    Attributes:
        block: The block's name, "" for totals.
        what: ``"total"``, the name of a module with its action, or an order.
        figure: Which figure, in the unit that reports have it in.
        first: Of the first run; 0 where it has none.
        second: Of the second.
    """

    block: str
    what: str
    figure: str
    first: float
    second: float

    @property
    def ratio(self) -> float | None:
        """The second over the first; None where the first is 0."""
        return self.second / self.first if self.first else None


@dataclass(frozen=True)
class Comparison:
    """How two runs differ.

    Attributes:
        differences: Every figure that either has, also those that are equal.
    """

    differences: tuple[Difference, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return everything as dictionaries, lists, strings and numbers."""
        return {"differences": [{**asdict(each), "ratio": each.ratio} for each in self.differences]}

    def to_json(self, indent: int | None = None) -> str:
        """Return :meth:`to_dict` as JSON text."""
        return json.dumps(self.to_dict(), indent=indent, ensure_ascii=False, allow_nan=False)

    def to_pandas(self) -> pd.DataFrame:
        """Return a row for each figure: block, what, figure, first, second, ratio."""
        return pa.Table.from_pylist(self.to_dict()["differences"], _SCHEMA).to_pandas()

    def _table(self) -> Table | None:
        """Return the figures that differ."""
        rows = []
        for each in self.differences:
            if each.first != each.second:
                figure = FIGURES[each.figure]
                what = [part for part in (each.block, each.what, figure.label) if part != "total"]
                shown = {"first": figure.show(each.first), "second": figure.show(each.second)}
                ratio = None if each.ratio is None else f"{each.ratio:.2f}"
                rows.append({"what": " ".join(filter(None, what)), **shown, "factor": ratio})
        return table("Figures that differ", rows, ("what", "first", "second", "factor"), most=len(rows))

    def __str__(self) -> str:
        made = self._table()
        return "no figure differs" if made is None else "\n".join(made.lines())

    def _repr_html_(self) -> str:
        """Return what notebooks show: plain text where nothing is installed that draws pages."""
        from millrace.reports.pages.page import part

        return part("compared.html", {"table": self._table()}, self)


_SCHEMA = columns("block:str what:str figure:str first:float second:float ratio:float")


def compare(first: RunReport, second: RunReport) -> Comparison:
    """Return how the figures of two runs differ, for example of two settings or of two days.

    >>> print(millrace.monitor.compare(report_a, report_b))  # doctest: +SKIP

    Modules and orders are found by block and name, so a block of the one that the other lacks counts as 0
    there.
    """
    both = [dict(_figures(report)) for report in (first, second)]
    keys = dict.fromkeys(key for figures in both for key in figures)
    return Comparison(tuple(Difference(*key, both[0].get(key, 0), both[1].get(key, 0)) for key in keys))


def _figures(report: RunReport) -> Iterator[tuple[tuple[str, str, str], float]]:
    for name, value in vars(report.totals).items():
        yield ("", "total", name), value
    for block, one in report.modules():
        for name in ("tuples_in", "tuples_out", "seconds", "calls", "evaluated", "bytes"):
            if name in ("tuples_in", "tuples_out", "seconds") or getattr(one, name):
                yield (block, f"{one.name} {one.action}", name), getattr(one, name)
    for order in report.orders():
        yield (order.block, order.order, "tuples"), order.tuples
