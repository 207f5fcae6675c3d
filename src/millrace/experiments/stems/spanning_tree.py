"""R.a = S.x, S.y = T.b and R.c = T.c: a triangle, each of whose predicates is a join predicate. S stalls.

A plan picks two of the predicates for its joins beforehand. With R - S - T it can join nothing while S
stalls, for nothing ties R to T. SteMs are tied by all three, so the eddy picks for each tuple anew (section
3.4), here by the paper's own policy: most partial results per second (section 4.1).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from millrace.clock import VirtualClock
from millrace.errors import ExecutionError
from millrace.experiments.experiment import Curve, Outcome, Settings
from millrace.experiments.lab.block import block
from millrace.experiments.stems.watched import INT, Timed, over_time, scan
from millrace.expressions import Column, ColumnRef, Compare, Literal, Predicate
from millrace.operator import Probe
from millrace.options import Options
from millrace.policies import Candidate, Policy, Shares
from millrace.policies.fixed import Fixed
from millrace.policies.interactive import Interactive
from millrace.runs.eddy_run import EddyRun
from millrace.spec import JoinSpec
from millrace.tuples import Signature

TREE, STUCK, LATE = "one-tree", "stuck", "late"
_R, _S, _T = 0, 1, 2
_LOOKS = 100
"""How often partial results are counted."""


class Noting(Policy):
    """Decides as another policy does, and notes where most tuples of R alone are sent.

    Attributes:
        noted: A moment, and the relation whose SteM these tuples probe first from then on.
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
    tables = _tables(np.random.default_rng(settings.seed), settings)
    spec = block(tables, "R.a = S.x", "S.y = T.b", "R.c = T.c", all_columns=True)
    if settings.ablated == TREE:
        spec = _as_tree(spec)
    before = settings.whole("before")
    begins = before / settings["rate_s"]
    ends = begins + settings["stall"]
    clock = VirtualClock()
    sink = Timed(spec, clock, lambda _: settings.progress(min(1.0, clock.now() / (ends + begins))))
    policy = Noting(Fixed(("S", "T")) if settings.ablated == STUCK else Interactive(settings.seed), clock)
    access = {
        "R": [scan("R", tables["R"], clock, settings["rate"])],
        "S": [
            scan(
                "S",
                tables["S"],
                clock,
                settings["rate_s"],
                stall=(0 if settings.ablated == LATE else before, settings["stall"]),
            )
        ],
        "T": [scan("T", tables["T"], clock, settings["rate"])],
    }
    eddy = EddyRun(
        spec,
        {},
        Options(batch_size=256, reoptimize_every=32),
        clock=clock,
        access=access,
        output=sink,
        policy=policy,
        prefer=Compare(">=", Column(ColumnRef("R", "key")), Literal(0, INT), INT),
    )
    partial: list[tuple[float, int]] = [(0.0, 0)]
    step, complete = ends / _LOOKS, tables["R"].num_rows / settings["rate"]
    for _ in eddy.run():  # it yields whenever all sources have stalled
        if clock.now() >= partial[-1][0] + step or complete <= clock.now() < ends:
            partial.append((clock.now(), _pairs(eddy)))
    results = len(sink.times)
    when, pairs = np.array([each[0] for each in partial]), np.array([each[1] for each in partial])
    moments = np.linspace(0, ends, 1000)
    first = policy.at(moments)
    arriving = moments < min(ends, tables["R"].num_rows / settings["rate"])
    stalled = (moments >= begins) & arriving
    with_s = float((first[moments < begins] == _S).mean())
    with_t = float((first[stalled] == _T).mean())
    got = sink.table()
    if not _sorted(got).equals(_sorted(_joined(tables).select(got.column_names))):
        raise ExecutionError(f"{got.num_rows} results, and other ones than Arrow's joins have")
    flown = int(pairs[when < ends][-1] - pairs[when <= begins][-1])
    fresh = _pairs_there({**tables, "R": tables["R"].slice(round(begins * settings["rate"]))})
    there = _pairs_there(tables)
    rest = ends + (tables["S"].num_rows - before) / settings["rate_s"]
    marks = ((begins, "S stalls"), (ends, "and goes on"))
    made = (
        Curve("R - T, S missing", when.tolist(), pairs.tolist()),
        Curve("results", (0, *sink.times, clock.now()), (*range(results + 1), results)),
    )
    taken = [
        Curve(name, moments[arriving].tolist(), (first[arriving] == edge).tolist())
        for name, edge in (("R - S", _S), ("R - T", _T))
    ]
    return Outcome(
        (
            over_time("results, and partial ones without S", made, "tuples", marks=marks),
            over_time(
                "which edge tuples of R take first", taken, "taken by most (1) or not (0)", marks=marks
            ),
        ),
        {
            "results": results,
            "partial_during_stall": flown,
            "first_s_before": with_s,
            "first_t_during": with_t,
            "end": clock.now(),
            "partial_share": flown / max(1, fresh),
            "partial_before": int(pairs[when <= begins][-1]) / max(1, there),
            "end_late": (clock.now() - rest) * settings["rate_s"],
        },
    )


def _tables(draw: np.random.Generator, settings: Settings) -> dict[str, pa.Table]:
    tuples, values = settings.whole("tuples"), settings.whole("values")

    def column() -> pa.Array:
        return pa.array(draw.integers(0, values, tuples), INT)

    return {
        "R": pa.table({"key": pa.array(range(tuples), INT), "a": column(), "c": column()}),
        "S": pa.table({"x": column(), "y": column()}),
        "T": pa.table({"b": column(), "c": column()}),
    }


def _as_tree(spec: JoinSpec) -> JoinSpec:
    """Return the query over the spanning tree R - S - T; the third predicate is a filter behind it."""
    third = spec.equalities[2]
    filter_: Predicate = Compare("=", Column(third.left), Column(third.right), INT)
    return type(spec)(spec.relations, spec.equalities[:2], (filter_,), spec.output)


def _pairs(eddy: EddyRun) -> int:
    """Return how many tuples of R and T alone the eddy has made by its own routing."""
    return sum(
        join.tuples_out
        for join in eddy.figures().joins
        if (join.span, join.name) in ((("R",), "T"), (("T",), "R"))
    )


def _pairs_there(tables: dict[str, pa.Table]) -> int:
    r, t = (np.bincount(tables[alias]["c"].to_numpy(), minlength=1) for alias in "RT")
    most = min(len(r), len(t))
    return int((r[:most] * t[:most]).sum())


def _joined(tables: dict[str, pa.Table]) -> pa.Table:
    """Return the query's answer by Arrow's joins, columns named as the block's."""
    r, s, t = (
        tables[alias].rename_columns([f"{alias}_{name}" for name in tables[alias].column_names])
        for alias in "RST"
    )
    s = s.append_column("x", s["S_x"]).append_column("y", s["S_y"])
    t = t.append_column("c", t["T_c"]).append_column("b", t["T_b"])
    both = r.join(s, "R_a", "x", join_type="inner", right_suffix="")
    return both.join(t, ["y", "R_c"], ["b", "c"], join_type="inner")


def _sorted(table: pa.Table) -> pa.Table:
    return table.sort_by([(name, "ascending") for name in table.column_names]).combine_chunks()
