"""How an exception becomes one message and an exit code."""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import typer
from rich.console import Console
from rich.text import Text

from millrace.errors import MillraceError
from millrace.spark.worker import is_sparks, raised_by_task

FAILURE, USAGE, INTERRUPTED = 1, 2, 130
"""Exit codes; the last as shells expect it after Ctrl-C."""

_PLAN = re.compile(r";\n(?=['\w+:!(]).*", re.DOTALL)
_STACK = re.compile(r"\n\n?(?:JVM stacktrace:|Driver stacktrace:|\s+at [\w.$]+\().*", re.DOTALL)

_heard = threading.Event()


def note_interrupts() -> None:
    """Remember Ctrl-C from now on, before whoever handles it does.

    A terminal sends it to the JVM as well. If that ends first, what comes out is the error of a connection
    that was cut.
    """
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        return

    def heard(number: int, frame: FrameType | None) -> None:
        _heard.set()
        before(number, frame)

    signal.signal(signal.SIGINT, heard)


@contextmanager
def one_message(stderr: Console, debug: bool, code: int = FAILURE) -> Iterator[None]:
    """Turn what the body raises into one message on ``stderr`` and an exit code.

    Args:
        stderr: Where to print.
        debug: Let errors pass unchanged.
        code: Exit code of an error; Ctrl-C has its own.
    """
    _heard.clear()
    try:
        yield
    except KeyboardInterrupt:
        raise _interrupted(stderr) from None
    except (typer.Exit, typer.Abort, typer.BadParameter):
        raise
    except Exception as error:
        if debug:
            raise
        if _heard.is_set():
            raise _interrupted(stderr) from None
        stderr.print(Text.assemble(("error: ", "bold red"), message_of(error)), soft_wrap=True)
        raise typer.Exit(code) from None


def _interrupted(stderr: Console) -> typer.Exit:
    stderr.print("interrupted", style="yellow")
    return typer.Exit(INTERRUPTED)


def message_of(error: BaseException) -> str:
    """Return an exception's message in its own words, without plans and stacks."""
    if isinstance(error, MillraceError):
        return str(error)
    if is_sparks(error):
        return spark_message(error)
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return f"{type(error).__name__}: {error} (run again with --debug to see where)"


def spark_message(error: BaseException) -> str:
    """Return Spark's message without the plan and the stacks that it appends."""
    text = str(error)
    if (ours := raised_by_task(text)) is not None:
        return str(ours)
    text = _PLAN.sub("", _STACK.sub("", text))
    if "Traceback (most recent call last)" in text:
        # An error of Python code in a worker: its last line says what happened.
        lines = [line for line in text.splitlines() if line.strip() and not line.startswith(" ")]
        return lines[-1].strip()
    return text.strip()
