"""Migration policies: when stored tuples are moved to where present routing would have put them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from millrace.engine.migration.backoff import Backoff
from millrace.engine.migration.base import Change, MigrationPolicy
from millrace.engine.migration.eager import Eager
from millrace.engine.migration.majority import Majority
from millrace.engine.migration.never import Never
from millrace.engine.migration.staged import Staged
from millrace.options import Options

MIGRATION_POLICIES: Mapping[str, Callable[[Options], MigrationPolicy]] = MappingProxyType(
    {
        "eager": lambda _: Eager(),
        "never": lambda _: Never(),
        "backoff": lambda _: Backoff(),
        "staged": lambda _: Staged(),
    }
)
"""How to make each policy from the options, by its name in ``Options.migration``.

It is read-only: tasks have a copy of their own, which a change here would not reach.
"""


def default_migration() -> str:
    """Return the name of the policy to take where the options name none (docs/policies.md)."""
    return "backoff"


__all__ = [
    "MIGRATION_POLICIES",
    "Backoff",
    "Change",
    "Eager",
    "Majority",
    "MigrationPolicy",
    "Never",
    "Staged",
    "default_migration",
]
