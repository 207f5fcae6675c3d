"""The live page on this machine alone: who has the address with its token may look, and nobody else.

Other pages of the same browser cannot: they do not know the token, a name that somebody lets point here is no
host of ours, and a request that another origin makes is refused before anything is read.
"""

from __future__ import annotations

import hmac
import secrets
import threading
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

from millrace.errors import SetupError

HOST = "127.0.0.1"
_SECONDS = 10.0
_END_SECONDS = 0.1
"""Between two looks whether to end."""

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'unsafe-inline'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cache-Control": "no-store",
}

Answer = Callable[[Mapping[str, str]], str]
"""Takes the arguments of a request, returns what is answered."""


class PageServer:
    """Serves texts at ``http://127.0.0.1:PORT/TOKEN/NAME``, its ``url``, until it is closed.

    ``answers`` has content types and what answers, by name; ``""`` is the page itself. Port 0 takes a free
    one; SetupError if it is taken.
    """

    def __init__(self, answers: Mapping[str, tuple[str, Answer]], port: int = 0) -> None:
        token = secrets.token_urlsafe(24)
        try:
            server = _Server((HOST, port), _handler(answers, token))
        except (OSError, OverflowError) as error:
            raise SetupError(
                f"cannot show the live page on {HOST}, port {port} ({error}): expected a free port; "
                "port=0 takes one"
            ) from error
        self._server = server
        self.url = f"http://{HOST}:{server.server_port}/{token}/"
        self._thread = threading.Thread(
            target=server.serve_forever, args=(_END_SECONDS,), name="millrace live page", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """End it; once is enough."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
            self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: whoever asked has gone."""


def _handler(answers: Mapping[str, tuple[str, Answer]], token: str) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout: ClassVar[float] = _SECONDS  # of a request, so that none holds a thread
        server_version = "Millrace"
        sys_version = ""

        def do_GET(self) -> None:  # the library's name
            self._answer(body=True)

        def do_HEAD(self) -> None:  # the library's name
            self._answer(body=False)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # the library's name
            """Nothing: paths have the token."""

        def _answer(self, *, body: bool) -> None:
            status, kind, text = self._found()
            payload = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(payload)))
            for name, value in _HEADERS.items():
                self.send_header(name, value)
            self.end_headers()
            if body:
                self.wfile.write(payload)

        def _found(self) -> tuple[HTTPStatus, str, str]:
            asked = urlsplit(self.path)
            given, _, name = asked.path.removeprefix("/").partition("/")
            known = hmac.compare_digest(given.encode(), token.encode())
            if not self._is_own():
                return HTTPStatus.FORBIDDEN, "text/plain", "refused: not from this page\n"
            if not known or name not in answers:
                return HTTPStatus.NOT_FOUND, "text/plain", "nothing here: open the address with its token\n"
            kind, answer = answers[name]
            arguments = {key: values[-1] for key, values in parse_qs(asked.query).items()}
            return HTTPStatus.OK, kind, answer(arguments)

        def _is_own(self) -> bool:
            """Whether the request was meant for this server, and no other page made it."""
            port = self.connection.getsockname()[1]
            hosts = {f"{HOST}:{port}", f"localhost:{port}"}
            origin, site = self.headers.get("Origin"), self.headers.get("Sec-Fetch-Site", "none")
            # Somebody who follows the link in a notebook comes from another site, but reads the page himself.
            followed = self.headers.get("Sec-Fetch-Dest") == "document"
            return (
                self.headers.get_all("Host", []) in [[host] for host in hosts]
                and (origin is None or origin in {f"http://{host}" for host in hosts})
                and (site in ("none", "same-origin") or followed)
            )

    return Handler
