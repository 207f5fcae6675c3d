"""A benchmark's outcome as Rich tables, the same for all of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from lab.benchmarks.harness import Outcome
from lab.fitting import Column, Fitted


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
    columns = [Column("figure", rank=0), Column("value", number=True, rank=0), Column("target"), Column("")]
    console.print(Fitted(columns, [_figure(outcome, name) for name in outcome.figures], "figures"))
    for note in outcome.notes:
        console.print(Text(note, style="dim"))


def _figure(outcome: Outcome, name: str) -> tuple[str | Text, ...]:
    value, target = outcome.figures[name], outcome.targets.get(name)
    verdict = "" if target is None else "met" if target.met(value) else "missed"
    style = {"met": "green", "missed": "yellow" if target and target.informational else "bold red"}
    return name, number(value), str(target or ""), Text(verdict, style=style.get(verdict, ""))


def _rows(outcome: Outcome) -> Fitted:
    scale = f"{outcome.scale:,.0f}" if outcome.scale >= 1000 else f"{outcome.scale:g}"
    title = f"{outcome.bench}, scale {scale}, {outcome.rounds} rounds: medians"
    names = list(dict.fromkeys(name for row in outcome.rows for name in row))
    columns = [
        Column(
            name.replace("_", " "),
            number=any(isinstance(row.get(name), int | float) for row in outcome.rows),
            rank=0 if place == 0 else _rank(name, place),
        )
        for place, name in enumerate(names)
    ]
    rows = [[_cell(row, name) for name in names] for row in outcome.rows]
    return Fitted(columns, rows, title, missing="--json has them")


def _rank(name: str, place: int) -> int:
    """Return how soon a column gives way: ratios, verdicts and times stay longest, then what comes first."""
    if name.endswith("ratio") or name in ("equal", "ok"):
        return 1
    return 2 if name.endswith(("_s", "_ms", "seconds")) else 3 + place


def _cell(row: Mapping[str, Any], name: str) -> str:
    value = row.get(name)
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "NO"
    return number(value) if isinstance(value, int | float) else str(value)


def number(value: float) -> str:
    """Return a number for people: whole ones with separators, others with three decimals."""
    if float(value).is_integer() and (isinstance(value, int) or abs(value) >= 10):
        return f"{int(value):,}"
    return f"{value:,.1f}" if abs(value) >= 1000 else f"{value:.3f}"
