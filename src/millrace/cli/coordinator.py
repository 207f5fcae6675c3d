"""``millrace coordinator``: what all tasks share, where planning processes and executors both reach it."""

from __future__ import annotations

import os
import secrets
import signal
import time
from functools import partial
from pathlib import Path

from rich.console import Console

from millrace import limits
from millrace.cli.console import write
from millrace.errors import ExecutionError, InputError
from millrace.limits.event_loop import END_SECONDS, end_within

_LOOK_SECONDS = 1.0


def run(host: str, port: int, json: Path | None, shown: Console) -> None:
    """Serve until Ctrl-C, or the system's request to end; ``json`` gets where it listens, without the secret.

    Raises:
        InputError: The secret in the environment is too short; or there is none, and no terminal to show one.
        ExecutionError: It cannot listen, or has failed.
    """
    limits.check_libraries("a coordinator")
    from millrace.limits.coordinator import Coordinator
    from millrace.limits.drivers import SECRET

    given = os.environ.get(SECRET)
    if not given and not shown.file.isatty():
        raise InputError(
            f"there is no secret, and one that is made is shown on a terminal alone, for logs are kept: set "
            f"{SECRET} here and where queries are planned, to what `openssl rand -hex 32` gives"
        )
    secret = given or secrets.token_urlsafe(32)
    coordinator = Coordinator(host, port, secret=secret)
    for number in (signal.SIGINT, signal.SIGTERM):  # a shell's background jobs ignore the first
        signal.signal(number, signal.default_int_handler)
    said = partial(shown.print, markup=False, highlight=False, soft_wrap=True)
    try:
        said(f"listens on {f'[{host}]' if ':' in host else host}:{coordinator.address.port}")
        if not given:
            said(f"export {SECRET}={secret}")
        write({"host": host, "port": coordinator.address.port}, json)
        while coordinator.running:
            time.sleep(_LOOK_SECONDS)
        raise ExecutionError("the coordinator has failed: see the log above")
    except KeyboardInterrupt:
        said("ends")
    finally:
        end_within(END_SECONDS)
        coordinator.close()
