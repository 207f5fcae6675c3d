"""One FROM clause being worked on."""

from __future__ import annotations

from dataclasses import dataclass, field

from sqlglot import exp

from millrace.front.coercion import Field
from millrace.front.context import Context
from millrace.front.from_clause import Chain
from millrace.front.names import Scope
from millrace.front.relations import Member


@dataclass(eq=False)
class Clause:
    """One FROM clause being worked on."""

    context: Context
    chain: Chain
    members: dict[str, Member] = field(default_factory=dict)

    @property
    def scope(self) -> Scope:
        return self.chain.scope

    def lookup(self, column: exp.Column) -> tuple[str, Field] | None:
        """Return the member and the column that a reference means."""
        found = self.context.find(column)
        if found is None or found.scope is not self.scope or found.nested:
            return None
        for member in self.members.values():
            if member.source is found.source:
                return member.alias, member.field(found.column)
        return None
