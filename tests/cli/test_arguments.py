"""Arguments are checked before Spark starts, each with a message that says what would work."""

from __future__ import annotations

import pytest
import typer
from typer.testing import CliRunner

from millrace import __version__
from millrace.cli import session, sql
from millrace.cli.app import app
from millrace.errors import InputError, SetupError

runner = CliRunner(env={"COLUMNS": "200", "TERM": "dumb"})
QUERY = "select * from range(3)"


@pytest.fixture(autouse=True)
def no_spark(monkeypatch):
    """Nothing in this file may start Spark."""

    def refuse(*arguments, **settings):
        raise AssertionError("Spark was started")

    monkeypatch.setattr("millrace.cli.session.session", refuse)


def test_version():
    """``--version`` names the program and its version."""
    result = runner.invoke(app, ["--version"])
    assert (result.exit_code, result.stdout.strip()) == (0, f"millrace {__version__}")


def test_the_version_is_that_of_the_package():
    """The version in the code and in the package's metadata are one."""
    from importlib.metadata import version

    assert version("millrace") == __version__


def test_every_command_tells_programs_too():
    """``--json`` is an option of each."""
    waiting, without = [typer.main.get_command(app)], []
    while waiting:
        command = waiting.pop()
        waiting += getattr(command, "commands", {}).values()
        if not hasattr(command, "commands") and not any("--json" in each.opts for each in command.params):
            without.append(command.name)
    assert without == []


@pytest.mark.parametrize("command", [[], ["sql"], ["cache"], ["cache", "list"], ["demo"], ["doctor"]])
def test_help_names_every_command(command):
    """``--help`` works at every level."""
    result = runner.invoke(app, [*command, "--help"])
    assert result.exit_code == 0
    assert "Usage" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--table", "orders"], "--table 'orders': expected NAME=VALUE, for example"),
        (["--table", "=x.parquet"], "expected NAME=VALUE"),
        (["--table", "a=1.parquet", "--table", "a=2.parquet"], "--table names 'a' twice"),
        (["--option", "batchsize=10"], "unknown option 'batchsize': did you mean 'batch_size'?"),
        (["--option", "batch_size=0"], "option batch_size is 0: expected a whole number from 1 to"),
        (["--option", "batch_size=many"], "option batch_size is 'many': expected a whole number"),
        (["--option", "online=maybe"], "option online is 'maybe': expected true or false"),
        (
            ["--option", "storage_options=key"],
            "option storage_options is no JSON: expected an object such as",
        ),
        (["--option", "policy=gredy"], "option policy is 'gredy': did you mean 'a_greedy' or 'greedy'?"),
        (["--wait"], "--wait needs --live"),
        (["--conf", "spark.driver.memory"], "--conf 'spark.driver.memory': expected NAME=VALUE"),
    ],
)
def test_a_bad_argument_is_one_message_and_exit_code_2(arguments, expected):
    """The message stands on standard error, without a stack."""
    result = runner.invoke(app, ["sql", QUERY, *arguments])
    assert result.exit_code == 2
    assert expected in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["sql"],
        ["sql", QUERY, "--engine", "duck"],
        ["sql", QUERY, "--limit", "0"],
        ["nonsense"],
        ["sql", QUERY, "--policy", "fixed"],
        ["bench", "tpch"],
        ["experiment", "list"],
    ],
)
def test_wrong_usage_has_exit_code_2(arguments):
    """What the command line itself does not understand is usage, not an error of the query."""
    assert runner.invoke(app, arguments).exit_code == 2


@pytest.mark.parametrize("flag", ["--output", "--page", "--json"])
def test_a_target_is_checked_before_spark_starts(flag, tmp_path):
    """A folder that is not there costs nobody a run."""
    suffix = {"--output": "csv", "--page": "html", "--json": "json"}[flag]
    result = runner.invoke(app, ["sql", QUERY, flag, str(tmp_path / "none" / f"x.{suffix}")])
    assert result.exit_code == 1 and str(tmp_path / "none") in result.stderr


def test_debug_shows_where_an_error_came_from():
    """With ``--debug`` the exception itself comes through."""
    result = runner.invoke(app, ["sql", QUERY, "--table", "orders", "--debug"])
    assert isinstance(result.exception, InputError)


def test_options_are_read_by_their_types():
    """Numbers, booleans, names and None arrive as what they are."""
    options = sql.options_of(
        {
            "batch_size": "1_000",
            "online": "True",
            "order": "a, b",
            "cells": "none",
            "storage_options": '{"anonymous": true}',
            "policy": "fixed",
        },
        report=False,
    )
    assert options.batch_size == 1000
    assert options.online is True
    assert options.order == ("a", "b")
    assert options.cells is None
    assert options.policy == "fixed"
    assert options.report is False
    assert dict(options.storage_options) == {"anonymous": True}


def test_missing_java_says_what_to_install(monkeypatch, tmp_path):
    """One sentence names the package, whether Java is missing or JAVA_HOME is wrong."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(SetupError, match=r"Java 17 or newer: install it .*openjdk-17"):
        session.check_java()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(SetupError, match="JAVA_HOME is"):
        session.check_java()


def test_an_old_java_is_refused(monkeypatch, tmp_path):
    """Java 11 is found, named and not used."""
    program = tmp_path / "java"
    program.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019-01-15' >&2\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(SetupError, match="has version 11"):
        session.check_java()
