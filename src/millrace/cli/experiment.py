"""``millrace experiment``: the papers' experiments, their figures and verdicts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeElapsedColumn

from millrace.cli import json_text
from millrace.cli.console import consoles
from millrace.cli.errors import one_message
from millrace.cli.json_text import Json
from millrace.errors import OptionError

app = typer.Typer(no_args_is_help=True, help="Run the papers' experiments and check what they claim.")

Debug = Annotated[bool, typer.Option("--debug", help="Show stack traces.")]
Out = Annotated[
    Path | None,
    typer.Option("--out", metavar="DIR", help="Write pictures and one HTML page into this folder."),
]


@app.command("list")
def list_command(
    ids: Annotated[list[str] | None, typer.Argument(metavar="[ID]…", help="Show these in detail.")] = None,
    json: Json = None,
    debug: Debug = False,
) -> None:
    """Show what experiments there are, or the claims and parameters of some."""
    from millrace.experiments import registry
    from millrace.experiments.show import described, show_details, show_list

    stdout, stderr = consoles()
    with one_message(stderr, debug):
        if json is not None:
            json_text.check(json)
            chosen = registry.find(ids) if ids else registry.EXPERIMENTS.values()
            json_text.write([described(each) for each in chosen], json)
        elif ids:
            for each in registry.find(ids):
                show_details(each, stdout)
        else:
            show_list(tuple(registry.EXPERIMENTS.values()), stdout)


@app.command("run")
def run_command(
    ids: Annotated[list[str] | None, typer.Argument(metavar="[ID]…", help="Which ones.")] = None,
    every: Annotated[bool, typer.Option("--all", help="All of them.")] = False,
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of all random numbers.")] = 0,
    seeds: Annotated[int, typer.Option(min=1, metavar="N", help="Run so many seeds, from --seed on.")] = 1,
    small: Annotated[
        bool, typer.Option("--small", help="At the sizes of the tests, which take seconds.")
    ] = False,
    change: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A parameter. Repeatable.")
    ] = None,
    wall: Annotated[bool, typer.Option("--wall", help="Also those that measure real time.")] = False,
    ablate: Annotated[
        bool, typer.Option("--ablate", help="Without the mechanism in question: a check ought to fail.")
    ] = False,
    json: Json = None,
    table: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Put the results into this table, and the same in Markdown beside it."
        ),
    ] = None,
    out: Out = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Processes; as many as cores by default.")
    ] = None,
    debug: Debug = False,
) -> None:
    """Run experiments, show their figures, and check the papers' claims.

    Exit codes: 0 if all checks hold, 1 if one does not or a run fails, 130 after Ctrl-C, which leaves what
    was finished until then.
    """
    from millrace.experiments import registry
    from millrace.experiments.collect import Collection
    from millrace.experiments.result import Task
    from millrace.experiments.runner import cores, run
    from millrace.experiments.show import show

    stdout, stderr = consoles()
    with one_message(stderr, debug):
        overrides = numbers(change or ())
        chosen = registry.choose(ids or (), every=every, wall=wall)
        if seeds > 1 and out is not None:
            raise OptionError(f"--out with --seeds {seeds}: pictures show one seed, leave one of both out")
        if ablate and table is not None:
            raise OptionError("--table with --ablate: the table has results of whole engines only")
        rounds = [
            [
                Task(each, each.settings(number, {**(each.small if small else {}), **overrides}, ablate))
                for each in chosen
            ]
            for number in range(seed, seed + seeds)
        ]
        # A file has what is finished after every run; standard output has one document, at the end.
        file = None if json == json_text.STDOUT else json
        collection = Collection([each.id for each in chosen], file, out, table)
        try:
            with watching(stderr, seeds * len(chosen)) as watch:
                for tasks in rounds:
                    for result in run(tasks, jobs or cores(), watch):
                        collection.add(result)
        finally:
            for result in collection.results():
                show(result, json_text.beside(json, stdout, stderr))
            if json == json_text.STDOUT:
                json_text.write([result.to_dict() for result in collection.results()], json)
        missed = [sentence for result in collection.results() for sentence in result.misses()]
        for sentence in missed:
            stderr.print(f"does not hold: {sentence}", style="bold red", markup=False, soft_wrap=True)
        if collection.page is not None:
            stderr.print(f"page: {collection.page}", style="dim", soft_wrap=True)
        if missed:
            raise typer.Exit(1)


def numbers(changes: Sequence[str]) -> dict[str, float]:
    """Return ``name=number`` arguments as a dictionary.

    Raises:
        OptionError: One of them has another form, or a name stands twice.
    """
    found: dict[str, float] = {}
    for change in changes:
        name, equals, text = change.partition("=")
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not equals or not name or value != value:
            raise OptionError(f"--set {change!r}: expected NAME=NUMBER, for example --set tuples=1000")
        if name in found:
            raise OptionError(f"--set names {name!r} twice: {found[name]:g} and {value:g}")
        found[name] = value
    return found


class Bars:
    """A bar for each experiment that runs now, and one for all of them."""

    def __init__(self, progress: Progress, total: int) -> None:
        self._progress = progress
        self._bars: dict[str, TaskID] = {}
        self._all = progress.add_task("all", total=total, visible=total > 1)

    def began(self, name: str) -> None:
        """Show a bar."""
        self._bars[name] = self._progress.add_task(name, total=1.0)

    def reached(self, name: str, share: float) -> None:
        """Move it."""
        self._progress.update(self._bars[name], completed=min(1.0, share))

    def ended(self, name: str) -> None:
        """Take it away, and count."""
        self._progress.remove_task(self._bars.pop(name))
        self._progress.advance(self._all)


class Lines:
    """A line for each experiment that has ended, for logs."""

    def __init__(self, stderr: Console, total: int) -> None:
        self._stderr = stderr
        self._total = total
        self._ended = 0

    def began(self, name: str) -> None:
        """Say nothing: several begin at once."""

    def reached(self, name: str, share: float) -> None:
        """Say nothing."""

    def ended(self, name: str) -> None:
        """Print a line."""
        self._ended += 1
        self._stderr.print(f"{self._ended} of {self._total}: {name}", markup=False, highlight=False)


@contextmanager
def watching(stderr: Console, total: int) -> Iterator[Bars | Lines]:
    """Show bars while the body works, or in a file or pipe, where they would be lost, lines."""
    if not stderr.is_terminal:
        yield Lines(stderr, total)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=stderr, transient=True) as progress:
        yield Bars(progress, total)
