"""The Spark session of the tests, and scripts in processes of their own."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import millrace
from millrace.sql import worth

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def session() -> SparkSession:
    """Return a classic Spark session with two cores and a fixed time zone; `conf` has what all sessions have.

    From then on joins are taken as if starting Python took no time, however small they are.
    """
    from pyspark.sql import SparkSession

    worth.start_seconds = lambda spark: 0.0
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    root = str(Path(__file__).parents[1])  # of the daemon, for the JVM that starts it
    os.environ["PYTHONPATH"] = os.pathsep.join([root, os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    # They print every error that Spark raises, with its stack, beside raising it.
    for logger in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        logging.getLogger(logger).setLevel(logging.CRITICAL)
    return (
        SparkSession.builder.master("local[2]")
        .appName("millrace tests")
        .config("spark.driver.memory", "2g")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.python.daemon.module", "tests.daemon")
        .getOrCreate()
    )


def run_script(script: Path, *arguments: str, folder: Path, timeout: float) -> str:
    """Run a script that makes a session of its own; return the last line that it prints."""
    path = os.pathsep.join([str(Path(millrace.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, str(script), *arguments],
        env={**os.environ, "PYTHONPATH": path},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.strip().splitlines()[-1]
