"""A store of objects for tests: moto's S3 server in this process, whose connections may fail."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Self

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from pyarrow import fs
from werkzeug.serving import make_server


class Server:
    """An S3 service without buckets.

    ``options`` are the storage options that reach it; its key and secret are words that nothing else shows.
    ``cut`` is how many connections were cut lately.
    """

    cut = _kills = 0

    def __enter__(self) -> Self:
        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        self._lock = threading.Lock()
        self._moto = DomainDispatcherApplication(create_backend_app)
        made = make_server("127.0.0.1", 0, self._answer, threaded=True, request_handler=MotoRequestHandler)
        self._service, self._thread = made, threading.Thread(target=made.serve_forever, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._service.shutdown()
        self._thread.join()

    @property
    def options(self) -> dict[str, Any]:
        return {
            "access_key": "the-key-id",
            "secret_key": "the-secret",
            "endpoint_override": f"127.0.0.1:{self._service.server_port}",
            "scheme": "http",
            "region": "us-east-1",
        }

    @property
    def files(self) -> fs.S3FileSystem:
        """A file system to put files with."""
        return fs.S3FileSystem(**self.options, allow_bucket_creation=True)

    @contextmanager
    def cutting(self, kills: int) -> Iterator[None]:
        """Cut so many connections meanwhile: before an answer comes, or amid a long one."""
        self.cut, self._kills = 0, kills
        yield
        self._kills = 0

    def _answer(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        answer = self._moto(environ, start)
        with self._lock:
            doomed = self.cut < self._kills
            self.cut += doomed
        return _half(b"".join(answer), environ["werkzeug.socket"]) if doomed else answer


def _half(answer: bytes, connection: socket.socket) -> Iterator[bytes]:
    if len(answer) > 1000:
        yield answer[: len(answer) // 2]
    connection.shutdown(socket.SHUT_RDWR)
    raise ConnectionError
