"""Partial results: rows that lack some relations, given out while these have not come.

Raman, Deshpande & Hellerstein 2003, section 3.4: results with missing values can be of use long before a
source or an index has answered. A tuple of all other relations that has passed what can be asked of it is
shown at the moment when it probes for the first that is missing, where matches may be missing for it. Then it
goes on: what it joins to supersedes what was shown. So the results are the same with and without.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa

from millrace.engine.arrays import Array
from millrace.engine.eddy.context import Given, RunContext
from millrace.engine.eddy.decisions import RoutingTable
from millrace.engine.eddy.operator import Operator, Step
from millrace.engine.eddy.output import Output
from millrace.engine.eddy.preference import PreferringDataflow, Wanted
from millrace.engine.operators.beside import null_row
from millrace.engine.operators.stems import SteMProbe
from millrace.engine.plan.graph import QueryGraph, members
from millrace.engine.plan.spec import JoinSpec
from millrace.engine.policies import Candidate, Policy
from millrace.engine.tuples import RelationStore
from millrace.engine.tuples.batch import Signature, TupleBatch
from millrace.errors import InputError, near


def find_missing(
    spec: JoinSpec, names: Sequence[str], binds: Mapping[str, Sequence[Sequence[str]]] | None = None
) -> tuple[str, ...]:
    """Return the aliases that names mean, in any case.

    ``binds`` are, by alias, the bind columns of the indexes of relations that are only looked up.

    Raises:
        InputError: There is no such relation, or without them nothing is left that equalities hold together,
            or nothing binds an index of another, or a left join looks for matches.
    """
    binds = binds or {}
    known = {alias.lower(): alias for alias in spec.aliases}
    for name in names:
        if name.lower() not in known:
            raise InputError(
                f"partial results without {name!r}, which is none of the relations that the query joins: "
                f"{near(name, spec.aliases)}"
            )
    missing = {known[name.lower()] for name in names}
    rest = sum(1 << number for number, alias in enumerate(spec.aliases) if alias not in missing)
    graph, part = QueryGraph.of(spec), rest & -rest
    while more := sum(1 << r for r in graph.neighbours(part) if rest >> r & 1):
        part |= more
    reached = sum(1 << number for number in members(rest) if spec.aliases[number] not in binds)

    def is_bound(number: int) -> bool:
        tied = {c for each in graph.bound(reached, number) for c in graph.classes[each].columns(number)}
        return any(tied.issuperset(columns) for columns in binds[spec.aliases[number]])

    while more := sum(1 << number for number in members(rest & ~reached) if is_bound(number)):
        reached |= more
    if not rest or not part == reached == rest or spec.outer:
        raise InputError(
            f"partial results without {sorted(missing)}: expected inner joins alone, and at least one other "
            "relation. Equalities have to hold the other relations together, and to bind those of them that "
            "are only looked up. Name other relations"
        )
    return tuple(sorted(missing))


class PartialDataflow(PreferringDataflow):
    """An eddy with SteMs that shows tuples which lack ``missing`` relations, whose columns are null.

    ``show`` gets record batches of the block's columns. Each tuple is shown once at most. It meets missing
    relations behind all others, so that it is shown when it is as complete as it can be.
    """

    def __init__(
        self,
        context: RunContext,
        given: Given,
        latest: Callable[[], Wanted],
        missing: Sequence[str],
        show: Callable[[pa.RecordBatch], None],
    ) -> None:
        spec, self._show = context.spec, show
        self._missing = {spec.aliases.index(alias) for alias in missing}
        self._others = context.graph.everything & ~sum(1 << relation for relation in self._missing)
        self._shown = Output(spec, context.limit)
        self._nulls = {
            r: RelationStore.single(null_row(spec.relations[r].schema), (), []) for r in self._missing
        }
        visit = context.visit

        def visit_and_show(operator: Operator, work: Any) -> Step:
            if isinstance(work, TupleBatch) and self._lacks(operator, work.signature):
                self._give_out(work)
            return visit(operator, work)

        context.visit = visit_and_show
        super().__init__(context, given, latest)

    def _make_table(self, policy: Policy, candidates: Callable[[Signature], list[Candidate]]) -> RoutingTable:
        def put_missing_last(signature: Signature) -> list[Candidate]:
            found = candidates(signature)
            others = [each for each in found if not self._is_missing(each.operator)]
            return others if others and not signature.span & ~self._others else found

        return super()._make_table(policy, put_missing_last)

    def _is_missing(self, operator: Operator) -> bool:
        return isinstance(operator, SteMProbe) and operator.target in self._missing

    def _lacks(self, operator: Operator, signature: Signature) -> bool:
        is_new = signature.span == self._others and signature.prior is None and not signature.raised
        return is_new and self._is_missing(operator)

    def _find_lacking(self, batch: TupleBatch) -> Array:
        """Return positions of the tuples for which some match may be missing."""
        return reduce(np.union1d, (self.stems[relation].missing(batch) for relation in self._missing))

    def _give_out(self, batch: TupleBatch) -> None:
        """Show those tuples for which some match may be missing."""
        lacking = self._find_lacking(batch)
        if not len(lacking):
            return
        batch = batch.take(lacking)
        rows = {**dict.fromkeys(self._nulls, np.zeros(batch.size, np.int32)), **batch.rows}
        shown = replace(batch, rows=rows, stores={**self._nulls, **batch.stores})
        for each in (*self._shown.add(shown), *self._shown.idle()):
            self._show(each)
