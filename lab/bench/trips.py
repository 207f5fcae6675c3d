"""What a call asks of a classic session: trips to the JVM, and DataFrames, each of which Spark analyses."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import wraps
from typing import Any
from unittest.mock import patch

from py4j.java_gateway import GatewayClient
from pyspark.sql.classic.dataframe import DataFrame

from millrace.api import session
from millrace.sql.planner import planner
from millrace.sql.session.asking import Frames

_RELEASE = "m\nd\n"
"""How a command begins that releases an object; the garbage collector sends these at any time."""

_STEPS = (("parse", session, "parse"), ("build", planner, "build"), ("analysis", Frames, "sql"))


@dataclass
class Trips:
    """What was asked.

    Attributes:
        calls: Trips to the JVM.
        frames: DataFrames made.
        seconds: By step of planning; ``build`` has a part of ``analysis``.
    """

    calls: int = 0
    frames: int = 0
    seconds: dict[str, float] = field(default_factory=lambda: {step: 0.0 for step, _, _ in _STEPS})


@contextmanager
def count_trips() -> Iterator[Trips]:
    """Count while the body runs."""
    trips = Trips()

    def sent(command: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(command)
        def send(self: Any, text: str, *args: Any, **named: Any) -> Any:
            trips.calls += not text.startswith(_RELEASE)
            return command(self, text, *args, **named)

        return send

    def made(init: Callable[..., None]) -> Callable[..., None]:
        @wraps(init)
        def make(self: Any, *args: Any, **named: Any) -> None:
            trips.frames += "_jdf" not in vars(self)  # PySpark may initialise one twice
            init(self, *args, **named)

        return make

    def timed(step: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def run(*args: Any, **named: Any) -> Any:
            start = time.perf_counter()
            try:
                return function(*args, **named)
            finally:
                trips.seconds[step] += time.perf_counter() - start

        return run

    with ExitStack() as stack:
        stack.enter_context(patch.object(GatewayClient, "send_command", sent(GatewayClient.send_command)))
        stack.enter_context(patch.object(DataFrame, "__init__", made(DataFrame.__init__)))
        for step, holder, name in _STEPS:
            stack.enter_context(patch.object(holder, name, timed(step, getattr(holder, name))))
        yield trips
