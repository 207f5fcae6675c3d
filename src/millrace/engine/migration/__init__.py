"""Where stored tuples belong, what moving them costs and spares, and when state follows routing.

Invariant: state is moved at points of stasis alone, and no answer depends on what is moved.
"""

from millrace.engine.migration.policies import (
    MIGRATION_POLICIES,
    Change,
    MigrationPolicy,
    default_migration,
)

__all__ = ["MIGRATION_POLICIES", "Change", "MigrationPolicy", "default_migration"]
