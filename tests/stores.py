"""A store of objects for tests: moto's S3 server in this process, and ways there that fail."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Self

from moto.server import ThreadedMotoServer
from pyarrow import fs


@dataclass
class Server:
    """An S3 service.

    ``options`` are the storage options that reach it; its key and secret are words that nothing else shows.
    """

    port: int

    @property
    def options(self) -> dict[str, Any]:
        return {
            "access_key": "the-key-id",
            "secret_key": "the-secret",
            "endpoint_override": f"127.0.0.1:{self.port}",
            "scheme": "http",
            "region": "us-east-1",
        }

    @property
    def files(self) -> fs.S3FileSystem:
        """A file system to put files with."""
        return fs.S3FileSystem(**self.options, allow_bucket_creation=True)


@contextmanager
def s3() -> Iterator[Server]:
    """Run an S3 service without buckets."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    service = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    service.start()
    try:
        yield Server(service.get_host_and_port()[1])
    finally:
        service.stop()


@dataclass
class Proxy:
    """A way to a port of this machine.

    Attributes:
        to: The port.
        kills: So many connections are cut: before an answer comes, or amid a long one.
        cut: How many were.
        port: Where it listens.
    """

    to: int
    kills: int = 0
    cut: int = 0
    port: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __enter__(self) -> Self:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                doomed = self.cut < self.kills
                self.cut += doomed
            far = socket.create_connection(("127.0.0.1", self.to))
            for way in ((near, far, False), (far, near, doomed)):
                threading.Thread(target=self._pump, args=way, daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, doomed: bool) -> None:
        try:
            while piece := source.recv(1 << 16):
                target.sendall(piece[: len(piece) // 2 if len(piece) > 1000 else 0] if doomed else piece)
                if doomed:
                    break
        except OSError:
            pass
        for each in (source, target):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
