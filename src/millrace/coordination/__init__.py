"""What all tasks of a job share: limits of calls under way and a second, each question asked once."""

from millrace.coordination.cache import check_cache
from millrace.coordination.chunk import Chunk, Claimed, Failure, Notification
from millrace.coordination.client import Client
from millrace.coordination.coordinator import Coordinator
from millrace.coordination.digest import KEY_BYTES, digest
from millrace.coordination.lookup_session import LookupSession
from millrace.coordination.permits import Permits
from millrace.coordination.process import CoordinatorProcess
from millrace.coordination.progress import FailedKey, LookupProgress
from millrace.coordination.registration import Address, Registration, Settings

__all__ = [
    "KEY_BYTES",
    "Address",
    "Chunk",
    "Claimed",
    "Client",
    "Coordinator",
    "CoordinatorProcess",
    "FailedKey",
    "Failure",
    "LookupProgress",
    "LookupSession",
    "Notification",
    "Permits",
    "Registration",
    "Settings",
    "check_cache",
    "digest",
]
