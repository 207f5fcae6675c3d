"""Limits that hold for all tasks of a job: calls under way, calls a second, each question once."""

from millrace.limits.address import Address, Settings
from millrace.limits.answers import Answer
from millrace.limits.client import Limits, RemoteLimits
from millrace.limits.digest import digest
from millrace.limits.local import LocalLimits
from millrace.limits.server import Coordinator

__all__ = [
    "Address",
    "Answer",
    "Coordinator",
    "Limits",
    "LocalLimits",
    "RemoteLimits",
    "Settings",
    "digest",
]
