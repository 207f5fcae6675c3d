"""A task's side: sends what it results in, and says when that is all."""

from __future__ import annotations

import selectors
import socket
import ssl
from collections.abc import Iterator
from typing import Self

import pyarrow as pa

from millrace.errors import ExecutionError
from millrace.limits import codec
from millrace.limits.chunk import encoded
from millrace.limits.connection import CONNECT_SECONDS, lost, refused, unreachable
from millrace.limits.registration import Address
from millrace.limits.tls import context_of

_PURPOSE = "results"


class ResultsSink:
    """One attempt to send one partition of a stream; every sink is an attempt of its own.

    Args:
        address: Of the results' server.
        stream: The stream's id.
        partition: Number of the task's partition.
        attempt: Number of the attempt, for people.

    Attributes:
        wanted: False if another attempt has sent all rows of this partition, so that these need not be
            computed. Sending them all the same has no effect.

    Raises:
        ExecutionError: The server cannot be reached, or the stream has ended.
    """

    def __init__(self, address: Address, stream: str, partition: int, attempt: int) -> None:
        self._address = address
        self._connection: ssl.SSLSocket | None = None
        try:
            plain = socket.create_connection((address.host, address.port), CONNECT_SECONDS)
            codec.watch(plain)
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # On failure it closes the plain one too.
            self._connection = context_of(address).wrap_socket(plain)
            codec.send(self._connection, {"token": address.token, "results": stream})
            welcome = codec.receive(self._connection)
            self._connection.settimeout(None)
        except (OSError, EOFError, ValueError) as error:
            self.close()
            raise unreachable(address, _PURPOSE, error) from error
        if "error" in welcome:
            self.close()
            raise refused(address, _PURPOSE, welcome)
        self._schema = pa.ipc.read_schema(pa.py_buffer(welcome["attachment"]))
        try:
            self._send({"start": [partition, attempt]})
            self.wanted: bool = self._receive("wanted")
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def send(self, batch: pa.RecordBatch) -> None:
        """Send rows; waits while the consumer has enough of them.

        Raises:
            ExecutionError: The stream has ended or was closed, the server is gone, the batch has another
                schema than the stream, or a single row is too large.
        """
        for piece in _pieces(self._as_agreed(batch)):
            self._check_open()
            payload = encoded(piece)
            if len(payload) > codec.LARGEST_ATTACHMENT:
                raise ExecutionError(
                    f"a row of the result takes {len(payload)} bytes, expected at most "
                    f"{codec.LARGEST_ATTACHMENT}: collect the result without streaming it"
                )
            self._send({"batch": True, "attachment": payload})

    def commit(self) -> None:
        """Say that these were all rows; returns when they have arrived.

        Raises:
            ExecutionError: The stream has ended or was closed, or the server is gone.
        """
        self._send({"commit": True})
        self._receive("committed")

    def close(self) -> None:
        """Leave; without a commit before, another attempt will have to send the rows."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _as_agreed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the batch with exactly the stream's schema; columns may be nullable or not."""
        if batch.schema.equals(self._schema):
            return batch
        if (batch.schema.names, batch.schema.types) != (self._schema.names, self._schema.types):
            raise ExecutionError(
                f"a task's rows have the columns {_named(batch.schema)}, expected {_named(self._schema)}"
            )
        return pa.RecordBatch.from_arrays(batch.columns, schema=self._schema)

    def _send(self, message: codec.Message) -> None:
        connection = self._open()
        try:
            codec.send(connection, message)
        except OSError as error:
            self._check_open()  # it may have said why
            raise lost(self._address, _PURPOSE, error) from error

    def _receive(self, name: str) -> bool:
        """Return what the server says under a name."""
        try:
            message = codec.receive(self._open())
        except (OSError, EOFError, ValueError) as error:
            raise lost(self._address, _PURPOSE, error) from error
        if "lost" in message:
            raise ExecutionError(f"the stream of results takes no more rows: {message['lost']}")
        return bool(message[name])

    def _check_open(self) -> None:
        """Raise if the server has said something: that can only be that the stream is closed."""
        connection = self._open()
        with selectors.DefaultSelector() as selector:
            selector.register(connection, selectors.EVENT_READ)
            has_message = connection.pending() or selector.select(0)
        if has_message:
            self._receive("")

    def _open(self) -> ssl.SSLSocket:
        if self._connection is None:
            raise ExecutionError("this sink of results has been closed")
        return self._connection


def _pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield a batch in pieces that are not much too large for a message."""
    if batch.num_rows == 0:
        return
    rows = max(1, int(batch.num_rows * codec.USUAL_ATTACHMENT / max(batch.nbytes, 1)))
    for low in range(0, batch.num_rows, rows):
        yield batch.slice(low, rows)


def _named(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)
