"""A client's place in a session, which it finds again when its connection has broken.

Both sides keep what the other has not said it has read.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Iterable

from millrace.limits import codec
from millrace.limits.codec import Frame, Message, frame
from millrace.limits.session import Session

_MOST_UNACKNOWLEDGED = 64
_MOST_BYTES = 1 << 20


class Outbox:
    """What one side of a conversation has said and not heard of; and how much of the other's it has read."""

    def __init__(self) -> None:
        self._frames: deque[Frame] = deque()
        self._acknowledged = 0
        self._told = 0
        self._bytes = 0
        self.read = 0

    def add(self, message: Message) -> Frame:
        """Keep a message that is being sent; returns it as it is sent."""
        framed = frame(message)
        self._frames.append(framed)
        return framed

    @property
    def unread(self) -> Iterable[Frame]:
        """What is still kept, in the order in which it was said."""
        return self._frames

    def acknowledge(self, read: int) -> None:
        """Let go of what the other side has read, so many messages of all that were said.

        Raises:
            ValueError: It cannot have read so much, or has said before that it had read more.
        """
        count = read - self._acknowledged
        if not 0 <= count <= len(self._frames):
            raise ValueError(f"{read} messages read, of {self._acknowledged + len(self._frames)}")
        for _ in range(count):
            self._frames.popleft()
        self._acknowledged = read

    def take(self, message: Message) -> int | None:
        """Count a message that was read; returns how many there were, if it is time to say so."""
        self.read += 1
        self._bytes += len(message.get("attachment", b""))
        if self.read - self._told < _MOST_UNACKNOWLEDGED and self._bytes < _MOST_BYTES:
            return None
        self._told, self._bytes = self.read, 0
        return self.read


GRACE_SECONDS = 5.0
"""How long a client whose connection broke keeps what it holds, and tries to come back."""


class Seat:
    """Made when a client joins; has a writer while the client is there.

    Args:
        kept: Whether the client comes back if its connection breaks; it then acknowledges what it reads.

    Attributes:
        key: Opens it again; nobody else knows it.
        client: Its number in the session.
        writer: Of the connection that counts; None while the client is away.
        expiry: Runs when it has been away for too long.
        lost: Whether it could not be told something, and would wait for that for ever if it came back.
    """

    def __init__(self, name: str, session: Session, writer: asyncio.StreamWriter, *, kept: bool) -> None:
        self.name = name
        self.session = session
        self.key = secrets.token_hex(16)
        self.writer: asyncio.StreamWriter | None = writer
        self.expiry: asyncio.TimerHandle | None = None
        self.lost = False
        self._outbox = Outbox() if kept else None
        codec.write(writer, {**session.welcome(), "seat": self.key} if kept else session.welcome())
        self.client = session.join(self._deliver)

    @property
    def kept(self) -> bool:
        return self._outbox is not None

    def resume(self, writer: asyncio.StreamWriter, read: int) -> None:
        """Go on with a new connection of the client, which has read so many messages.

        Raises:
            ValueError: It cannot have.
        """
        assert self._outbox is not None
        if self.expiry is not None:
            self.expiry.cancel()
        if self.writer is not None:
            self.writer.transport.abort()  # broken, but only the client knew
        self.writer = writer
        self._outbox.acknowledge(read)
        codec.write(writer, {"read": self._outbox.read})
        for framed in self._outbox.unread:
            codec.write_frame(writer, framed)

    def handle(self, message: Message) -> bool:
        """Do what a message says; returns whether the client has said goodbye.

        Raises:
            ValueError: It says nothing that a client of ours would say.
        """
        if self._outbox is not None:
            if "ack" in message:
                self._outbox.acknowledge(int(message["ack"]))
                return False
            count = self._outbox.take(message)
            if count is not None and self.writer is not None:
                codec.write(self.writer, {"ack": count})
        if "bye" in message:
            return True
        self.session.handle(self.client, message)
        return False

    def say_goodbye(self) -> None:
        self._deliver({"bye": True})

    def leave(self) -> None:
        """Give back all that the client holds."""
        self.session.leave(self.client)

    def _deliver(self, message: Message) -> None:
        try:
            self._say(message)
        except Exception:  # noqa: BLE001  # whoever speaks to it has others to speak to
            self.lost = True
            if self.writer is not None:
                self.writer.transport.abort()

    def _say(self, message: Message) -> None:
        if self._outbox is not None:
            framed = self._outbox.add(message)
            if self.writer is not None and not self.writer.is_closing():
                codec.write_frame(self.writer, framed)
        elif self.writer is not None:
            codec.write(self.writer, message)
