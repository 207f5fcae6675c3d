"""What Spark says, without what only its developers read."""

from __future__ import annotations

import io
import signal

import pytest
import typer
from rich.console import Console

from millrace.cli.errors import message_of, note_interrupts, one_message, spark_message
from millrace.errors import QueryError

PLAN = (
    "[UNRESOLVED_COLUMN.WITH_SUGGESTION] No column `x`. SQLSTATE: 42703; "
    "line 1 pos 7;\n'Project ['x]\n+- Range (0, 3)\n\nJVM stacktrace:\norg.apache.spark.sql.AnalysisException"
)
STACK = "[USER_RAISED_EXCEPTION] boom SQLSTATE: P0001\n\nJVM stacktrace:\norg.x\n\tat org.x.Y.z(Z.scala:1)"
DRIVER = (
    "Job aborted.\n\tat org.x.Scheduler.run(Scheduler.scala:12)\n\tat java.lang.Thread.run(Thread.java:840)"
)
WORKER = """\
An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "worker.py", line 2044, in main
    process()
ValueError: no such place
"""
OURS = """\
Traceback (most recent call last):
  File "worker.py", line 2044, in main
    process()
millrace.errors.InputError: cannot read part-3.parquet: it is not a Parquet file

\tat org.apache.spark.api.python.BasePythonRunner.read(PythonRunner.scala:545)
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            PLAN,
            "[UNRESOLVED_COLUMN.WITH_SUGGESTION] No column `x`. SQLSTATE: 42703; line 1 pos 7",
        ),
        (STACK, "[USER_RAISED_EXCEPTION] boom SQLSTATE: P0001"),
        (DRIVER, "Job aborted."),
        (WORKER, "ValueError: no such place"),
        (OURS, "cannot read part-3.parquet: it is not a Parquet file"),
    ],
)
def test_sparks_message_is_cut_to_its_own_words(text, expected):
    """Plans, JVM stacks and Python tracebacks are left out; an error of ours is shown as such."""
    assert spark_message(Exception(text)) == expected


def test_our_errors_are_shown_as_they_are():
    """A MillraceError's message is the message."""
    assert message_of(QueryError("expected a SELECT")) == "expected a SELECT"


def test_system_errors_name_the_file():
    """An OSError says which file and what about it."""
    assert (
        message_of(FileNotFoundError(2, "No such file or directory", "x.json"))
        == "x.json: No such file or directory"
    )


def test_other_errors_point_to_debug():
    """What nobody foresaw names its type and the way to learn more."""
    assert message_of(KeyError("k")) == "KeyError: 'k' (run again with --debug to see where)"


def test_an_interrupt_is_told_though_spark_ended_first():
    """Ctrl-C reaches the JVM too, and a cut connection may be what Python hears of it."""
    stderr = Console(file=io.StringIO())

    def fails(*, interrupted: bool) -> int:
        with one_message(stderr, debug=False):
            note_interrupts()
            if interrupted:
                signal.raise_signal(signal.SIGINT)
            raise ConnectionResetError("the JVM has gone")

    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        with pytest.raises(typer.Exit) as left:
            fails(interrupted=True)
        assert left.value.exit_code == 130
        assert stderr.file.getvalue().strip() == "interrupted"
        with pytest.raises(typer.Exit) as left:
            fails(interrupted=False)
        assert left.value.exit_code == 1
    finally:
        signal.signal(signal.SIGINT, before)
