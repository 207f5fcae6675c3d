"""Benchmarks: Millrace beside other engines; ``python -m lab bench --help`` lists them."""

from __future__ import annotations

from importlib import import_module
from typing import Annotated

import typer

BENCHES = {
    "sql": "Queries of TPC-H, and of many small blocks, with Millrace and with Spark SQL.",
    "predicates": "Filters by expensive predicates: Millrace, Spark's where, and the best order there is.",
    "robust": "Joins in random orders that do not change, with the default policy, and by other engines.",
    "state": "Static plans, EddyJoins, SteMs and STAIRs on the same arrivals; DuckDB and Spark SQL beside.",
    "streams": "Joins of streams, micro-batch by micro-batch, against Spark's; a hub of queries.",
    "access": "Lookups over HTTP: requests and time; pandas UDFs beside.",
    "micro": "The join kernel, the exchange of blocks, permits of the coordinator, the start of a worker.",
}
QUICK_SCALE = 0.1

app = typer.Typer(no_args_is_help=True, help="Measure against other engines, with an A/A control.")


def _command(name: str, about: str) -> None:
    @app.command(name, help=about)
    def command(
        *,
        cases: Annotated[str | None, typer.Option(metavar="NAME,NAME", help="Only these.")] = None,
        scale: Annotated[float, typer.Option(min=0.0001, max=1000, help="Size of the data.")] = 1.0,
        rounds: Annotated[int | None, typer.Option(help="Timed rounds, five or more.")] = None,
        quick: Annotated[bool, typer.Option("--quick", help="A smaller run.")] = False,
        master: Annotated[str | None, typer.Option(help="Spark master.")] = None,
        json: Annotated[
            str | None, typer.Option(metavar="FILE", help="Write a JSON document; - for standard output.")
        ] = None,
        check: Annotated[bool, typer.Option("--check", help="Exit with 1 where a target is missed.")] = False,
        debug: Annotated[bool, typer.Option("--debug", help="Show stack traces and Spark's log.")] = False,
    ) -> None:
        size = min(scale, QUICK_SCALE) if quick else scale
        run_bench(f"lab.bench.{name}", name, cases, size, rounds, json, quick, master, check, debug)


def run_bench(
    module: str,
    name: str,
    cases: str | None,
    scale: float,
    rounds: int | None,
    json: str | None,
    quick: bool = False,
    master: str | None = None,
    check: bool = False,
    debug: bool = False,
) -> None:
    """Run a module's benchmark; wrong options end the program with 2, errors and missed targets with 1."""
    from lab.bench.harness import Bench, execute
    from millrace.errors import MillraceError, OptionError

    try:
        bench: Bench = import_module(module).BENCH
        run = bench.run(cases, scale, rounds, quick=quick)
        execute(name, bench, run, master, json, debug)
    except OptionError as error:
        raise typer.BadParameter(str(error)) from None
    except (MillraceError, ModuleNotFoundError) as error:
        if debug:
            raise
        advice = ": pip install -r lab/requirements.txt" if isinstance(error, ImportError) else ""
        typer.echo(f"error: {error}{advice}", err=True)
        raise typer.Exit(1) from None
    for sentence in run.missed():
        typer.echo(f"missed: {sentence}", err=True)
    if check and run.missed():
        raise typer.Exit(1)


for _name, _about in BENCHES.items():
    _command(_name, _about)
