"""What is said of errors, without what only developers read."""

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
    ("said", "error", "expected"),
    [
        (spark_message, Exception(PLAN), PLAN.split(";\n")[0]),
        (spark_message, Exception(STACK), "[USER_RAISED_EXCEPTION] boom SQLSTATE: P0001"),
        (spark_message, Exception(DRIVER), "Job aborted."),
        (spark_message, Exception(WORKER), "ValueError: no such place"),
        (spark_message, Exception(OURS), "cannot read part-3.parquet: it is not a Parquet file"),
        (message_of, QueryError("expected a SELECT"), "expected a SELECT"),
        (message_of, FileNotFoundError(2, "No such file", "x.json"), "x.json: No such file"),
        (message_of, KeyError("k"), "KeyError: 'k' (run again with --debug to see where)"),
    ],
)
def test_a_message_is_in_its_own_words(said, error, expected):
    """Plans, JVM stacks and Python tracebacks are left out; what nobody foresaw points to ``--debug``."""
    assert said(error) == expected


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
        for interrupted, code in ((True, 130), (False, 1)):
            with pytest.raises(typer.Exit) as left:
                fails(interrupted=interrupted)
            assert left.value.exit_code == code
        assert stderr.file.getvalue().startswith("interrupted\nerror: ")
    finally:
        signal.signal(signal.SIGINT, before)
