"""``millrace doctor``: what is there, what is missing, and what to do about it."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import urlparse

from rich.console import Console
from rich.text import Text

from millrace.cli.console import beside, write
from millrace.cli.errors import message_of
from millrace.cli.session import check_java
from millrace.errors import MillraceError
from millrace.options import Options
from millrace.spark.doctor import Finding, examine, here
from millrace.spark.failures import is_sparks

_PORT = 15002
_PATIENCE = 5.0


def run(
    master: str,
    remote: str | None,
    conf: Mapping[str, str],
    limits_host: str | None,
    json: Path | None,
    stdout: Console,
    stderr: Console,
    *,
    debug: bool,
) -> bool:
    """Look at everything, print findings as they are made, and return whether all is well."""
    console = beside(json, stdout, stderr)
    found: list[Finding] = []
    for one in _findings(master, remote, conf, limits_host, debug=debug):
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
    master: str, remote: str | None, conf: Mapping[str, str], limits_host: str | None, *, debug: bool
) -> Iterator[Finding]:
    # Found by name when it is called, as every command does: tests put theirs in its place.
    from millrace.cli import session as sessions

    yield from here()
    elsewhere = remote is not None and remote.startswith("sc://")
    reached = _reached(remote or "") if elsewhere else _java()
    yield reached
    if not reached.well:
        return
    options = Options(limits_host=limits_host)
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
