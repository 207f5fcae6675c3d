"""Migration policies, one algorithm a file."""

from __future__ import annotations

from collections.abc import Callable

from millrace.migration.base import Change, MigrationPolicy
from millrace.migration.eager import Eager
from millrace.options import Options

MIGRATION_POLICIES: dict[str, Callable[[Options], MigrationPolicy]] = {
    "eager": lambda _: Eager(),
}


def default_migration() -> str:
    """Return the name of the policy that measures best."""
    return "eager"


__all__ = ["MIGRATION_POLICIES", "Change", "Eager", "MigrationPolicy", "default_migration"]
