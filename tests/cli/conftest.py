"""Run the command: in this process on the tests' session, or as a user does in one of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import contextmanager

import pytest
from typer.testing import CliRunner, Result

from millrace.cli.app import app

Run = Callable[..., Result]
COMMAND = (sys.executable, "-m", "millrace.cli")
# Wide enough that no message is wrapped.
SCREEN = {"COLUMNS": "400", "TERM": "dumb"}
PATIENCE = 300
"""Seconds; a slow machine needs a while to start Spark."""


@pytest.fixture
def run(spark, monkeypatch) -> Run:
    """Run ``millrace ARGUMENTS…`` on the tests' Spark session and return what it printed."""

    @contextmanager
    def shared(*arguments, **settings):
        yield spark

    monkeypatch.setattr("millrace.cli.session.session", shared)
    return lambda *arguments: CliRunner(env=SCREEN).invoke(app, list(arguments))


@pytest.fixture
def start() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run ``millrace ARGUMENTS…`` in a process of its own, to its end."""

    def process(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*COMMAND, *arguments],
            capture_output=True,
            text=True,
            env={**os.environ, **SCREEN},
            check=False,
            timeout=PATIENCE,
        )

    return process
