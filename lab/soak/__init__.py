"""Long runs: drivers that are killed at random times, and memory over many micro-batches.

``python -m lab soak crashes``, ``hub-crashes`` and ``memory`` take minutes to an hour, and exit with 1 where
rows are lost or doubled, or memory grows.
"""

from __future__ import annotations

from typing import Annotated

import typer

from lab.bench import run_bench

app = typer.Typer(no_args_is_help=True, help="Run for long: killed drivers, memory over 200 micro-batches.")


def _command(name: str, about: str) -> None:
    @app.command(name, help=about)
    def command(
        *,
        scale: Annotated[float, typer.Option(min=0.001, max=10, help="Size of micro-batches.")] = 1.0,
        count: Annotated[int | None, typer.Option(min=1, help="Crashes, or micro-batches.")] = None,
        json: Annotated[str | None, typer.Option(metavar="FILE", help="Write a JSON document.")] = None,
        debug: Annotated[bool, typer.Option("--debug", help="Show stack traces and Spark's log.")] = False,
    ) -> None:
        run_bench("lab.soak.runs", name, name, scale, count, json, check=True, debug=debug)


_command("crashes", "Kill the driver of a join of streams at random times; nothing is lost or doubled.")
_command("hub-crashes", "The same with a hub, whose queries come and go meanwhile.")
_command("memory", "Memory of worker processes over micro-batches whose tuples expire all the time.")
