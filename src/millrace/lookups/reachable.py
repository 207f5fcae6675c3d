"""Whether a host can be reached at all, before a job of many tasks finds out that it cannot."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from millrace.errors import InputError
from millrace.limits.secrets import Secrets

PATIENCE = 2.0
"""Seconds for a connection."""

_UNTRIED = "With check=False it is not tried before the query runs"


def check_reachable(scheme: str, host: str, port: int, what: str, secrets: Secrets) -> None:
    """Open a TCP connection and close it; to the proxy, where one leads to the host.

    Raises:
        InputError: The host has no address, or nobody accepts the connection.
    """
    proxies = getproxies()
    proxy = proxies.get(scheme) or proxies.get("all")
    if proxy and not proxy_bypass(host):
        pieces = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
        if pieces.hostname is None:
            return
        host, port = pieces.hostname, pieces.port or (443 if pieces.scheme == "https" else 80)
        what = f"{what}, through a proxy"
    shown = secrets.scrub(f"{host}:{port}")
    try:
        socket.create_connection((host, port), PATIENCE).close()
    except socket.gaierror as error:
        raise InputError(
            f"{what}: the host {secrets.scrub(host)!r} has no address ({error.strerror}): is its name right? "
            f"{_UNTRIED}"
        ) from None
    except (OSError, UnicodeError) as error:
        raise InputError(
            f"{what}: nobody accepts a connection at {shown} within {PATIENCE:g} s ({type(error).__name__}): "
            f"is the service up, and can this process reach it? {_UNTRIED}"
        ) from None
