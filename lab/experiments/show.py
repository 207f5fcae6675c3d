"""A run's figure, checks and numbers as Rich tables."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import Any

from rich.console import Console
from rich.text import Text

from lab.benchmarks.show import number
from lab.experiments.experiment import DIFFERS, Experiment, Panel, Verdict
from lab.experiments.runner import Result
from lab.fitting import Column, Fitted

_ROWS = 12
"""Rows of a table that stand for a curve of more points."""

_VERDICTS: dict[Verdict, tuple[str, str]] = {
    True: ("holds: ", "green"),
    DIFFERS: ("DIFFERS: ", "yellow"),
    False: ("DOES NOT HOLD: ", "bold red"),
}


def show(result: Result, console: Console) -> None:
    """Print the claim, each panel as a table, the checks and the figures."""
    experiment, outcome = result.experiment, result.outcome
    console.print(Text(f"{experiment.id}: {experiment.title}", style="bold"))
    console.print(Text(f"{experiment.source}. {experiment.claim}", style="dim"))
    if result.settings.ablated:
        console.print(Text(f"ablated: {experiment.broken[result.settings.ablated]}", style="yellow"))
    if outcome is None:
        console.print(Text.assemble(("FAILED: ", "bold red"), result.error))
    else:
        for panel in outcome.panels:
            console.print(_table(panel))
        for check in outcome.checks:
            console.print(Text.assemble(_VERDICTS[check.holds], f"{check.claim} ({check.measured})"))
        figures = ", ".join(f"{name} {number(value)}" for name, value in outcome.figures.items())
        console.print(Text(figures, style="dim"))
    console.print()


def show_list(experiments: Sequence[Experiment], console: Console) -> None:
    """Print what there is."""
    columns = [Column("id", rank=0), Column("title"), Column("source", rank=2), Column("clock", rank=3)]
    rows = [(each.id, each.title, each.source, "wall" if each.wall else "virtual") for each in experiments]
    console.print(Fitted(columns, rows, "experiments"))


def described(experiment: Experiment) -> dict[str, Any]:
    """Return what :func:`show_details` prints, as data."""
    names = ("id", "title", "source", "claim", "mechanism", "wall", "parameters")
    return {name: getattr(experiment, name) for name in names}


def show_details(experiment: Experiment, console: Console) -> None:
    """Print what an experiment claims, and what can be changed about it."""
    console.print(Text(f"{experiment.id}: {experiment.title}", style="bold"))
    console.print(Text(f"source: {experiment.source}"))
    console.print(Text(f"claim: {experiment.claim}"))
    for each in experiment.claims:
        console.print(Text(f"stated: {each.says}: {each.inequality}"))
    for name, words in experiment.broken.items():
        console.print(Text(f"broken engine {name}: {words}"))
    if experiment.parameters:
        columns = [
            Column("--set"),
            *(Column(name, number=True) for name in ("default", "from", "to")),
            *(Column(name) for name in ("unit", "meaning")),
        ]
        rows = [
            (each.name, *map(plain, (each.default, each.low, each.high)), each.unit, each.meaning)
            for each in experiment.parameters
        ]
        console.print(Fitted(columns, rows, whole=True))
    console.print()


def plain(value: float) -> str:
    """Return a number as short as it can be, with separators."""
    return f"{int(value):,}" if float(value).is_integer() else f"{value:g}"


def rows_of(panel: Panel, most: int) -> Iterator[tuple[str, list[float | None]]]:
    """Yield the numbers of a panel by x: its name, and each curve's y there or last before it.

    Args:
        panel: The panel.
        most: Rows to yield at most, evenly spaced.
    """
    places = sorted({x for curve in panel.curves for x in curve.x})
    if len(places) > most:
        step = (len(places) - 1) / (most - 1)
        places = [places[round(i * step)] for i in range(most)]
    exact = panel.kind in ("points", "bars")
    curves = [sorted(zip(curve.x, curve.y, strict=True), key=itemgetter(0)) for curve in panel.curves]
    for x in places:
        name = panel.x_names[int(x)] if panel.x_names else plain(round(x, 6))
        before = [bisect_right(curve, x, key=itemgetter(0)) - 1 for curve in curves]
        last = [curve[place] if place >= 0 else None for curve, place in zip(curves, before, strict=True)]
        yield name, [None if at is None or (exact and at[0] != x) else at[1] for at in last]


def _table(panel: Panel) -> Fitted:
    first = Column(panel.x_label, number=not panel.x_names, rank=0)
    columns = [first, *(Column(curve.name, number=True) for curve in panel.curves)]
    rows = [
        (name, *("" if value is None else number(value) for value in values))
        for name, values in rows_of(panel, _ROWS)
    ]
    return Fitted(columns, rows, panel.title, missing="--json has them")
