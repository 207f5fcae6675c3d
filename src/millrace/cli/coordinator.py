"""``millrace coordinator``: what all tasks share, where planning processes and executors both reach it."""

from __future__ import annotations

import os
import secrets
import signal
import time

from rich.console import Console

from millrace import limits
from millrace.errors import ExecutionError
from millrace.limits.event_loop import end_within
from millrace.options import place_of

_LOOK_SECONDS = 1.0
_END_SECONDS = 120.0
"""Until caches have what they lack; a disk that hangs keeps no process alive for longer."""


def run(listen: str, stdout: Console) -> None:
    """Serve until Ctrl-C, or the system's request to end.

    Raises:
        OptionError: That is no place to listen.
        InputError: The secret in the environment is too short.
        ExecutionError: It cannot listen, or has failed.
    """
    host, port = place_of(listen)
    limits.check_libraries("a coordinator")
    from millrace.limits.coordinator import Coordinator
    from millrace.limits.drivers import SECRET

    given = os.environ.get(SECRET)
    secret = given or secrets.token_urlsafe(32)
    coordinator = Coordinator(host, port, secret=secret)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        shown = f"[{host}]" if ":" in host else host
        stdout.print(f"listens on {shown}:{coordinator.address.port}", highlight=False, soft_wrap=True)
        if not given:
            stdout.print(f"export {SECRET}={secret}", highlight=False, soft_wrap=True)
        while coordinator.running:
            time.sleep(_LOOK_SECONDS)
        raise ExecutionError("the coordinator has failed: see the log above")
    except KeyboardInterrupt:
        stdout.print("ends")
    finally:
        end_within(_END_SECONDS)
        coordinator.close()
