"""What all tasks of a job share: limits of calls under way and a second, each question asked once."""

from millrace.limits.address import Address, Settings
from millrace.limits.answers import Answer
from millrace.limits.cache import check_cache
from millrace.limits.chunk import Chunk, Claimed, Failure, Told
from millrace.limits.client import Limits, RemoteLimits
from millrace.limits.coordinator import Coordinator
from millrace.limits.digest import KEY_BYTES, digest
from millrace.limits.local import LocalLimits
from millrace.limits.lookup_client import LookupClient
from millrace.limits.lookup_room import LookupRoom
from millrace.limits.offer import Offer
from millrace.limits.progress import FailedKey, LookupProgress

__all__ = [
    "KEY_BYTES",
    "Address",
    "Answer",
    "Chunk",
    "Claimed",
    "Coordinator",
    "FailedKey",
    "Failure",
    "Limits",
    "LocalLimits",
    "LookupClient",
    "LookupProgress",
    "LookupRoom",
    "Offer",
    "RemoteLimits",
    "Settings",
    "Told",
    "check_cache",
    "digest",
]
