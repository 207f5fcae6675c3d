"""One small join, watched: what the eddy takes up, where it sends it, what comes back, what is kept.

Three tables of five tuples, ``R(a)``, ``S(a, b)``, ``T(b)``, joined on ``R.a = S.a`` and ``S.b = T.b``, one
tuple at a time. Tuples are told by their rows: ``R1S4`` is the second of R with the fifth of S.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from lab.joins import block
from millrace.engine.eddy.context import Given, RunContext
from millrace.engine.eddy.dataflow import EddyDataflow
from millrace.engine.eddy.operator import Kind, Operator, Step
from millrace.engine.eddy.run import Run
from millrace.engine.figures import StateFigures
from millrace.engine.plan.graph import QueryGraph, members
from millrace.engine.plan.spec import JoinSpec
from millrace.engine.policies import Candidate, Decision, Policy, policy_from
from millrace.engine.tuples.batch import Signature, TupleBatch, is_result
from millrace.options import Options

_ROWS = 5
_VALUES = 3
"""Different values of a key: some tuples match several others, and some none."""

EQUALITIES = ("R.a = S.a", "S.b = T.b")

Tell = Callable[[str], None]


def tables(seed: int) -> dict[str, pa.Table]:
    """Return the three tables."""
    draw = np.random.default_rng(seed)
    columns = {"R": "a", "S": "ab", "T": "b"}
    return {
        alias: pa.table({key: draw.integers(0, _VALUES, _ROWS) for key in keys})
        for alias, keys in columns.items()
    }


class _Told(Policy):
    """Makes another policy's choices, and tells what there was to choose from."""

    def __init__(self, policy: Policy, describe: Callable[[Signature], str], tell: Tell) -> None:
        self._policy, self._describe, self._tell = policy, describe, tell

    def choose(self, signature: Signature, candidates: Sequence[Candidate]) -> Decision:
        """Return the other policy's choice."""
        chosen = self._policy.choose(signature, candidates)
        shares = dict(chosen.shares)
        offered = ", ".join(f"{_name(c.operator)} {shares.get(c.operator, 0):.0%}" for c in candidates)
        self._tell(f"      decide for {self._describe(signature)}: {offered}")
        return chosen


class Watch:
    """Tells of all that an eddy does, in one line after the other."""

    def __init__(self, spec: JoinSpec, tell: Tell) -> None:
        self.steps = 0
        self.kept: Callable[[], Sequence[StateFigures]] = tuple
        self._spec, self._graph, self._tell = spec, QueryGraph.of(spec), tell

    def signature(self, signature: Signature) -> str:
        span = "".join(self._spec.aliases[relation] for relation in members(signature.span))
        return span if signature.built else f"{span}, not built"

    def _tuples(self, batch: TupleBatch) -> str:
        """Return tuples by the rows of their components; what is not kept yet has no number."""
        if not batch.signature.built:
            return f"a new {self.signature(batch.signature).split(',')[0]}"
        parts = [
            [f"{self._spec.aliases[n]}{row}" for row in batch.rows[n].tolist()] for n in sorted(batch.rows)
        ]
        return ", ".join(map("".join, zip(*parts, strict=True))) or "nothing"

    def begin(self, context: RunContext, given: Given) -> EddyDataflow:
        """Return an eddy whose operators do steps as before, and tell of them."""
        visit = context.visit

        def told(operator: Operator, work: Any) -> Step:
            self.steps += 1
            if isinstance(work, TupleBatch):
                taken = self._tuples(work)
            else:
                taken = f"what is left of a {self.signature(work.batch.signature)}"
            self._tell(f"{self.steps:>4}  pop {taken} → {_name(operator)}")
            step = visit(operator, work)
            for batch in step.batches:
                if batch.size:
                    word = "result" if is_result(batch.signature, self._graph) else "push"
                    self._tell(f"      {word} {self._tuples(batch)}")
            if not any(batch.size for batch in step.batches):
                self._tell("      nothing comes back")
            if operator.kind in (Kind.BUILD, Kind.JOIN):
                state = [f"{each.name} {each.tuples}" for each in self.kept() if each.tuples]
                self._tell(f"      kept: {', '.join(state) or 'nothing'}")
            return step

        context.visit = told
        return EddyDataflow(context, given)


def _name(operator: Operator) -> str:
    return f"{operator.action} {operator.name}"


def trace(options: Options, seed: int, tell: Tell) -> int:
    """Run the join, and tell of every step; return how many rows it has."""
    made = tables(seed)
    for alias, table in made.items():
        rows = ", ".join(
            f"{alias}{i}({', '.join(map(str, row.values()))})" for i, row in enumerate(table.to_pylist())
        )
        tell(f"{alias}({', '.join(table.column_names)}): {rows}")
    tell(f"{' AND '.join(EQUALITIES)}; policy {options.policy}, architecture {options.architecture}")
    sources = {alias: table.to_batches(max_chunksize=1) for alias, table in made.items()}
    spec = block(made, *EQUALITIES, all_columns=True)
    watch = Watch(spec, tell)
    policy = _Told(policy_from(options.policy, options), watch.signature, tell)
    run = Run(spec, sources, options, policy=policy, eddy=watch.begin)
    watch.kept = lambda: run.dataflow.held().state
    found: int = sum(batch.num_rows for batch in run.run())
    tell(f"{found} rows in {watch.steps} steps")
    return found
