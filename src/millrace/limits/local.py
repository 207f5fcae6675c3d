"""The limits of a task that shares them with no other one."""

from __future__ import annotations

from millrace.limits.address import Settings
from millrace.limits.client import Limits
from millrace.limits.room import Room
from millrace.limits.wire import Message


class LocalLimits(Limits):
    """Limits kept in this process.

    Args:
        settings: The limits.
        room: Shared with other clients in the same event loop; a new one by default.
    """

    def __init__(self, settings: Settings, room: Room | None = None) -> None:
        super().__init__(settings)
        self._room = room or Room(settings)
        self._number: int | None = self._room.join(self._receive)

    async def close(self) -> None:
        """Leave, giving back what is held."""
        if self._number is not None:
            self._room.leave(self._number)
            self._number = None

    def _send(self, message: Message) -> None:
        if self._number is not None:
            self._room.handle(self._number, message)
