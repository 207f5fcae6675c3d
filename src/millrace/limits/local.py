"""The limits of a task that shares them with no other one."""

from __future__ import annotations

from millrace.limits.address import Settings
from millrace.limits.client import Limits
from millrace.limits.link import LocalLink
from millrace.limits.room import Room


class LocalLimits(Limits):
    """Limits kept in this process.

    Args:
        settings: The limits.
        room: Shared with other clients in the same event loop; a new one by default.
    """

    def __init__(self, settings: Settings, room: Room | None = None) -> None:
        super().__init__(LocalLink(room or Room(settings)), settings)
