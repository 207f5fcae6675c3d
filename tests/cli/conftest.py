"""Run the command: in this process on the tests' session or without one, or as a user does in its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner, Result

from millrace.cli.app import app

Run = Callable[..., Result]
COMMAND = (sys.executable, "-m", "millrace.cli")
# Wide enough that no message is wrapped.
SCREEN = {"COLUMNS": "400", "TERM": "dumb"}
LOCAL = ("--master=local[2]", "--conf=spark.driver.memory=2g", "--conf=spark.sql.shuffle.partitions=4")
PATIENCE = 300
"""Seconds; a slow machine needs a while to start Spark."""
JOIN = "select c.name, o.total from c join o on c.k = o.customer where o.total > 1 order by 2"
ANSWER = {"name": ["ann", "bob", None], "total": [2, 3, 4]}


@pytest.fixture(scope="session")
def tables(tmp_path_factory) -> list[str]:
    """The ``--table`` arguments of two small tables that join."""
    folder = tmp_path_factory.mktemp("tables")
    pq.write_table(pa.table({"k": [1, 2, 3], "name": ["ann", "bob", None]}), folder / "c.parquet")
    pq.write_table(pa.table({"customer": [1, 1, 2, 3, 9], "total": [1, 2, 3, 4, 5]}), folder / "o.parquet")
    return [part for name in ("c", "o") for part in ("--table", f"{name}={folder / name}.parquet")]


def _running(monkeypatch, session) -> Run:
    @contextmanager
    def shared(*arguments, **settings):
        yield session()

    monkeypatch.setattr("millrace.cli.session.session", shared)
    return lambda *arguments: CliRunner(env=SCREEN).invoke(app, list(arguments))


@pytest.fixture
def run(spark, monkeypatch) -> Run:
    """Run ``millrace ARGUMENTS…`` on the tests' Spark session and return what it printed."""
    return _running(monkeypatch, lambda: spark)


@pytest.fixture
def well(run) -> Run:
    """As ``run``, of a command that ends well."""

    def ended(*arguments: str) -> Result:
        done = run(*arguments)
        assert done.exit_code == 0, done.stderr
        return done

    return ended


@pytest.fixture
def run_without_spark(monkeypatch) -> Run:
    """Run ``millrace ARGUMENTS…`` where nothing may start Spark."""
    return _running(monkeypatch, lambda: pytest.fail("Spark was started"))


@pytest.fixture
def start() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run ``millrace ARGUMENTS…`` in a process of its own, to its end."""

    def process(*arguments: str, stdout=subprocess.PIPE, **environment: str):
        return subprocess.run(
            [*COMMAND, *arguments],
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **SCREEN, **environment},
            check=False,
            timeout=PATIENCE,
        )

    return process
