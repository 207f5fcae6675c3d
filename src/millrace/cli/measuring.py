"""A benchmark as a command: the options that all of them share, errors, the JSON file and the check."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from lab.benchmarks.harness import Outcome, check_rounds
from lab.benchmarks.show import show, ticking
from millrace.cli import json_text
from millrace.cli.console import consoles
from millrace.cli.errors import one_message
from millrace.cli.json_text import Json
from millrace.errors import OptionError


def _enough(rounds: int) -> int:
    try:
        check_rounds(rounds)
    except OptionError as error:
        raise typer.BadParameter(str(error)) from None
    return rounds


app = typer.Typer(no_args_is_help=True, help="Measure against other engines, with an A/A control.")

_SHARED: dict[str, Any] = {
    "rounds": Annotated[int, typer.Option(callback=_enough, help="Timed rounds, five or more.")],
    "master": Annotated[str, typer.Option(help="Spark master.")],
    "json": Json,
    "check": Annotated[bool, typer.Option("--check", help="Exit with 1 where a target is missed.")],
    "quick": Annotated[bool, typer.Option("--quick", help="A smaller run: a figure within a minute.")],
    "debug": Annotated[bool, typer.Option("--debug", help="Show stack traces and Spark's log.")],
}
"""Options of all benchmarks; those without Spark, or without a smaller run, lack the one for it."""


_QUICK_SCALE = 0.1


class Run:
    """One run of a benchmark: the options that all share, consoles, errors, the JSON file and the check."""

    def __init__(
        self,
        name: str,
        rounds: int,
        json: Path | None,
        *,
        check: bool,
        debug: bool,
        master: str = "",
        quick: bool = False,
    ) -> None:
        self.rounds, self.quick = rounds, quick
        self._name, self._master, self._json, self._check, self._debug = name, master, json, check, debug
        self._stdout, self._stderr = consoles()

    @contextmanager
    def errors(self) -> Iterator[None]:
        with one_message(self._stderr, self._debug):
            json_text.check(self._json)
            yield

    def smaller(self, size: float) -> float:
        """Return a size, of a quick run a tenth at most."""
        return min(size, _QUICK_SCALE) if self.quick else size

    def alone(self, total: int, bench: Callable[..., Outcome], *given: Any, **named: Any) -> None:
        """Measure in this process, in so many steps, and show what was found.

        Args:
            total: Steps.
            bench: Takes what is given, the rounds, and what is told of each step.
            given: Its first arguments.
            named: Its last ones.
        """
        with ticking(self._stderr, total) as ticker:
            outcome = bench(*given, self.rounds, ticker, **named)
        show(outcome, json_text.beside(self._json, self._stdout, self._stderr))
        json_text.write(outcome.to_dict(), self._json)
        missed = outcome.missed()
        for sentence in missed:
            self._stderr.print(f"missed: {sentence}", style="bold red" if self._check else "yellow")
        if self._check and missed:
            raise typer.Exit(1)

    def on_spark(
        self,
        total: int,
        bench: Callable[..., Outcome],
        *given: Any,
        conf: Mapping[str, str] | None = None,
        **named: Any,
    ) -> None:
        """Measure with a session, which the benchmark takes first; see :meth:`alone`."""
        from millrace.cli.session import session

        name = f"millrace bench {self._name}"
        with session(name, self._master, conf=conf, debug=self._debug) as spark:
            self.alone(total, bench, spark, *given, **named)


def command(*without: str, **defaults: Any) -> Callable[[Callable[..., None]], None]:
    """Make a function a command of its name; its parameter ``run`` stands for the options that all share.

    Args:
        without: Of these, the ones that it has not.
        defaults: Of these, where they are others.
    """
    values = {"rounds": 5, "master": "local[*]", "json": None} | defaults
    keyword = inspect.Parameter.KEYWORD_ONLY

    def declare(function: Callable[..., None]) -> None:
        name = function.__name__
        shared = {
            option: inspect.Parameter(option, keyword, default=values.get(option, False), annotation=kind)
            for option, kind in _SHARED.items()
            if option not in without
        }

        def called(**given: Any) -> None:
            run = Run(name, **{option: given.pop(option) for option in shared})
            with run.errors():
                function(run=run, **given)

        last = shared["debug"]
        options: list[inspect.Parameter] = []
        for own in inspect.signature(function, eval_str=True).parameters.values():
            options += [each for each in shared.values() if each is not last] if own.name == "run" else [own]
        signature = inspect.Signature([*options, last])
        called.__signature__ = signature  # type: ignore[attr-defined]  # what Typer reads
        called.__annotations__ = {each.name: each.annotation for each in signature.parameters.values()}
        app.command(name, help=function.__doc__)(called)

    return declare
