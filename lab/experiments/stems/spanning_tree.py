"""R.a = S.x, S.y = T.b and R.c = T.c: a triangle, each of whose predicates is a join predicate. S stalls.

A plan picks two of the predicates for its joins beforehand. With R - S - T it can join nothing while S
stalls, for nothing ties R to T. SteMs are tied by all three, so the eddy picks for each tuple anew (section
3.4), here by the paper's own policy: most partial results per second (section 4.1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow as pa

from lab.experiments.experiment import Curve, Outcome, Settings
from lab.experiments.lab.block import block
from lab.experiments.stems.watched import INT, over_time, scan
from millrace.engine.expressions import Column, ColumnRef, Compare, Literal
from millrace.engine.operator import Probe
from millrace.engine.policies import Candidate, Policy, Shares
from millrace.engine.policies.fixed import Fixed
from millrace.engine.policies.greedy import Interactive
from millrace.engine.runs.eddy_run import EddyRun
from millrace.engine.runs.output import Output
from millrace.engine.tuples import Signature
from millrace.errors import ExecutionError
from millrace.limits.clock import VirtualClock
from millrace.options import Options

TREE, STUCK, LATE = "one-tree", "stuck", "late"
_R, _S, _T = 0, 1, 2
_LOOKS = 100
"""How often partial results are counted."""


class Noting(Policy):
    """Decides as another policy does, and notes where most tuples of R alone are sent.

    ``noted`` has moments, and the relation whose SteM these tuples probe first from then on.
    """

    def __init__(self, policy: Policy, clock: VirtualClock) -> None:
        # Where there is only one way, a policy is not asked; in the tree R - S - T that is S.
        self.noted: list[tuple[float, int]] = [(-1.0, _S)]
        self._policy = policy
        self._clock = clock

    def choose(self, signature: Signature, candidates: Sequence[Candidate]) -> Shares:
        """Return what the other policy returns."""
        shares = self._policy.choose(signature, candidates)
        best = max(shares, key=lambda pair: pair[1])[0]
        if signature.span == 1 << _R and isinstance(best, Probe):
            self.noted.append((self._clock.now(), best.target))
        return shares

    def at(self, moments: np.ndarray) -> np.ndarray:
        """Return the relation that was probed first at each moment."""
        places = np.searchsorted([when for when, _ in self.noted], moments, side="right")
        return np.array([self.noted[place - 1][1] for place in places])


def run(settings: Settings) -> Outcome:
    """Run the query with partial results looked at from time to time."""
    draw = np.random.default_rng(settings.seed)
    tuples, values, rate = settings["tuples"], settings["values"], settings["rate"]
    columns = {"R": ("a", "c"), "S": ("x", "y"), "T": ("b", "c")}
    drawn = {
        alias: {name: pa.array(draw.integers(0, values, tuples), INT) for name in names}
        for alias, names in columns.items()
    }
    drawn["R"] = {"key": pa.array(range(tuples), INT), **drawn["R"]}
    tables = {alias: pa.table(each) for alias, each in drawn.items()}
    spec = block(tables, "R.a = S.x", "S.y = T.b", "R.c = T.c", all_columns=True)
    if settings.ablated == TREE:  # R - S - T; the third predicate is a filter behind it
        *tree, third = spec.equalities
        behind = Compare("=", Column(third.left), Column(third.right), INT)
        spec = replace(spec, equalities=tuple(tree), residuals=(behind,))

    before = settings["before"]
    begins = before / settings["rate_s"]
    ends = begins + settings["stall"]
    clock = VirtualClock()
    policy = Noting(Fixed(("S", "T")) if settings.ablated == STUCK else Interactive(settings.seed), clock)
    stall = (0 if settings.ablated == LATE else before, settings["stall"])
    eddy = EddyRun(
        spec,
        {},
        Options(batch_size=256, reoptimize_every=32),
        clock=clock,
        access={
            "R": [scan("R", tables["R"], clock, rate)],
            "S": [scan("S", tables["S"], clock, settings["rate_s"], stall=stall)],
            "T": [scan("T", tables["T"], clock, rate)],
        },
        output=Output(spec, 1),
        policy=policy,
        prefer=Compare(">=", Column(ColumnRef("R", "key")), Literal(0, INT), INT),
    )
    partial: list[tuple[float, int]] = [(0.0, 0)]
    times: list[float] = []
    found = []
    step, complete = ends / _LOOKS, tuples / rate
    for batch in eddy.run():  # it yields whenever all sources have stalled
        times += [clock.now()] * batch.num_rows
        found.append(batch)
        late = clock.now() >= partial[-1][0] + step or complete <= clock.now() < ends
        if not batch.num_rows and late:
            partial.append((clock.now(), _pairs(eddy)))
    got = pa.Table.from_batches(found, spec.output_schema).to_pandas()
    if not _sorted(got).equals(_sorted(_joined(tables)[got.columns])):
        raise ExecutionError(f"{len(got)} results, and other ones than pandas' joins have")

    results = len(times)
    when, pairs = (np.array(each) for each in zip(*partial, strict=True))
    moments = np.linspace(0, ends, 1000)
    first = policy.at(moments)
    arriving = moments < min(ends, complete)
    flown = int(pairs[when < ends][-1] - pairs[when <= begins][-1])
    fresh = _pairs_there(tables["R"].slice(round(begins * rate)), tables["T"])
    figures = {
        "first_s_before": (first[moments < begins] == _S).mean(),
        "first_t_during": (first[(moments >= begins) & arriving] == _T).mean(),
        "partial_share": flown / max(1, fresh),
    }
    marks = ((begins, "S stalls"), (ends, "and goes on"))
    made = [
        Curve("R - T, S missing", when, pairs),
        Curve("results", (0, *times, clock.now()), (*range(results + 1), results)),
    ]
    edges = {"R - S": _S, "R - T": _T}
    taken = [Curve(name, moments[arriving], first[arriving] == edge) for name, edge in edges.items()]
    of_r, label = "which edge tuples of R take first", "taken by most (1) or not (0)"
    panels = [
        over_time("results, and partial ones without S", made, "tuples", marks=marks),
        over_time(of_r, taken, label, marks=marks),
    ]
    return Outcome(panels, figures)


def _pairs(eddy: EddyRun) -> int:
    """Return how many tuples of R and T alone the eddy has made by its own routing."""
    made = ((("R",), "T"), (("T",), "R"))
    return sum(join.tuples_out for join in eddy.figures().joins if (join.span, join.name) in made)


def _pairs_there(r: pa.Table, t: pa.Table) -> int:
    """Return how many tuples of R and T alone there are."""
    return int(r.join(t, "c", join_type="inner").num_rows)


def _joined(tables: dict[str, pa.Table]) -> pd.DataFrame:
    """Return the query's answer by pandas, columns named as the block's."""
    r, s, t = (table.to_pandas().add_prefix(f"{alias}_") for alias, table in tables.items())
    both = r.merge(s, left_on="R_a", right_on="S_x")
    return both.merge(t, left_on=["S_y", "R_c"], right_on=["T_b", "T_c"])


def _sorted(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.sort_values(list(frame.columns), ignore_index=True)
