"""What a terminal shows: errors without what only developers read, and tables that fit."""

from __future__ import annotations

import io
import re
import signal

import pytest
import typer
from rich.cells import cell_len
from rich.console import Console, RenderableType

from millrace.cli import __main__
from millrace.cli.console import consoles
from millrace.cli.errors import message_of, note_interrupts, one_message, spark_message
from millrace.cli.tables import Fitted
from millrace.errors import QueryError

PLAN = (
    "[UNRESOLVED_COLUMN.WITH_SUGGESTION] No column `x`. SQLSTATE: 42703; "
    "line 1 pos 7;\n'Project ['x]\n+- Range (0, 3)\n\nJVM stacktrace:\norg.apache.spark.sql.AnalysisException"
)
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


def test_an_interrupt_while_the_command_loads_has_no_trace(monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(__main__, "require", interrupt)
    with pytest.raises(SystemExit, match="130"):
        __main__.main()


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


WIDTHS = (40, 60, 79, 80, 81, 99, 120, 200)


def printed(view: RenderableType, width: int) -> str:
    """Return what a terminal of that width shows; no line is longer than it, and every border is closed."""
    out = io.StringIO()
    Console(file=out, width=width, force_terminal=True, color_system=None).print(view)
    text = re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue())
    assert all(cell_len(line) <= width for line in text.splitlines())
    edges = {"┏": "┓", "┃": "┃", "┡": "┩", "│": "│", "└": "┘"}
    assert all(line.rstrip()[-1] == edges[line[0]] for line in text.splitlines() if line[:1] in edges)
    return text


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("columns", [1, 4, 12])
def test_every_number_of_a_result_is_whole(width, columns):
    """Where columns do not fit beside each other, values stand below each other; words fold."""
    names = ["a name", *(f"column_{n}" for n in range(columns))]
    numbers = [10**8 + n for n in range(columns)]
    text = printed(Fitted(names, [("some words to fold " * 4, *numbers)] * 2, "a title"), width)
    assert "…" not in text
    assert all(name in text for name in names[1:])
    assert [len(re.findall(rf"\b{number}\b", text)) for number in numbers] == [2] * columns


def test_values_are_told_apart(tmp_path):
    """Numbers stand right, texts that look like numbers left, and NULL is not the text of that name."""
    out = io.StringIO()
    console = Console(file=out, width=80, force_terminal=True, color_system="standard")
    console.print(Fitted(["n", "t"], [(1, "1"), (100, "100"), (None, "NULL"), (True, b"\xff")]))
    rows = [line.split("│")[1:3] for line in out.getvalue().splitlines() if line.startswith("│")]
    assert rows[0][1] == " 1    "
    assert "\x1b[2mNULL" in rows[2][0] and "\x1b" not in rows[2][1]
    assert "true" in rows[3][0] and "ff" in rows[3][1]
    out.truncate(0)
    console.print(Fitted(["n", "t"], [(1, "1"), (100, "100")]))
    assert "│   1 │ 1   │" in out.getvalue()


def test_logs_are_plain_and_wide(monkeypatch, capsys):
    """Without a terminal nothing is coloured and no line is broken at 80; ``COLUMNS`` says otherwise."""
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    assert consoles()[0].width >= 120
    consoles()[0].print("[red]word[/red]")
    assert capsys.readouterr().out == "word\n"
    monkeypatch.setenv("COLUMNS", "77")
    assert consoles()[1].width == 77
