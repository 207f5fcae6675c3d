"""A benchmark's outcome as Rich tables, the same for all of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from millrace.benchmarks.harness import Outcome


class Ticker:
    """A progress bar that also says what runs now; silent where there is no terminal."""

    def __init__(self, progress: Progress, total: int) -> None:
        self._progress = progress
        self._task = progress.add_task("starting", total=total)

    def says(self, what: str) -> None:
        """Show what runs now."""
        self._progress.update(self._task, description=what)

    def tick(self) -> None:
        """Count one finished run."""
        self._progress.advance(self._task)


@contextmanager
def ticking(console: Console, total: int) -> Iterator[Ticker]:
    """Show a bar of ``total`` runs while the body works."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        yield Ticker(progress, total)


def show(outcome: Outcome, console: Console) -> None:
    """Print the rows, the figures with their targets, and the notes."""
    console.print(_rows(outcome))
    figures = Table(title="figures", title_justify="left", header_style="bold")
    figures.add_column("figure")
    figures.add_column("value", justify="right")
    figures.add_column("target")
    figures.add_column("")
    for name, value in outcome.figures.items():
        target = outcome.targets.get(name)
        verdict = "" if target is None else "met" if target.met(value) else "missed"
        style = {"met": "green", "missed": "yellow" if target and target.informational else "bold red"}
        figures.add_row(name, number(value), str(target or ""), Text(verdict, style=style.get(verdict, "")))
    console.print(figures)
    for note in outcome.notes:
        console.print(Text(note, style="dim"))


def _rows(outcome: Outcome) -> Table:
    scale = f"{outcome.scale:,.0f}" if outcome.scale >= 1000 else f"{outcome.scale:g}"
    title = f"{outcome.bench}, scale {scale}, {outcome.rounds} rounds: medians"
    table = Table(title=title, title_justify="left", header_style="bold")
    names = list(dict.fromkeys(name for row in outcome.rows for name in row))
    for name in names:
        numeric = any(isinstance(row.get(name), int | float) for row in outcome.rows)
        table.add_column(name.replace("_", " "), justify="right" if numeric else "left")
    for row in outcome.rows:
        table.add_row(*(_cell(row, name) for name in names))
    return table


def _cell(row: Mapping[str, Any], name: str) -> str:
    value = row.get(name)
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "NO"
    return number(value) if isinstance(value, int | float) else str(value)


def number(value: float) -> str:
    """Return a number for people: whole ones with separators, others with three decimals."""
    if float(value).is_integer() and (isinstance(value, int) or abs(value) >= 100):
        return f"{int(value):,}"
    return f"{value:,.1f}" if abs(value) >= 1000 else f"{value:.3f}"
