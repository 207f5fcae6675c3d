"""Raman, Deshpande & Hellerstein 2003, *SteMs*: figures 7 and 8, and claims that the paper has no figure for.

The data sources are those of table 3. A scan returns a tuple at a time; an index answers one lookup after
the other, after a sleep "of identical duration". Everything else takes no time: in the paper's experiments
sources took minutes. The eddy routes tuple by tuple, as the paper's did, so each result has its own time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from lab.figures.engine import MICRO, Costs, Ran, RemoteIndex, Started, all_batches, batches, block, run
from lab.figures.figure import Claim, Curve, Figure, Outcome, Panel, Parameter, Settings
from millrace.engine.arrivals.access_modules import IndexAM, Scan, ScanAM
from millrace.engine.arrivals.schedule import Schedule
from millrace.engine.expressions import And, Column, ColumnRef, Compare, Literal, Predicate
from millrace.engine.runs.output import Output
from millrace.engine.spec import JoinSpec
from millrace.engine.spill.spilling import SpillingEddy
from millrace.errors import ExecutionError
from millrace.limits.clock import VirtualClock
from millrace.options import Options

INT = pa.int64()
PAPER = "Raman, Deshpande & Hellerstein 2003"


@dataclass(frozen=True)
class Timed(Ran):
    """A run over remote sources; ``answered`` has when indexes answered, and which key."""

    answered: Sequence[tuple[float, int]] = ()

    def of(self, keys: range) -> Timed:
        """Return the run with the times of results whose ``R.key`` is in a range."""
        found = np.array([]) if self.table is None else self.table["R_key"].to_numpy()
        return replace(self, times=self.times[(found >= keys.start) & (found < keys.stop)], table=None)

    def until(self, moment: float) -> Timed:
        """Return the run with the times of results up to a moment."""
        return replace(self, times=self.times[self.times <= moment], seconds=moment, table=None)


def timed(
    spec: JoinSpec, clock: VirtualClock, access: Mapping[str, Sequence[ScanAM | IndexAM]], **more: Any
) -> Timed:
    """Run a block on the clock of its access modules, by default tuple by tuple.

    Args:
        spec: The block.
        clock: Of the run.
        access: Access modules by alias.
        more: Options of the run; ``prefer`` and ``on_batch`` as any run takes them.
    """
    given = {name: more.pop(name) for name in ("prefer", "on_batch") if name in more}
    options = Options(**{"batch_size": 1, **more})
    ran = run(spec, {}, options, clock=clock, access=access, output=Output(spec, 1), **given)
    indexes = [each for ways in access.values() for each in ways if isinstance(each, RemoteIndex)]
    return Timed(**vars(ran), answered=[answer for index in indexes for answer in index.answered])


def check(rows: int, *runs: Timed) -> None:
    """Raise ExecutionError unless all runs have so many results, and the same ones."""
    if any(len(run.times) != rows or run.answer != runs[0].answer for run in runs):
        raise ExecutionError(f"{[len(run.times) for run in runs]} results of {rows}")


def over_time(title: str, curves: Sequence[Curve], label: str = "results", **more: Any) -> Panel:
    """Return a panel of what had come by when."""
    return Panel(title, "time (s)", label, curves, kind="steps", **more)


def scan(alias: str, table: pa.Table, clock: VirtualClock, rate: float, **more: Any) -> Scan:
    """Return a scan of so many tuples a second, one at a time."""
    return Scan(alias, table.combine_chunks().to_batches(max_chunksize=1), clock, every=1 / rate, **more)


def keyed(draw: np.random.Generator, *tuples: int) -> list[pa.Table]:
    """Return tables of so many tuples with a ``key`` in random order."""
    return [pa.table({"key": pa.array(draw.permutation(size), INT)}) for size in tuples]


def fig7(settings: Settings) -> Outcome:
    """Run R.a = S.x, where S can only be asked, by an index join and over SteMs.

    Both ask for the 250 values of ``a`` in the order in which R brings them, so the source is as busy in
    one as in the other. In the index join a tuple waits for the lookups of all before it, though the cache
    may have its match.
    """
    draw = np.random.default_rng(settings.seed)
    tuples, values = settings["tuples"], settings["values"]
    a = draw.permutation(np.concatenate([np.arange(values), draw.integers(0, values, tuples - values)]))
    s = {name: pa.array(range(values), INT) for name in "xy"}
    tables = {"R": keyed(draw, tuples)[0].append_column("a", pa.array(a, INT)), "S": pa.table(s)}
    spec = block(tables, "R.a = S.x", all_columns=True)

    def side(architecture: str) -> Timed:
        clock = VirtualClock()
        index = RemoteIndex(["x"], tables["S"], clock, settings["lookup"])
        access = {"R": [scan("R", tables["R"], clock, 500.0)], "S": [index]}
        return timed(spec, clock, access, architecture=architecture)

    join, stems = map(side, ("stems", "joins") if settings.ablated else ("joins", "stems"))
    check(tuples, join, stems)
    probes = {
        name: np.array([when for when, _ in run.answered])
        for name, run in (("index join", join), ("SteMs", stems))
    }
    moments = np.linspace(0, join.seconds, 500)
    ahead = stems.count(moments) - join.count(moments)
    bend = np.abs(stems.count(moments) - tuples * moments / stems.seconds)[moments <= stems.seconds].max()
    one, other = (np.searchsorted(each, moments) for each in probes.values())
    # A lookup that is under way is no difference.
    apart = max(np.abs(one - other).max() - 1, *(abs(len(each) - values) for each in probes.values()))
    figures = {
        "half_join": join.share_at(0.5) / join.seconds,
        "half_stems": stems.share_at(0.5) / stems.seconds,
        "bend": bend / tuples,
        "probes_apart": apart / values,
        "end_ratio": stems.seconds / join.seconds,
        "behind": -min(0, ahead.min()) / np.bincount(a).max(),
    }
    curves = [Curve(name, (0, *each), range(len(each) + 1)) for name, each in probes.items()]
    panels = [
        over_time("(i) results", [join.curve("index join"), stems.curve("SteMs")], static=["index join"]),
        over_time("(ii) probes into S", curves, "lookups answered", static=["index join"]),
    ]
    return Outcome(panels, figures)


def fig8(settings: Settings) -> Outcome:
    """Run R.key = T.key, where T has an index and a scan, by an index join, a hash join, and over SteMs.

    The scan of T is faster, but returns T in random order, so that for long few tuples of R meet theirs.
    With both, the SteM bounces tuples of R back, and the eddy asks the index for those whose answer it
    expects before the scan's. It does not know how large T is: what the scan will return by when is learned
    from its pace.
    """
    tuples, lookup, rate = settings["tuples"], settings["lookup"], settings["rate_t"]
    tables = dict(zip("RT", keyed(np.random.default_rng(settings.seed), tuples, tuples), strict=True))
    spec = block(tables, "R.key = T.key", all_columns=True, rows={"T": None})
    scan_end = tuples / rate

    def side(*, index: bool, scanned: bool) -> Timed:
        clock = VirtualClock()
        t: list[ScanAM | IndexAM] = [RemoteIndex(["key"], tables["T"], clock, lookup)] if index else []
        t += [scan("T", tables["T"], clock, rate)] if scanned else []
        return timed(spec, clock, {"R": [scan("R", tables["R"], clock, settings["rate_r"])], "T": t})

    joined, hashed = side(index=True, scanned=False), side(index=False, scanned=True)
    hybrid = side(index=settings.ablated != "scan-alone", scanned=settings.ablated != "index-alone")
    check(tuples, joined, hashed, hybrid)

    moments = np.linspace(0, hybrid.seconds, 1000)
    by_index, by_hash, by_both = (run.count(moments) for run in (joined, hashed, hybrid))
    crossing = moments[np.flatnonzero(by_index > by_hash)[-1]]
    begun = (by_index >= 5) & (moments <= crossing / 2)
    figures = {
        "most_behind": (np.maximum(by_index, by_hash) - by_both).max() / tuples,
        "early_share": (by_both[begun] / by_index[begun]).min(),
        "redundant": redundant(hybrid, tables["T"], rate),
        "late_lookups": sum(when - lookup > scan_end for when, _ in hybrid.answered),
        "crossing_share": crossing / hashed.seconds,
        "index_join_over_hash_join": joined.seconds / hashed.seconds,
        "end_over_hash_join": hybrid.seconds / hashed.seconds,
    }
    runs = {"index join": joined, "hash join": hashed, "SteMs, hybrid": hybrid}
    start, whole = (
        [r.until(end).curve(n) for n, r in runs.items()] for end in (1.2 * crossing, joined.seconds)
    )
    marks, joins = [(scan_end, "end of T's scan")], ("index join", "hash join")
    panels = [
        over_time("(i) the beginning", start, static=joins),
        over_time("(ii) the whole run", whole, marks=marks, static=joins),
    ]
    return Outcome(panels, figures)


def redundant(run: Timed, t: pa.Table, rate: float) -> float:
    """Return the share of lookups that returned what the scan of T had; no number where there are none.

    The lookup under way when the scan returns its key, and the next one, are chosen too early to count.
    """
    scanned = {key: (place + 1) / rate for place, key in enumerate(t["key"].to_pylist())}
    late = sum(when > scanned.get(key, np.inf) for when, key in run.answered)
    return max(0, late - 2) / len(run.answered) if run.answered else np.nan


def competition(settings: Settings) -> Outcome:
    """Run R.key = T.key, where T has a scan that stalls half-way, and a slower scan or an index besides.

    Both build into one SteM, so what one has brought is there for the other: duplicates end as they are
    built, and the index is not asked for what a scan has returned.
    """
    draw = np.random.default_rng(settings.seed)
    tuples, broken = settings["tuples"], settings.ablated
    tables = dict(zip("RT", keyed(draw, tuples, tuples), strict=True))
    copy = tables["T"]
    if broken == "own-stems":  # no tuple of one scan is identical to one of the other, so the SteM keeps both
        tables["T"], copy = (copy.append_column("scan", pa.array([n] * tuples, INT)) for n in (1, 2))
    copy = copy.take(draw.permutation(tuples))
    spec = block(tables, "R.key = T.key", all_columns=True)

    def side(*modules: str) -> Timed:
        clock = VirtualClock()
        stall = (tuples // 2, settings["stall"])
        made: dict[str, ScanAM | IndexAM] = {
            "fast": scan("T, fast", tables["T"], clock, settings["fast"], stall=stall),
            "slow": scan("T, slow", copy, clock, settings["slow"]),
            "index": RemoteIndex(["key"], tables["T"], clock, settings["lookup"]),
        }
        kept = modules[:1] if broken == "alone" else modules
        r = scan("R", tables["R"], clock, 100.0)
        return timed(spec, clock, {"R": [r], "T": [made[each] for each in kept]})

    fast, slow, index = side("fast"), side("slow"), side("index")
    scans, both = side("fast", "slow"), side("fast", "index")
    if broken != "own-stems":
        check(tuples, fast, slow, index, scans, both)
    stalls = tuples // 2 / settings["fast"]
    early = np.linspace(0, stalls, 200)
    modules = {(module.name, module.action): module.tuples_in for module in scans.figures.modules}
    (built,) = (state.inserted for state in scans.figures.state if state.name == "SteM(T)")
    figures = {
        "redundant": redundant(both, tables["T"].slice(0, tuples // 2), settings["fast"]),
        "built_twice": max(built, modules["SteM(R)", "probe"]) / tuples - 1,
        "behind_fast": max(0, (fast.count(early) - scans.count(early)).max()) / tuples,
        "end_over_slow": scans.seconds / slow.seconds,
        "wait_over_half_index": (both.times[-1] - stalls) / (tuples / 2 * settings["lookup"]),
    }
    marks = ((stalls, "the fast scan stalls"), (stalls + settings["stall"], "and goes on"))
    shown = {
        "two scans": {"fast scan alone": fast, "slow scan alone": slow, "two scans": scans},
        "a scan and an index": {"fast scan alone": fast, "index alone": index, "scan and index": both},
    }
    panels = [
        over_time(title, [run.curve(n) for n, run in runs.items()], marks=marks, static=list(runs)[:2])
        for title, runs in shown.items()
    ]
    return Outcome(panels, figures)


LOOKS = 100
"""How often the tuples that each join has seen are counted."""


def spanning_tree(settings: Settings) -> Outcome:
    """Run R.a = S.x, S.y = T.b and R.c = T.c, a triangle of join predicates, while S stalls.

    A plan picks two of the predicates for its joins beforehand. With R - S - T it can join nothing while S
    stalls, for nothing ties R to T. SteMs are tied by all three, and the eddy picks for each tuple anew, by
    the paper's own policy (section 4.1): most partial results per second.
    """
    draw = np.random.default_rng(settings.seed)
    tuples, rate, rate_s = settings["tuples"], 20.0, 40.0
    columns = {"R": ("key", "a", "c"), "S": ("x", "y"), "T": ("b", "c")}
    drawn = {a: draw.integers(0, settings["values"], (len(names), tuples)) for a, names in columns.items()}
    drawn["R"][0] = range(tuples)
    tables = {a: pa.table([*rows], columns[a]) for a, rows in drawn.items()}
    spec = block(tables, "R.a = S.x", "S.y = T.b", "R.c = T.c", all_columns=True)
    if settings.ablated:  # the third predicate is a filter behind the tree R - S - T
        *tree, third = spec.equalities
        behind = Compare("=", Column(third.left), Column(third.right), INT)
        spec = replace(spec, equalities=tuple(tree), residuals=(behind,))

    begins = settings["before"] / rate_s
    ends = begins + settings["stall"]
    clock = VirtualClock()
    access = {alias: [scan(alias, tables[alias], clock, rate)] for alias in "RT"}
    stall = (settings["before"], settings["stall"])
    access["S"] = [scan("S", tables["S"], clock, rate_s, stall=stall)]
    looks = [(0.0, 0, 0, 0)]

    def look(eddy: Started) -> None:
        due = clock.now() >= looks[-1][0] + tuples / rate / LOOKS or tuples / rate <= clock.now() < ends
        if due:
            joins = {(join.span, join.name): join for join in eddy.figures().joins}
            r_s, r_t, t_r = (joins.get(way) for way in ((("R",), "S"), (("R",), "T"), (("T",), "R")))
            pairs = sum(join.tuples_out for join in (r_t, t_r) if join)
            looks.append((clock.now(), pairs, *(join.tuples_in if join else 0 for join in (r_s, r_t))))

    everything = Compare(">=", Column(ColumnRef("R", "key")), Literal(0, INT), INT)
    r, s, t = (tables[alias].rename_columns([f"{alias}_{n}" for n in columns[alias]]) for alias in "RST")
    joined = r.join(s, "R_a", "S_x", "inner", coalesce_keys=False)
    joined = joined.join(t, ["S_y", "R_c"], ["T_b", "T_c"], "inner", coalesce_keys=False)
    done = timed(
        spec,
        clock,
        access,
        on_batch=look,
        prefer=[everything],
        batch_size=256,
        reoptimize_every=32,
        policy="interactive",
        seed=settings.seed,
    )
    by_all = [(name, "ascending") for name in joined.column_names]
    if done.table.sort_by(by_all).select(joined.column_names) != joined.sort_by(by_all):
        raise ExecutionError(
            f"the eddy found {done.rows} rows, and not the {joined.num_rows} of Arrow's joins"
        )

    when, pairs, to_s, to_t = np.array(looks).T
    # The policy knows a join by 128 tuples, and tries both until then; S has more tuples until T catches up.
    known, caught_up = 2 * 128 / rate, settings["before"] / rate
    places = [np.flatnonzero(when <= moment)[-1] for moment in (known, caught_up, tuples / rate)]
    new_s, new_t = (np.diff(each[places]) for each in (to_s, to_t))
    (new,) = np.diff(pairs[[np.flatnonzero(when < moment)[-1] for moment in (begins, ends)]])
    fresh = r.slice(round(begins * rate)).join(t, "R_c", "T_c", "inner").num_rows
    figures = {
        "first_s_before": new_s[0] / (new_s + new_t)[0],
        "first_t_after": new_t[1] / (new_s + new_t)[1],
        "partial_share": new / fresh,
    }
    marks = ((begins, "S stalls"), (caught_up, "T has more"), (ends, "S goes on"))
    partial = [Curve("R - T, S missing", when, pairs), done.curve("results")]
    taken = [Curve("R - S", when, to_s), Curve("R - T", when, to_t)]
    panels = [
        over_time("results, and partial ones without S", partial, "tuples", marks=marks),
        over_time("the edge that tuples of R take first", taken, "tuples of R", marks=marks),
    ]
    return Outcome(panels, figures)


def interactive(settings: Settings) -> Outcome:
    """Run figure 8's query for a user who wants A most, then B, and half-way through A wants C most, then B.

    The paper's policy routes for the most benefit per second. Tuples that the user prefers are bounced to
    the index even though the scan would find them, ahead of all others (section 4.1, SteM BounceBack).
    Interests are graded, and change with what is seen (section 1.2).
    """
    tuples, rate = settings["tuples"], {"R": 200.0, "T": 17.0}
    tables = dict(zip("RT", keyed(np.random.default_rng(settings.seed), tuples, tuples), strict=True))
    spec = block(tables, "R.key = T.key", all_columns=True)
    size = round(settings["preferred"] * tuples)
    groups = {name: range(size * place, size * (place + 1)) for place, name in enumerate("ABC")}
    moment = tuples / rate["R"] + size / 2 * settings["lookup"]

    def within(keys: range) -> Predicate:
        key = Column(ColumnRef("R", "key"))
        low, high = Literal(keys.start, INT), Literal(keys.stop, INT)
        return And((Compare(">=", key, low, INT), Compare("<", key, high, INT)))

    def wishes(names: str) -> list[Predicate]:
        return [within(groups[name]) for name in names if not settings.ablated]

    def side(first: str, later: str) -> Timed:
        clock, wants = VirtualClock(), first

        def look(eddy: Started) -> None:
            nonlocal wants
            if clock.now() >= moment and wants != later:
                wants = later
                eddy.prefer(wishes(wants))

        scans = {alias: scan(alias, tables[alias], clock, rate[alias]) for alias in "RT"}
        index = RemoteIndex(["key"], tables["T"], clock, settings["lookup"])
        access = {"R": [scans["R"]], "T": [index, scans["T"]]}
        return timed(
            spec,
            clock,
            access,
            on_batch=look,
            prefer=wishes(first),
            policy="interactive",
            seed=settings.seed,
        )

    plain, steady, changed = side("", ""), side("AB", "AB"), side("AB", "CB")
    check(tuples, plain, steady, changed)

    def waited(run: Timed, name: str) -> float:
        """Return how long after the moment results came on the average, of those that came later."""
        late = run.of(groups[name]).times - moment
        return float(late[late > 0].mean())

    mean = {name: steady.of(groups[name]).times.mean() for name in "AB"}
    last = {
        "A": steady.of(groups["A"]).times[-1] - tuples / rate["R"],
        "C": changed.of(groups["C"]).times[-1] - moment,
    }
    figures = {
        "mean_ratio": mean["A"] / plain.of(groups["A"]).times.mean(),
        "a_over_b": mean["A"] / mean["B"],
        "c_over_unchanged": waited(changed, "C") / waited(steady, "C"),
        "c_over_b": waited(changed, "C") / waited(changed, "B"),
        "last_over_soonest": max(last.values()) / (size * settings["lookup"]),
        "end_ratio": max(steady.seconds, changed.seconds) / plain.seconds,
        "lookups_ratio": max(len(steady.answered), len(changed.answered)) / len(plain.answered),
    }
    shown = {"no preference": plain, "A, then B": steady, "A, then B; half-way through A: C, then B": changed}
    panels = [
        over_time(title, [run.of(keys).curve(n) for n, keys in groups.items()], marks=[(moment, "half of A")])
        for title, run in shown.items()
    ]
    return Outcome(panels, figures)


ALGORITHMS = {
    "shj": "symmetric hash join",
    "hybrid": "hybrid hash join",
    "grace": "Grace hash join",
    "sort_merge": "sort-merge join",
}


def algorithms(settings: Settings) -> Outcome:
    """Run R.a = S.x by four algorithms, all of them the same eddy over SteMs with memory for a quarter of it.

    Which algorithm it is depends on how tuples are clustered before they probe. Only reading takes time. Tuples
    are clustered in front of the SteMs here; the paper's SteMs bounce them back partition by partition, which
    comes to the same order of builds and probes.
    """
    draw, tuples, size = np.random.default_rng(settings.seed), settings["tuples"], 64
    keys = {alias: draw.integers(0, tuples, times * tuples) for alias, times in (("R", 1), ("S", 2))}
    tables = {
        alias: pa.table({"key": range(len(drawn)), name: drawn})
        for (alias, drawn), name in zip(keys.items(), "ax", strict=True)
    }
    spec = block(tables, "R.a = S.x", all_columns=True)
    rows = int(np.multiply(*(np.bincount(drawn, minlength=tuples) for drawn in keys.values())).sum())

    def source(table: pa.Table, clock: VirtualClock) -> Iterator[pa.RecordBatch]:
        for batch in batches(table, size):
            clock.advance(batch.num_rows)
            yield batch

    written, first, early, in_order = ({} for _ in range(4))
    answers = []
    for name in ALGORITHMS:
        clock, algorithm = VirtualClock(), settings.ablated or name
        sources = {alias: source(table, clock) for alias, table in tables.items()}
        options = {"algorithm": algorithm, "online": algorithm == "shj", "memory_budget": 25 * tuples}
        eddy = SpillingEddy(spec, sources, Options(batch_size=size, **options), clock=clock)
        found = [(clock.now(), batch) for batch in eddy.run()]
        came = np.repeat([when for when, _ in found], [batch.num_rows for _, batch in found]) / (3 * tuples)
        table = pa.Table.from_batches([batch for _, batch in found], spec.output_schema)
        answers.append(table.sort_by([(column, "ascending") for column in table.column_names]))
        if len(came) != rows or answers[-1] != answers[0]:
            raise ExecutionError(f"the {ALGORITHMS[name]} found {len(came)} rows, expected {rows}")
        written[name], first[name], early[name] = eddy.tally.bytes_written / 1e6, came[0], (came < 1).mean()
        # Between the place of a result and its key: 1 if results come by key, about 0 if not.
        in_order[name] = np.corrcoef(np.arange(rows), table["R_a"].to_numpy())[0, 1]
    figures = {
        "shj_first": first["shj"],
        "hybrid_early": early["hybrid"],
        "others_early": max(early["grace"], early["sort_merge"]),
        "hybrid_over_grace_written": written["hybrid"] / written["grace"],
        "merge_order": in_order["sort_merge"],
    }
    bars = {"Results before all tuples are read": ("share of results", early), "To disk": ("MB", written)}
    panels = [
        Panel.bars(title, label, dict(zip(ALGORITHMS.values(), values.values(), strict=True)))
        for title, (label, values) in bars.items()
    ]
    return Outcome(panels, figures)


def unbuilt(settings: Settings) -> Outcome:
    """Run R.a = S.a, S.b = T.b with a SteM on S, which is far larger than the others, and without one.

    Section 3.5 relaxes BuildFirst. A tuple of S may have to come back to a SteM that is not complete; its
    LastMatchTimeStamp sees to it that it meets nothing twice. An insertion, a probe and a match take the
    same time.
    """
    random, small, size = np.random.default_rng(settings.seed), settings["small"], 100
    a, b = random.integers(0, small, (2, settings["large"]))
    r, t = random.permutation(small), random.permutation(small)
    data = {"R": pa.table({"a": r}), "S": pa.table({"a": a, "b": b}), "T": pa.table({"b": t})}
    spec = block(data, "R.a = S.a", "S.b = T.b")
    probes = dict.fromkeys([("probe", number) for number in range(3)], MICRO)
    costs = Costs({**probes, **{("build", number): MICRO for number in range(3)}}, probes)
    options = Options(architecture="stems", batch_size=size, transfer=False, seed=settings.seed)
    # As many tuples of S come while the others do as of these together.
    weights, s = (1.0, 2.0, 1.0), None if settings.ablated else 1
    schedules = {
        "a SteM each": Schedule(None, True, (0, 1, 2), weights),
        "S has none": Schedule(s, True, (0, 1, 2), weights),
        "S has none, and comes last": Schedule(s, False, (0, 2, 1)),
    }
    ran = {}
    for name, schedule in schedules.items():
        clock, sources = VirtualClock(costs=costs), all_batches(data, size)
        # Each tuple of S has one match in R and one in T: another number of rows is an error.
        ran[name] = run(spec, sources, options, clock=clock, schedule=schedule, rows=len(a))
    stored = {name: sum(each.tuples for each in one.figures.state) for name, one in ran.items()}
    seconds = {name: one.seconds for name, one in ran.items()}
    first, among, last = ran
    figures = {
        "stored_over_small": stored[among] / (2 * small),
        "stored_ratio": stored[first] / stored[among],
        "time_ratio": seconds[among] / seconds[first],
        "time_ratio_last": seconds[last] / seconds[first],
    }
    panels = [
        Panel.bars("Tuples in SteMs at the end", "tuples", stored),
        Panel.bars("Work", "seconds of the virtual clock", seconds),
    ]
    return Outcome(panels, figures)


LOOKUP = Parameter("lookup", 0.2, 0.0001, 100.0, "s", "that a lookup in T takes; one at a time")
TUPLES = Parameter("tuples", 1_000, 50, 100_000, "tuples", "in R and in T, one for each key")
FIGURES = (
    Figure(
        "stems-fig7",
        "An index join without head-of-line blocking",
        f"{PAPER}, section 4.2, figure 7",
        "SteMs and the index join send the same probes to the remote source and end at the same time. "
        "With SteMs results come almost linearly; the index join's curve is parabolic, for tuples whose "
        "match is in the cache wait behind tuples whose match is not.",
        fig7,
        claims=(
            # Almost identical: a few lookups begin later, where R has not brought the next value yet.
            Claim("both send the same probes to S", "probes_apart", high=0.03, paper="almost identical"),
            # The same lookups one after the other, and R's first tuple.
            Claim("both end at the same time", "end_ratio", 0.98, 1.02, "about the same time"),
            # The first half of 1,000 tuples has 1 - exp(-2) = 86 % of the 250 values.
            Claim("the index join's curve is parabolic", "half_join", 0.8, 1, "parabolic", "swapped"),
            # A straight line needs 50 %.
            Claim("with SteMs half of the results come early", "half_stems", 0, 0.6, "early", "swapped"),
            # Values that occur often tend to come early, which bends the line a little.
            Claim("with SteMs results come linearly", "bend", 0, 0.15, "almost linear", "swapped"),
            # In answers of the most frequent value: less than one.
            Claim("SteMs are never behind the index join", "behind", 0, 0.9, "ahead", "swapped"),
        ),
        parameters=(
            Parameter("tuples", 1_000, 50, 100_000, "tuples", "in R"),
            Parameter("values", 250, 10, 10_000, "values", "of R.a, keys of S"),
            Parameter("lookup", 1.0, 0.001, 100.0, "s", "that a lookup in S takes; one at a time"),
        ),
        broken={"swapped": "SteMs stand for the index join, and the index join for SteMs"},
        small={"tuples": 200, "values": 50},
        seconds=2,
    ),
    Figure(
        "stems-fig8",
        "An index join that turns into a hash join",
        f"{PAPER}, section 4.3, figure 8",
        "With an index and a scan on T the eddy is never behind the better of index join and hash join. "
        "It is above both where both bring results: the index returns tuples that the scan has not, and "
        "is not asked for those that it has. The paper's hybrid ends slightly after the hash join, for it"
        " goes on to explore the index; here nothing is explored.",
        fig8,
        claims=(
            Claim("the index join is ahead at first", "crossing_share", 0.02, 0.5, "in the first seconds"),
            # A fifth is clear of noise.
            Claim("and behind in the end", "index_join_over_hash_join", 1.2, paper="about 2, read off"),
            # Of all results: a lookup is under way, and at the end one is made for what the scan returns.
            Claim("the hybrid is as good as the better", "most_behind", 0, 0.03, "tracks it", "index-alone"),
            # A lookup in twenty.
            Claim("at first it asks the index", "early_share", 0.95, paper="for most", fails="scan-alone"),
            Claim("few lookups are redundant", "redundant", 0, 0.1, "almost none", "index-alone"),
            Claim("no lookup begins after the scan", "late_lookups", 0, 0, "a small share", "index-alone"),
            # Slightly: a twentieth.
            Claim("it ends with the hash join", "end_over_hash_join", 0, 1.05, "just after", "index-alone"),
        ),
        parameters=(
            TUPLES,
            LOOKUP,
            Parameter("rate_r", 10.0, 0.01, 1e6, "tuples/s", "of the scan of R"),
            Parameter("rate_t", 17.0, 0.01, 1e6, "tuples/s", "of the scan of T, which ends at about 59 s"),
        ),
        broken={
            "scan-alone": "SteMs have no index: tuples of R wait for the scan of T",
            "index-alone": "SteMs have no scan: every tuple of R asks the index",
        },
        small={"tuples": 120},
        seconds=3,
    ),
    Figure(
        "stems-competition",
        "Access methods that compete",
        f"{PAPER}, sections 3.2, 3.3 and 4 (second of the salient points)",
        "When one of two access methods on a table stalls, the query goes on with the other one, a scan "
        "or an index. They share the SteM, so no result comes twice and almost no work is done twice.",
        competition,
        claims=(
            Claim(
                "what both scans return is built once and probes once", "built_twice", 0, 0, "", "own-stems"
            ),
            Claim("with two scans results come as from the fast one until it stalls", "behind_fast", 0, 0),
            # The slow scan has to return its last tuple.
            Claim("with two scans the run ends with the slow one", "end_over_slow", 0, 1.01, "", "alone"),
            # The index has half of T to bring at most, and a lookup is under way.
            Claim("with an index, in half of its time", "wait_over_half_index", 0, 1.1, fails="alone"),
            Claim("few lookups are redundant", "redundant", 0, 0.1, "almost none", "alone"),
        ),
        parameters=(
            Parameter("tuples", 500, 20, 100_000, "tuples", "in R and in T, one for each key"),
            Parameter("fast", 10.0, 0.01, 1e6, "tuples/s", "of the scan of T that stalls"),
            Parameter("slow", 4.0, 0.01, 1e6, "tuples/s", "of the other scan of T"),
            Parameter("lookup", 0.4, 0.0001, 100.0, "s", "that a lookup in T takes; one at a time"),
            Parameter("stall", 400.0, 0.0, 1e6, "s", "for which the fast scan stalls after half of T"),
        ),
        broken={
            "alone": "the first of two access methods is the only one",
            "own-stems": "tuples of T say which scan returned them, so that a SteM keeps those of each",
        },
        small={"tuples": 40},
        seconds=2,
    ),
    Figure(
        "stems-spanning-tree",
        "A spanning tree that changes while a source stalls",
        f"{PAPER}, section 3.4 and section 4 (third of the salient points)",
        "All three predicates of a triangle are join predicates, and the eddy picks the spanning tree for"
        " each tuple. While S stalls, tuples of R are joined with T, partial results go on, and the final"
        " answer is exact. A plan with the tree R - S - T would stall as a whole.",
        spanning_tree,
        claims=(
            # Of what tuples of R that come during the stall join to in T: as large a share as of tuples that
            # take that edge, at least a half, less 0.15, the spread over 20 seeds at an eighth of the size.
            Claim("while S stalls, partial results go on", "partial_share", 0.35, fails="one-tree"),
            # All but a decision of 32 tuples or two, of 144.
            Claim("while S has more tuples than T, R goes to S first", "first_s_before", 0.7),
            # Most of them: decisions that prefer S hardly see T, and find out late that T has caught up.
            Claim("and to T as soon as T has more", "first_t_after", 0.5, fails="one-tree"),
        ),
        parameters=(
            Parameter("tuples", 1_000, 600, 20_000, "tuples", "in each table"),
            Parameter("values", 100, 5, 10_000, "values", "of each column"),
            Parameter("before", 400, 300, 20_000, "tuples", "of S come before it stalls"),
            Parameter("stall", 60.0, 0.0, 1e6, "s", "for which it stalls"),
        ),
        broken={"one-tree": "R - S - T is the spanning tree, and the third predicate a filter behind it"},
        seconds=4,
    ),
    Figure(
        "stems-interactive",
        "Results that the user wants first",
        f"{PAPER}, sections 1.2, 4.1 and 4 (fifth of the salient points)",
        "Tuples that the user prefers are bounced to the index: their results come first, those that are "
        "wanted more before those that are wanted less. Interests change half-way, and what is wanted now"
        " comes next. All results take about as long as without a preference.",
        interactive,
        claims=(
            # The index answers them alone at first, for a third of the time of T's scan: a sixth on the
            # average, after R's scan.
            Claim("preferred results come first", "mean_ratio", 0, 0.6, "", "indifferent"),
            # Each group takes 20 s of the index, after 5 s of R's scan: means of 15 s and 35 s, less what
            # T's scan finds of the second group meanwhile.
            Claim("what is wanted most comes first", "a_over_b", 0, 0.7, "", "indifferent"),
            # The index takes 20 s, so 10 s on the average, and the scan returns it in 44 s, so 22 s.
            Claim("what is wanted from now on comes soon", "c_over_unchanged", 0, 0.6, "", "indifferent"),
            # 10 s against 30 s, less what T's scan finds meanwhile of the group that waits.
            Claim("and before what is wanted less", "c_over_b", 0, 0.75, "", "indifferent"),
            # R's scan and one lookup after the other; one in twenty may be under way.
            Claim("all of it as soon as the index can", "last_over_soonest", 0, 1.05, "", "indifferent"),
            Claim("the total time is hardly longer", "end_ratio", 0, 1.1),
            # Preferred tuples ask in any case, others only when that pays.
            Claim("about as many lookups are made", "lookups_ratio", 0, 1.1),
        ),
        parameters=(
            TUPLES,
            LOOKUP,
            Parameter("preferred", 0.1, 0.01, 0.3, "", "share of R in each of three groups"),
        ),
        broken={"indifferent": "the user's preferences are not heard"},
        small={"tuples": 300},
        seconds=3,
    ),
    Figure(
        "stems-join-algorithms",
        "Four join algorithms from the same SteMs",
        f"{PAPER}, section 3.1 (Simulating and Hybridizing Non-Pipelined Join Algorithms)",
        "Routed through the same SteMs, the join is a symmetric hash join, a hybrid hash join, a Grace "
        "hash join or a sort-merge join, by how tuples are clustered before they probe: the same answer, "
        "and each algorithm's own pattern of input, output and results.",
        algorithms,
        claims=(
            # Of the time of reading: 64 tuples of each side come and go together.
            Claim("the symmetric hash join returns results at once", "shj_first", 0, 0.1, "", "grace"),
            # What a memory of a quarter of the tables keeps joins at once.
            Claim("hybrid hash returns some while it reads", "hybrid_early", 0.1, 0.9, "", "grace"),
            Claim("Grace and sort-merge return none", "others_early", 0, 0),
            # A tenth of the partitions at least; buffers and file headers are in the noise.
            Claim("hybrid writes less than Grace", "hybrid_over_grace_written", 0.1, 0.9, "", "grace"),
            # With k ranges the correlation is 1 - 1/k², and at least three are needed here.
            Claim("sort-merge returns results by key", "merge_order", 0.85, fails="grace"),
        ),
        parameters=(
            Parameter("tuples", 8_000, 1_000, 1_000_000, "tuples", "in R, and keys; S has twice as many"),
        ),
        broken={"grace": "every run is a Grace hash join"},
        small={"tuples": 2_000},
        seconds=2,
    ),
    Figure(
        "stems-unbuilt",
        "A large relation without a SteM",
        f"{PAPER}, section 3.5 and Table 2 (BuildFirst, LastMatchTimeStamp)",
        "Where one table is much larger than the others, and only scanned, its tuples can probe the "
        "others' SteMs without being built into one of their own. They may come before the others are "
        "complete: they come back, and meet nothing twice.",
        unbuilt,
        claims=(
            Claim("nothing of S is stored", "stored_over_small", 0, 1, "", "built"),
            # S has ten times the tuples of the others together: 11 by arithmetic.
            Claim("which is most of what SteMs on all would take", "stored_ratio", 10, fails="built"),
            # A tuple of S is not inserted, probes twice and has two matches: four operations, not five.
            Claim("after the others it is less work", "time_ratio_last", 0, 0.85, "might be better", "built"),
        ),
        parameters=(
            Parameter("large", 100_000, 1_000, 10_000_000, "tuples", "of S"),
            Parameter("small", 5_000, 100, 1_000_000, "tuples", "of R and of T, one for each key"),
        ),
        broken={"built": "S has a SteM in every run"},
        small={"large": 20_000, "small": 1_000},
        seconds=2,
    ),
)
