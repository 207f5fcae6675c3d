"""Arguments are checked before Spark starts, each with a message that says what would work."""

from __future__ import annotations

import shlex
from importlib.metadata import version

import pytest
import typer

from millrace import __version__
from millrace.cli import session, sql
from millrace.cli.app import app
from millrace.errors import InputError, SetupError
from millrace.limits.drivers import SECRET
from millrace.options import Options

SQL = "sql 'select * from range(3)'"


def test_the_version_is_that_of_the_package(run_without_spark):
    """The version in the code, in the package's metadata and that ``--version`` tells are one."""
    done = run_without_spark("--version")
    assert (done.exit_code, done.stdout.strip()) == (0, f"millrace {__version__}")
    assert version("millrace") == __version__


def test_every_command_has_help_and_tells_programs_too(run_without_spark):
    """``--help`` works at every level, and ``--json`` is an option of each command."""
    waiting, without = [((), typer.main.get_command(app))], []
    while waiting:
        names, command = waiting.pop()
        done = run_without_spark(*names, "--help")
        assert done.exit_code == 0 and "Usage" in done.stdout
        waiting += [((*names, name), each) for name, each in getattr(command, "commands", {}).items()]
        if not hasattr(command, "commands") and not any("--json" in each.opts for each in command.params):
            without.append(names)
    assert without == []


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        (f"{SQL} --table orders", 2, "--table 'orders': expected NAME=VALUE, for example"),
        (f"{SQL} --table a=1.parquet --table a=2.parquet", 2, "--table names 'a' twice"),
        (f"{SQL} --option batchsize=10", 2, "unknown option 'batchsize': did you mean 'batch_size'?"),
        (f"{SQL} --option batch_size=many", 2, "option batch_size is 'many': expected a whole number"),
        (f"{SQL} --option idle_timeout=soon", 2, "option idle_timeout is 'soon': expected a number"),
        (f"{SQL} --option online=maybe", 2, "option online is 'maybe': expected true or false"),
        (f"{SQL} --option storage_options=key", 2, "storage_options is no JSON: expected an object such as"),
        (f"{SQL} --wait", 2, "--wait needs --live"),
        (f"{SQL} --lookup prices", 2, "--lookup 'prices': expected NAME=VALUE"),
        ("coordinator --listen 7077", 2, "a coordinator at '7077': expected HOST:PORT"),
        ("coordinator --listen 192.0.2.1:7077", 1, "cannot listen for the limits of jobs on '192.0.2.1'"),
        # A folder that is not there costs nobody a run.
        (f"{SQL} --output /no/such/folder/x.csv", 1, "there is no folder /no/such/folder"),
        (f"{SQL} --page /no/such/folder/x.html", 1, "/no/such/folder"),
        (f"{SQL} --page report.txt", 1, "ends in .html"),
        (f"{SQL} --json /no/such/folder/x.json", 1, "there is no folder /no/such/folder; expected a file's"),
        (f"{SQL} --output out.xls", 1, "tells no format; expected one that ends in .parquet, .csv, .json"),
        # What the command line itself does not understand.
        (f"{SQL} --limit 0", 2, "limit"),
        (f"{SQL} --policy fixed", 2, "--policy"),
    ],
)
def test_a_bad_argument_is_one_message(run_without_spark, monkeypatch, arguments, code, expected):
    """The message stands on standard error, without a stack; usage has a code of its own."""
    monkeypatch.setenv(SECRET, "s" * 40)
    done = run_without_spark(*shlex.split(arguments))
    assert done.exit_code == code
    assert expected in done.stderr
    assert "Traceback" not in done.stderr


def test_debug_shows_where_an_error_came_from(run_without_spark):
    done = run_without_spark(*shlex.split(f"{SQL} --table orders --debug"))
    assert isinstance(done.exception, InputError)


def test_options_are_read_by_their_types():
    """Numbers, booleans, names and None arrive as what they are."""
    given = {"batch_size": "1_000", "online": "True", "order": "a, b", "cells": "none", "policy": "fixed"}
    options = sql.options_of({**given, "storage_options": '{"anonymous": true}'}, report=False)
    own = {"batch_size": 1000, "online": True, "order": ("a", "b"), "cells": None, "policy": "fixed"}
    assert options == Options(**own, report=False, storage_options={"anonymous": True})


def test_a_java_that_is_missing_or_old_is_told(monkeypatch, tmp_path):
    """One sentence names the package, whether Java is missing, JAVA_HOME is wrong or it is Java 11."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(SetupError, match=r"Java 17 or newer: install it .*openjdk-17"):
        session.check_java()
    program = tmp_path / "java"
    program.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019-01-15' >&2\n")
    program.chmod(0o755)
    with pytest.raises(SetupError, match="has version 11"):
        session.check_java()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(SetupError, match="JAVA_HOME is"):
        session.check_java()
