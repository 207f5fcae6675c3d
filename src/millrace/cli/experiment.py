"""``millrace experiment``: the papers' experiments, their figures and verdicts."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

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
    from lab.experiments import registry
    from lab.experiments.show import described, show_details, show_list

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
    from lab.benchmarks.show import ticking
    from lab.experiments import registry
    from lab.experiments.collect import Collection
    from lab.experiments.runner import run
    from lab.experiments.show import show

    stdout, stderr = consoles()
    with one_message(stderr, debug):
        overrides = numbers(change or ())
        chosen = registry.choose(ids or (), every=every, wall=wall)
        if seeds > 1 and out is not None:
            raise OptionError(f"--out with --seeds {seeds}: pictures show one seed, leave one of both out")
        if ablate and table is not None:
            raise OptionError("--table with --ablate: the table has results of whole engines only")
        values = {each.id: {**(each.small if small else {}), **overrides} for each in chosen}
        tasks = [
            (each, each.settings(number, values[each.id], ablate))
            for number in range(seed, seed + seeds)
            for each in chosen
        ]
        # A file has what is finished after every run; standard output has one document, at the end.
        file = None if json == json_text.STDOUT else json
        collection = Collection([each.id for each in chosen], file, out, table)
        try:
            with ticking(stderr, len(tasks)) as ticker:
                for done, result in enumerate(run(tasks, jobs or os.cpu_count() or 1), 1):
                    collection.add(result)
                    ticker.says(result.id)
                    ticker.tick()
                    if not stderr.is_terminal:  # where a bar would be lost
                        stderr.print(f"{done} of {len(tasks)}: {result.id}", markup=False, highlight=False)
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
