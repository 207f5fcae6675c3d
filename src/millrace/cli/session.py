"""A Spark session for the command line: local by default, quiet, and stopped at the end."""

from __future__ import annotations

import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

from millrace.cli.errors import note_interrupts
from millrace.errors import SetupError, require

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEFAULTS = {
    "spark.driver.memory": "4g",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
}

NEEDED = 17
_ADVICE = (
    f"Spark needs Java {NEEDED} or newer: install it (Debian, Ubuntu: apt-get install "
    "openjdk-17-jre-headless; macOS: brew install openjdk@17) and run this again"
)


@contextmanager
def session(
    name: str,
    master: str = "local[*]",
    remote: str | None = None,
    conf: Mapping[str, str] | None = None,
    debug: bool = False,
) -> Iterator[SparkSession]:
    """Start a session and stop it at the end, whatever happens.

    Args:
        name: The application's name.
        master: Spark's master URL, for classic Spark.
        remote: Address of a Spark Connect server (``sc://host:port``), or ``local[N]`` for one that
            is started here. It takes the place of ``master``.
        conf: Spark settings on top of ``DEFAULTS``.
        debug: Let Spark log to the terminal.

    Raises:
        SetupError: There is no Java that Spark can run on, or not what Spark Connect needs.
    """
    if remote:
        _check_connect()
    if not (remote or "").startswith("sc://"):
        check_java()
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(name)
    builder = builder.remote(remote) if remote else builder.master(master)
    server_is_elsewhere = bool(remote and remote.startswith("sc://"))
    # A server that runs already has its own settings; only those that the user names are sent.
    for key, value in ({} if server_is_elsewhere else DEFAULTS).items():
        builder = builder.config(key, value)
    for key, value in (conf or {}).items():
        builder = builder.config(key, value)
    # Tasks must run the Python that runs this, also where PATH has another one first.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if not debug:
        # Without a handler, py4j's messages about a cut connection (Ctrl-C) would reach the terminal.
        logging.getLogger().addHandler(logging.NullHandler())
        # Spark's Python side logs every error with its whole stack, beside raising it.
        for logger in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
            logging.getLogger(logger).setLevel(logging.CRITICAL)
    with quiet(debug) as log:
        try:
            spark = builder.getOrCreate()
        except Exception:
            log.seek(0)
            sys.stderr.write(log.read())
            raise
    note_interrupts()  # behind Spark, whose session has a handler of its own
    from millrace.api.monitor import display_lock

    try:
        with display_lock():  # commands show what happens in ways of their own
            yield spark
    finally:
        spark.stop()


def _check_connect() -> None:
    # Spark would end the process without a word, and with exit code 0.
    require("connect", "Spark Connect", "grpc", "grpc_status", "zstandard")


@contextmanager
def quiet(debug: bool = False) -> Iterator[IO[str]]:
    """Send what programs started in the body write to standard error into a nameless file.

    The JVM inherits it for life: its start-up notices, its log and its workers' tracebacks reach
    the terminal only with ``debug``. Errors come back as exceptions all the same.
    """
    with tempfile.TemporaryFile("w+", errors="replace") as log:
        if debug:
            yield log
            return
        sys.stderr.flush()
        kept = os.dup(2)
        try:
            os.dup2(log.fileno(), 2)
            yield log
        finally:
            os.dup2(kept, 2)
            os.close(kept)


def check_java() -> None:
    """Raise unless Java is there and new enough.

    Raises:
        SetupError: It says what to install.
    """
    home = os.environ.get("JAVA_HOME")
    program = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if program is None or not Path(program).exists():
        raise SetupError(f"{_ADVICE} (JAVA_HOME is {home})" if home else _ADVICE)
    answer = subprocess.run([program, "-version"], capture_output=True, text=True, check=False)  # noqa: S603 - the user's own Java
    version = re.search(r'version "(\d+)', answer.stderr + answer.stdout)
    if version is None or int(version[1]) < NEEDED:
        found = f"version {version[1]}" if version else "no version"
        raise SetupError(f"{_ADVICE} ({program} has {found})")
