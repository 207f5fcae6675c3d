"""Messages that outlive a connection: each side keeps what the other may not have read.

Messages of a conversation are counted by who sends and by who reads them. Now and then a reader says how
many it has read (``ack``), and the sender lets go of these. When the connection breaks and the client comes
back on another one, both say how many they have read and send the rest again, so nothing is lost and
nothing is read twice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from millrace.coordination.codec import Frame, Message, frame

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
