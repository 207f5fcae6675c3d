"""``python -m lab figures|bench|soak|trace``: the papers' figures, benchmarks, long runs, a watched join."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from lab.bench import BENCHES
from lab.figures.figure import Figure
from millrace.errors import InputError, MillraceError, OptionError, SetupError, near

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=__doc__)

_FEW = 3
_FIRST = "first"
"""What ``--ablate`` takes for each figure's first broken engine."""

QUICK_SCALE = 0.1
SOAKS = {"crashes": 50, "hub-crashes": 50, "workers": 50, "sinks": 50, "faults": 1000, "memory": 200}
"""Long runs, with their numbers of failures or micro-batches."""

Scale = Annotated[float, typer.Option(min=0.0001, max=1000, help="Size of the data.")]
Json = Annotated[str | None, typer.Option(metavar="FILE", help="Write a JSON document; - for stdout.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show stack traces and Spark's log.")]


@app.command(no_args_is_help=True)
def bench(
    name: Annotated[str, typer.Argument(help="; ".join(f"{k}: {about}" for k, about in BENCHES.items()))],
    cases: Annotated[str | None, typer.Option(metavar="NAME,NAME", help="Only these.")] = None,
    scale: Scale = 1.0,
    rounds: Annotated[int | None, typer.Option(help="Timed rounds, five or more.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A smaller run.")] = False,
    master: Annotated[str | None, typer.Option(help="Spark master.")] = None,
    json: Json = None,
    check: Annotated[bool, typer.Option("--check", help="Exit with 1 where a target is missed.")] = False,
    debug: Debug = False,
    peer: Annotated[
        str | None, typer.Option(metavar="sc://HOST:PORT", help="Also ask this Spark Connect server (sql).")
    ] = None,
) -> None:
    """Measure against other engines, with an A/A control."""
    from lab.bench.harness import Bench, execute

    if name not in BENCHES:
        raise OptionError(f"there is no benchmark {name!r}: {near(name, BENCHES)}")
    if peer is not None and name != "sql":
        raise OptionError(f"--peer {peer}: only the benchmark sql asks other servers")
    made: Bench = import_module(f"lab.bench.{name}").BENCH
    size = min(scale, QUICK_SCALE) if quick else scale
    run = replace(made.run(cases, size, rounds, quick=quick), peer=peer)
    missed = execute(name, made, run, master, json, debug)
    if check and missed:
        raise typer.Exit(1)


@app.command(no_args_is_help=True)
def soak(
    name: Annotated[str, typer.Argument(help=f"One of {', '.join(SOAKS)}.")],
    scale: Scale = 1.0,
    count: Annotated[int | None, typer.Option(min=1, help="Failures, or micro-batches.")] = None,
    json: Json = None,
    debug: Debug = False,
) -> None:
    """Run for minutes to an hour: drivers and workers killed, sinks that raise, faults, and workers' memory.

    Exits with 1 where rows are lost or doubled, a fault makes a task wait for ever, or memory grows.
    """
    from lab.bench.harness import execute
    from lab.soak import BENCH

    if execute(name, BENCH, BENCH.run(name, scale, count or SOAKS.get(name), quick=False), None, json, debug):
        raise typer.Exit(1)


@app.command()
def trace(
    policy: Annotated[str, typer.Option(help="A routing policy, such as random or lottery.")] = "random",
    architecture: Annotated[str, typer.Option(help="stems, joins or stairs.")] = "stems",
    online: Annotated[bool, typer.Option("--online/--in-turn", help="Read the tables side by side.")] = True,
    seed: Annotated[int, typer.Option(min=0, help="Of the tables and the policy.")] = 0,
) -> None:
    """Watch an eddy join three tables of five tuples, step by step."""
    from lab.trace import trace as watch
    from millrace.options import ARCHITECTURES, Options

    if architecture not in (eddies := [name for name in ARCHITECTURES if name != "static"]):
        raise OptionError(f"--architecture {architecture}: {near(architecture, eddies)}")
    options = Options(
        policy=policy, architecture=architecture, online=online, seed=seed, batch_size=1, reoptimize_every=1
    )
    watch(options, seed, print)


@app.command()
def figures(
    names: Annotated[list[str] | None, typer.Argument(help="Figures; all of them by default.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for pictures and index.html.")] = Path("build/figures"),
    seeds: Annotated[int, typer.Option(min=1, help="Seeds 0, 1, … of each figure.")] = 1,
    small: Annotated[bool, typer.Option("--small", help="Runs of seconds.")] = False,
    ablate: Annotated[
        str, typer.Option(metavar="NAME", help="Run this broken engine, 'first' for the first.")
    ] = "",
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="X=Y", help="Change a parameter.")
    ] = None,
    policy: Annotated[
        str, typer.Option(metavar="FILE.PY:CLASS", help="Add a curve of your own policy.")
    ] = "",
    jobs: Annotated[int, typer.Option(min=1, help="Processes at a time.")] = os.cpu_count() or 1,
    list_: Annotated[
        bool, typer.Option("--list", help="List figures, their parameters, and how long they took.")
    ] = False,
    json_: Annotated[Path | None, typer.Option("--json", help="File for verdicts and numbers.")] = None,
    table: Annotated[
        Path | None, typer.Option("--results", help="Table to update, such as lab/RESULTS.md.")
    ] = None,
) -> None:
    """Reproduce the papers' figures: draw them, and judge what they claim.

    Exits with 1 if a claim does not hold, and with 2 for wrong usage.
    """
    from lab.figures import find, results
    from lab.figures.run import Result, Task, run

    chosen = find(names or [])
    if list_:
        _list(chosen)
        return
    if table is not None and (ablate or policy):
        raise InputError("--results keeps the figures as they are stated: leave --ablate and --policy out")
    if find_spec("matplotlib") is None:
        raise SetupError("matplotlib draws the figures: pip install -r lab/requirements.txt")
    from lab.figures.draw import save

    overrides, tasks = _overrides(set_ or []), list[Task]()
    for each in chosen:
        broken = next(iter(each.broken), "") if ablate == _FIRST else ablate
        tasks += [Task(each.id, seed, overrides, broken, policy, small) for seed in range(seeds)]
    for task in tasks:
        task.settings()
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--out {out}: cannot make the folder: {error.strerror}") from error
    found: list[Result] = []
    try:
        for result in run(tasks, jobs):
            found.append(result)
            task = result.task
            print(f"{task.id}, seed {task.seed}: {result.error or result.verdict}, {result.seconds:.0f} s")
            for claim, value, verdict in result.judge_claims():
                print(f"  {verdict}: {claim.says} ({claim.figure} is {value:.4g}, stated: {claim.bounds})")
            if result.outcome is not None and task.seed == 0:
                save(result, out)
            of_figure = [each for each in found if each.task.id == task.id]
            if table is not None and len(of_figure) == seeds:
                results.keep(of_figure, table)
    except KeyboardInterrupt:
        print(f"interrupted: {len(found)} of {len(tasks)} runs finished", file=sys.stderr)
        raise SystemExit(130) from None
    finally:
        results.write(out / "index.html", results.page(tasks, found))
        if json_ is not None:
            rows = [results.as_json(each) for each in found]
            results.write(json_, json.dumps(rows, indent=2) + "\n")
    print(f"pictures: {out / 'index.html'}")
    if any(result.verdict == "does not hold" for result in found):
        raise typer.Exit(1)


def _overrides(given: list[str]) -> dict[str, float]:
    found = {}
    for text in given:
        name, _, value = text.partition("=")
        try:
            found[name] = float(value)
        except ValueError:
            raise OptionError(f"--set {text}: expected NAME=NUMBER, such as tuples=5000") from None
    return found


def _list(chosen: list[Figure]) -> None:
    """Print figures, with the parameters of each if there are few."""
    console = Console(width=None if sys.stdout.isatty() else 140)
    table = Table("figure", "title", "source", "broken engines", box=None)
    table.add_column("took", justify="right")
    for each in chosen:
        kept = Path(__file__).with_name("results") / f"{each.id}.json"
        time = f"{json.loads(kept.read_text(encoding='utf-8'))['seconds']:.0f} s" if kept.exists() else ""
        time += ", real time" if each.wall else ""
        table.add_row(each.id, each.title, each.source, ", ".join(each.broken), time)
    console.print(table)
    if len(chosen) <= _FEW:
        parameters = Table("figure", "--set", "default", "from", "to", "unit", "meaning", box=None)
        for each in chosen:
            for p in each.parameters:
                numbers = (f"{x:g}" for x in (p.default, p.low, p.high))
                parameters.add_row(each.id, p.name, *numbers, p.unit, p.meaning)
        console.print(parameters)


def main() -> None:
    """Run the command line; wrong usage ends with 2, what fails while it runs with 1."""
    try:
        app()
    except (MillraceError, ModuleNotFoundError) as error:
        if "--debug" in sys.argv:
            raise
        advice = ": pip install -r lab/requirements.txt" if isinstance(error, ImportError) else ""
        print(f"error: {error}{advice}", file=sys.stderr)
        raise SystemExit(2 if isinstance(error, (OptionError, InputError, SetupError)) else 1) from None


if __name__ == "__main__":
    main()
