"""One small join, watched: what the eddy takes up, where it sends it, what comes back, what is kept.

Three tables of five tuples, ``R(a)``, ``S(a, b)``, ``T(b)``, joined on ``R.a = S.a`` and ``S.b = T.b``, one
tuple at a time. Tuples are told by their rows: ``R1S4`` is the second of R with the fifth of S.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from lab.joins import block
from millrace.engine.eddy.eddy_run import EddyRun
from millrace.engine.eddy.operator import Kind, Operator, Step
from millrace.engine.plan.graph import members
from millrace.engine.plan.spec import JoinSpec
from millrace.engine.policies import Candidate, Decision, Policy, policy_from
from millrace.engine.tuples.batch import Signature, TupleBatch
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


class Watched(EddyRun):
    """An eddy that tells of all that it does.

    Args:
        spec: The block.
        sources: Its tables, by alias.
        options: Policy, architecture and the other settings.
        tell: Gets one line after the other.
    """

    def __init__(
        self, spec: JoinSpec, sources: dict[str, list[pa.RecordBatch]], options: Options, tell: Tell
    ) -> None:
        self._tell, self.steps = tell, 0
        policy = _Told(policy_from(options.policy, options), self._signature, tell)
        super().__init__(spec, sources, options, policy=policy)

    def _signature(self, signature: Signature) -> str:
        span = "".join(self.spec.aliases[relation] for relation in members(signature.span))
        return span if signature.built else f"{span}, not built"

    def _tuples(self, batch: TupleBatch) -> str:
        """Return tuples by the rows of their components; what is not kept yet has no number."""
        if not batch.signature.built:
            return f"a new {self._signature(batch.signature).split(',')[0]}"
        parts = [
            [f"{self.spec.aliases[n]}{row}" for row in batch.rows[n].tolist()] for n in sorted(batch.rows)
        ]
        return ", ".join(map("".join, zip(*parts, strict=True))) or "nothing"

    def _step(self, operator: Operator, signature: Signature, work: Any, *, fresh: bool) -> Step:
        self.steps += 1
        taken = self._tuples(work) if fresh else f"what is left of a {self._signature(signature)}"
        self._tell(f"{self.steps:>4}  pop {taken} → {_name(operator)}")
        step = super()._step(operator, signature, work, fresh=fresh)
        back = [self._tuples(batch) for batch in step.batches if batch.size]
        self._tell(f"      push {'; '.join(back)}" if back else "      nothing comes back")
        if operator.kind in (Kind.BUILD, Kind.JOIN):
            self._tell(f"      kept: {self._kept()}")
        return step

    def _kept(self) -> str:
        state = [f"{each.name} {each.tuples}" for each in self._held().state if each.tuples]
        return ", ".join(state) or "nothing"

    def _emit(self, batch: TupleBatch) -> Iterator[Any]:
        self._tell(f"      result {self._tuples(batch)}")
        return super()._emit(batch)


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
    run = Watched(block(made, *EQUALITIES, all_columns=True), sources, options, tell)
    found: int = sum(batch.num_rows for batch in run.run())
    tell(f"{found} rows in {run.steps} steps")
    return found
