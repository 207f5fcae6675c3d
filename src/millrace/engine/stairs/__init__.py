"""STAIRs: join state that keeps intermediate tuples, and moves them as routing changes.

Invariants: A and B, and B+ between queries' ends (:mod:`millrace.engine.stairs.invariants`). State is moved
at points of stasis alone, and no answer depends on what is moved.
"""

from millrace.engine.stairs.policies import (
    DEFAULT_MIGRATION,
    MIGRATION_POLICIES,
    Change,
    MigrationPolicy,
)

__all__ = ["DEFAULT_MIGRATION", "MIGRATION_POLICIES", "Change", "MigrationPolicy"]
