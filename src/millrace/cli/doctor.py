"""``millrace doctor``: whether there is what Millrace needs, what is missing, and what to do about it.

It looks at versions, the package on executors, sockets, folders and Arrow. What runs on executors to find
that out has to run where nothing but Spark is, so it is a plain function of Python that travels by value and
imports what it looks for.
"""

from __future__ import annotations

import json
import platform
import secrets
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlparse

import pyarrow as pa
from pyspark.sql import functions as sf
from rich.console import Console
from rich.text import Text

from millrace.api.predicates import where
from millrace.cli.console import beside, write
from millrace.cli.errors import message_of
from millrace.cli.session import check_java
from millrace.engine.plan.expressions import ColumnRef
from millrace.engine.plan.spec import Equality, JoinSpec, OutputColumn, RelationSpec
from millrace.errors import ExecutionError, MillraceError
from millrace.options import Options
from millrace.spark import daemon
from millrace.spark.block import Block, FrameInput
from millrace.spark.coordinator import NoCoordinator, coordinator_of, host_of
from millrace.spark.execute import execute
from millrace.spark.predicates import predicate
from millrace.spark.session import default_parallelism, is_connect
from millrace.spark.worker import is_sparks, translated

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_PORT = 15002
_PATIENCE = 5.0


def run(
    master: str,
    remote: str | None,
    conf: Mapping[str, str],
    options: Options,
    json: Path | None,
    stdout: Console,
    stderr: Console,
    *,
    debug: bool,
) -> bool:
    """Look at everything, print findings as they are made, and return whether all is well."""
    console = beside(json, stdout, stderr)
    found: list[Finding] = []
    for one in _findings(master, remote, conf, options, debug=debug):
        found.append(one)
        _print(one, console)
    problems = sum(not one.well for one in found)
    told = f"{problems} thing{'s' * (problems != 1)} to do" if problems else "all is well"
    console.print(Text(told, style="bold red" if problems else "bold green"))
    findings = [vars(one) | {"well": one.well} for one in found]
    write({"well": not problems, "findings": findings}, json)
    return not problems


def _print(one: Finding, console: Console) -> None:
    mark = (
        ("ok   ", "green")
        if not one.advice
        else ("TO DO", "bold red")
        if not one.well
        else ("note ", "yellow")
    )
    console.print(Text.assemble(mark, f"  {one.check}: {one.found}"), soft_wrap=True)
    if one.advice:
        console.print(Text(f"       → {one.advice}"), soft_wrap=True)


def _findings(
    master: str, remote: str | None, conf: Mapping[str, str], options: Options, *, debug: bool
) -> Iterator[Finding]:
    # Found by name when it is called, as every command does: tests put theirs in its place.
    from millrace.cli import session as sessions

    yield from here()
    elsewhere = remote is not None and remote.startswith("sc://")
    reached = _reached(remote or "") if elsewhere else _java()
    yield reached
    if not reached.well:
        return
    try:
        with sessions.session("millrace doctor", master, remote, conf, debug) as spark:
            yield from examine(spark, options)
    except Exception as error:
        if not (is_sparks(error) or isinstance(error, MillraceError)):
            raise
        yield Finding(
            "session", f"cannot be used: {message_of(error)}", "mend this first; --debug shows Spark's log"
        )


def _java() -> Finding:
    try:
        check_java()
    except MillraceError as error:
        return Finding("Java", "cannot be used", str(error))
    return Finding("Java", "new enough")


def _reached(remote: str) -> Finding:
    """Connect once, for Spark's client would go on trying for minutes."""
    place = urlparse(remote)
    host, port = place.hostname or "", place.port or _PORT
    try:
        socket.create_connection((host, port), _PATIENCE).close()
    except OSError as error:
        advice = "start the Spark Connect server, or open the way to its port (15002 unless it has another)"
        return Finding("Spark Connect server", f"{host}:{port} does not answer: {error}", advice)
    return Finding("Spark Connect server", f"{host}:{port} answers")


PACKAGES = ("millrace", "pyarrow", "numpy", "pandas", "numba", "sqlglot")
"""What tasks, or the process that plans, load."""

_ON_EXECUTORS = PACKAGES[:-1]
_WAIT = 0.2
SHIPPING = "see docs/guides/clusters.md for ways to send the environment to executors"


@dataclass(frozen=True)
class Finding:
    """What was looked at, what is there, and what to do; no advice where all is well.

    ``fatal`` says whether Millrace does not work, or does less, until that is done.
    """

    check: str
    found: str
    advice: str = ""
    fatal: bool = True

    @property
    def well(self) -> bool:
        """Whether nothing has to be done."""
        return not (self.advice and self.fatal)


def here() -> Iterator[Finding]:
    """Look at this process; needs no session."""
    yield Finding("Python here", f"{platform.python_version()}, {sys.executable}")
    versions = {name: version_of(name) for name in PACKAGES}
    lacking = [name for name, version in versions.items() if version is None]
    found = ", ".join(f"{name} {version or 'missing'}" for name, version in versions.items())
    yield Finding("packages here", found, "pip install millrace" if lacking else "")


def version_of(package: str) -> str | None:
    """Return the version of a package that is installed here, None where it is not."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def examine(spark: SparkSession, options: Options | None = None) -> Iterator[Finding]:
    """Look at a session and its executors; yields findings as they are made."""
    options = options or Options()
    yield _spark_version(spark)
    try:
        with _listener(spark, options) as (address, problem):
            executors = _executors(spark, address)
    except Exception as error:
        if not (is_sparks(error) or isinstance(error, MillraceError)):
            raise
        yield Finding("executors", "a plain function of Python fails there", _first(error))
        return
    yield from _pythons(executors)
    yield from _packages(executors)
    yield _folders(executors)
    yield _workers(spark)
    yield _sockets(executors, "loopback", "sockets on executors", "allow processes to connect to 127.0.0.1")
    if options.coordinator is not None:
        yield _trial("coordinator elsewhere", lambda: _joined(spark, options))
    elif problem:
        yield Finding("coordinator", "does not listen here", problem)
    else:
        yield _sockets(executors, "coordinator", "coordinator reached by tasks", _ADVICE_HOST)
    arrow = _trial("Arrow batches", lambda: _arrow(spark))
    yield arrow
    if arrow.well:
        yield _trial("a join and a filter", lambda: _work(spark))
    else:
        yield Finding("a join and a filter", "not tried", "mend Arrow batches first")


_ADVICE_HOST = (
    "limits of a whole job, shared answers and to_batches() need it: set the option limits_host to an "
    "address of this machine that executors reach, and let them connect to its ports"
)


def _spark_version(spark: SparkSession) -> Finding:
    client, server = version_of("pyspark") or "unknown", spark.version
    same = client.split(".")[:2] == server.split(".")[:2]
    kind = "Spark Connect" if is_connect(spark) else "classic"
    advice = "" if same else f"install pyspark {'.'.join(server.split('.')[:2])} here, as the server has it"
    return Finding("Spark", f"{server} ({kind}), pyspark {client}", advice)


def _executors(spark: SparkSession, address: tuple[str, int, str] | None) -> list[dict[str, Any]]:
    """Return what tasks find, each executor once."""
    packages, wait, patience = _ON_EXECUTORS, _WAIT, _PATIENCE

    def look(_number: int) -> str:
        import json
        import os
        import platform
        import socket
        import sys
        import time
        from importlib import metadata

        versions: dict[str, str | None] = {}
        for name in packages:
            try:
                __import__(name)
                versions[name] = metadata.version(name)
            except metadata.PackageNotFoundError:
                versions[name] = str(getattr(sys.modules[name], "__version__", "of no version"))
            except ImportError:
                versions[name] = None
        facts: dict[str, object] = {
            "executor": [platform.node(), os.environ.get("SPARK_EXECUTOR_DIRS", "")],
            "python": platform.python_version(),
            "executable": sys.executable,
            "versions": versions,
            "kernels": None,
        }
        if versions["millrace"] and versions["numba"]:
            try:
                from millrace.engine.kernels.compiling import kept_in

                facts["kernels"] = kept_in()
            except ImportError as error:
                facts["kernels"] = str(error)
        try:
            with socket.create_server(("127.0.0.1", 0)) as server:
                socket.create_connection(server.getsockname()[:2], patience).close()
            facts["loopback"] = ""
        except OSError as error:
            facts["loopback"] = str(error)
        if address is not None:
            host, port, token = address
            try:
                with socket.create_connection((host, port), patience) as line:
                    answer = line.recv(len(token)).decode()
                facts["coordinator"] = "" if answer == token else "something else answers there"
            except OSError as error:
                facts["coordinator"] = f"{host}:{port}: {error}"
        time.sleep(wait)  # so that every executor gets a task
        return json.dumps(facts)

    tasks = 2 * default_parallelism(spark)
    function: Any = sf.udf(look, "string", useArrow=False)
    rows = spark.range(0, tasks, 1, tasks).select(function("id")).collect()
    executors = [json.loads(row[0]) for row in rows]
    return list({str(executor["executor"]): executor for executor in executors}.values())


@contextmanager
def _listener(spark: SparkSession, options: Options) -> Iterator[tuple[tuple[str, int, str] | None, str]]:
    """Listen where the coordinator would; yields the address and a token to expect, or why it cannot."""
    token = secrets.token_hex(8)
    try:
        host = host_of(spark, options)
        try:
            server = socket.create_server((host, 0))
        except OSError:
            server = socket.create_server(("", 0))  # as behind an address translation
    except (MillraceError, OSError) as error:
        yield None, str(error)
        return

    def serve() -> None:
        with suppress(OSError):  # closed
            while True:
                line, _ = server.accept()
                with closing(line), suppress(OSError):
                    line.sendall(token.encode())

    threading.Thread(target=serve, name="millrace-doctor", daemon=True).start()
    try:
        yield (host, server.getsockname()[1], token), ""
    finally:
        with suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)
        server.close()


def _joined(spark: SparkSession, options: Options) -> str:
    """Return where this process and a task reach the coordinator that the options name."""
    coordinator = coordinator_of(spark, options)
    if isinstance(coordinator, NoCoordinator):
        raise ExecutionError(coordinator.why)
    return f"reached by this process and by tasks at {options.coordinator}"


def _pythons(executors: list[dict[str, Any]]) -> Iterator[Finding]:
    own = platform.python_version_tuple()[:2]
    theirs = sorted({f"{each['python']}, {each['executable']}" for each in executors})
    same = all(tuple(each["python"].split(".")[:2]) == own for each in executors)
    advice = "" if same else f"let executors run Python {'.'.join(own)}: set PYSPARK_PYTHON; {SHIPPING}"
    yield Finding("executors", f"{len(executors)} seen, Python {'; '.join(theirs)}", advice)


def _packages(executors: list[dict[str, Any]]) -> Iterator[Finding]:
    for name in _ON_EXECUTORS:
        versions = {each["versions"][name] for each in executors}
        own = version_of(name)
        listed = ", ".join(sorted(version or "missing" for version in versions))
        if None in versions:
            yield Finding(f"{name} on executors", listed, f"install {name} {own} there: {SHIPPING}")
        elif versions != {own}:
            advice = f"here it is {own}: have the same version on both sides"
            yield Finding(f"{name} on executors", listed, advice, fatal=name == "millrace")
        else:
            yield Finding(f"{name} on executors", listed)


def _folders(executors: list[dict[str, Any]]) -> Finding:
    folders = {each["kernels"] for each in executors}
    if None in folders:
        return Finding(
            "folder for compiled kernels", "unknown", "install millrace and numba on executors first"
        )
    if "" in folders:
        return Finding(
            "folder for compiled kernels",
            "none can be written: each worker compiles for itself, some seconds long",
            "set NUMBA_CACHE_DIR on executors to a folder that they can write "
            "(spark.executorEnv.NUMBA_CACHE_DIR), for example of an emptyDir volume",
        )
    return Finding("folder for compiled kernels", ", ".join(sorted(folders)))


def _workers(spark: SparkSession) -> Finding:
    if spark.conf.get(daemon.SETTING, "") == daemon.MODULE:
        return Finding("Python workers", "start with Millrace loaded")
    advice = f"set {daemon.SETTING} to {daemon.MODULE} when you make the session, and they start at once"
    return Finding("Python workers", "load Millrace when they start, about a second", advice, fatal=False)


def _sockets(executors: list[dict[str, Any]], name: str, check: str, advice: str) -> Finding:
    problems = sorted({each[name] for each in executors if each[name]})
    return Finding(check, "; ".join(problems) or "yes", advice if problems else "")


def _trial(check: str, run: Callable[[], str]) -> Finding:
    try:
        return Finding(check, run())
    except Exception as error:
        if not (is_sparks(error) or isinstance(error, MillraceError)):
            raise
        return Finding(check, "fails", _first(translated(error)))


def _first(error: Exception) -> str:
    shown = error if isinstance(error, MillraceError) else translated(error)
    lines = [line for line in str(shown).splitlines() if line.strip()]
    return lines[0] if isinstance(shown, MillraceError) or "Traceback" not in str(shown) else lines[-1]


def _arrow(spark: SparkSession) -> str:
    def same(batches: Iterator[Any]) -> Iterator[Any]:
        yield from batches

    rows = spark.range(0, 1000, 1, 2).mapInArrow(same, "id long").agg(sf.sum("id")).collect()[0][0]
    return "reach tasks and come back" if rows == 499_500 else f"come back changed: {rows}"


def _work(spark: SparkSession) -> str:
    def even(value: int) -> bool:
        return value % 2 == 0

    filtered = where(spark.range(100), predicate(even, kind="row", name="even")("id")).count()
    schema = pa.schema([("id", pa.int64())])
    join = JoinSpec(
        (RelationSpec("a", schema), RelationSpec("b", schema)),
        (Equality(ColumnRef("a", "id"), ColumnRef("b", "id"), pa.int64()),),
        output=(OutputColumn("id", ColumnRef("a", "id")),),
    )
    block = Block("doctor", join, {n: FrameInput(spark.range(100), 100) for n in "ab"})
    joined = execute(spark, block, Options(placement="hypercube", cells=2)).frame
    counts = filtered, joined.count()
    if counts != (50, 100):
        raise ExecutionError(f"wrong rows: {counts} instead of (50, 100)")
    return "give Spark's rows"
