"""What all tasks of a job share: limits of calls under way and a second, each question asked once."""

from millrace.limits.cache import check_cache
from millrace.limits.chunk import KEY_BYTES, Chunk, Claimed, Failure, Notification, digest
from millrace.limits.client import Client
from millrace.limits.coordinator import Coordinator
from millrace.limits.lookup_session import LookupSession
from millrace.limits.permits import Permits
from millrace.limits.process import CoordinatorProcess
from millrace.limits.progress import FailedKey, LookupProgress
from millrace.limits.registration import Address, Registration, Settings

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
