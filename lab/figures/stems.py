"""Raman, Deshpande & Hellerstein 2003, *SteMs*: figures 7 and 8, and claims that the paper has no figure for.

The data sources are those of table 3. A scan returns a tuple at a time; an index answers one lookup after
the other, after a sleep "of identical duration". Everything else takes no time: in the paper's experiments
sources took minutes. The eddy routes tuple by tuple, as the paper's did, so each result has its own time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from lab.access import PacedScan
from lab.figures.engine import Array, Ran, RemoteIndex, batches, run
from lab.figures.figure import Curve, Outcome, Panel, Parameter, Settings, figure
from lab.joins import block
from millrace.engine.access.modules import IndexAM, ScanAM
from millrace.engine.eddy.output import Output
from millrace.engine.eddy.preference import Wanted, prefer
from millrace.engine.eddy.run import Run
from millrace.engine.plan.expressions import And, Column, ColumnRef, Compare, Literal, Predicate
from millrace.engine.plan.spec import JoinSpec
from millrace.engine.spill.spilling import SpillingEddy
from millrace.errors import ExecutionError
from millrace.limits.clock import VirtualClock
from millrace.options import Options

INT = pa.int64()
LOOKUP = Parameter("lookup", 0.2, 0.0001, 100.0, "s", "that a lookup in T takes; one at a time")
TUPLES = Parameter("tuples", 1_000, 50, 100_000, "tuples", "in R and in T, one for each key")
PAPER = "Raman, Deshpande & Hellerstein 2003"

Way = Callable[[VirtualClock], ScanAM | IndexAM]
"""Makes an access module for one run."""


def scan(alias: str, table: pa.Table, rate: float, **more: Any) -> Way:
    """Return a scan of so many tuples a second, one at a time."""
    return lambda clock: PacedScan(alias, batches(table, 1), clock, every=1 / rate, **more)


def index(column: str, table: pa.Table, lookup: float, budget: int | None = None) -> Way:
    """Return an index whose lookups take so many seconds; it answers so many, None for all."""
    return lambda clock: RemoteIndex([column], table, clock, lookup, budget)


def keyed(draw: np.random.Generator, tuples: int) -> dict[str, pa.Table]:
    """Return R and T of so many tuples with a ``key`` in random order."""
    return {alias: pa.table({"key": draw.permutation(tuples)}) for alias in "RT"}


def timed(
    spec: JoinSpec,
    access: Mapping[str, Sequence[Way]],
    *,
    wanted: Wanted = None,
    look: Callable[[Run, float], None] | None = None,
    **options: Any,
) -> Ran:
    """Run a block over each relation's access modules, by default tuple by tuple.

    After each batch of results ``look`` sees the run and the time.
    """
    clock = VirtualClock()
    made = {alias: [way(clock) for way in ways] for alias, ways in access.items()}

    def see(eddy: Run) -> None:
        if look is not None:
            look(eddy, clock.now())

    given, output = Options(**{"batch_size": 1, **options}), Output(spec, 1)
    return run(spec, {}, given, clock=clock, access=made, output=output, wanted=wanted, on_batch=see)


def times_of(run: Ran, keys: range) -> Array:
    """Return when results came whose ``R.key`` is in a range."""
    assert run.table is not None
    found = run.table["R_key"].to_numpy()
    return np.asarray(run.times[(found >= keys.start) & (found < keys.stop)])


def check(rows: int, *runs: Ran) -> None:
    """Raise ExecutionError unless all runs have so many results, and the same ones."""
    if any(run.rows != rows or run.answer != runs[0].answer for run in runs):
        raise ExecutionError(f"runs found {[run.rows for run in runs]} rows, expected the same {rows}")


def over_time(title: str, curves: Sequence[Curve], label: str = "results", **more: Any) -> Panel:
    """Return a panel of what had come by when."""
    return Panel(title, "time (s)", label, curves, kind="steps", **more)


def results(title: str, runs: Mapping[str, Ran], static: Sequence[str], **more: Any) -> Panel:
    """Return a panel of the results of some runs, of which static plans are named."""
    return over_time(title, [run.curve(name) for name, run in runs.items()], static=static, **more)


def redundant(run: Ran, t: pa.Table, rate: float) -> float:
    """Return the share of lookups that returned what the scan of T had; no number where there are none.

    The lookup under way when the scan returns its key, and the next one, are chosen too early to count.
    """
    scanned = {key: (place + 1) / rate for place, key in enumerate(t["key"].to_pylist())}
    late = sum(when > scanned.get(key, np.inf) for when, key in run.answered)
    return max(0, late - 2) / len(run.answered) if run.answered else np.nan


@figure(
    "stems-fig7",
    f"{PAPER}, section 4.2, figure 7",
    """
    # A few lookups begin later, where R has not brought the next value yet.
    probes_apart ≤ 0.03 | both send the same probes to S | almost identical
    # The same lookups one after the other, and R's first tuple.
    0.98 ≤ end_ratio ≤ 1.02 | both end at the same time | about the same time
    # The first half of 1,000 tuples has 1 - exp(-2) = 86 % of the 250 values.
    0.8 ≤ half_join ≤ 1 | the index join's curve is parabolic | parabolic | swapped
    # A straight line needs 50 %.
    0 ≤ half_stems ≤ 0.6 | with SteMs half of the results come early | early | swapped
    # Values that occur often tend to come early, which bends the line a little.
    0 ≤ bend ≤ 0.15 | with SteMs results come linearly | almost linear | swapped
    # In answers of the most frequent value: less than one.
    0 ≤ behind ≤ 0.9 | SteMs are never behind the index join | ahead | swapped
    """,
    parameters=(
        Parameter("tuples", 1_000, 50, 100_000, "tuples", "in R"),
        Parameter("values", 250, 10, 10_000, "values", "of R.a, keys of S"),
        Parameter("lookup", 1.0, 0.001, 100.0, "s", "that a lookup in S takes; one at a time"),
    ),
    broken={"swapped": "SteMs stand for the index join, and the index join for SteMs"},
    small={"tuples": 200, "values": 50},
)
def fig7(settings: Settings) -> Outcome:
    """An index join without head-of-line blocking.

    Both send the same probes to the remote source and end at the same time. With SteMs results come almost
    linearly; the index join's curve is parabolic, for tuples whose match is in the cache wait behind tuples
    whose match is not.

    R.a = S.x is run by an index join and over SteMs. S can only be asked, for the 250 values of ``a`` in the
    order in which R brings them.
    """
    draw = np.random.default_rng(settings.seed)
    tuples, values = settings["tuples"], settings["values"]
    a = draw.permutation(np.concatenate([np.arange(values), draw.integers(0, values, tuples - values)]))
    r = pa.table({"key": draw.permutation(tuples), "a": a})
    s = pa.table({"x": range(values), "y": range(values)})
    spec = block({"R": r, "S": s}, "R.a = S.x", all_columns=True)
    access = {"R": [scan("R", r, 500.0)], "S": [index("x", s, settings["lookup"])]}
    sides = ("stems", "joins") if settings.ablated else ("joins", "stems")
    join, stems = (timed(spec, access, architecture=side) for side in sides)
    check(tuples, join, stems)
    runs = {"index join": join, "SteMs": stems}
    probes = {name: np.array([when for when, _ in run.answered]) for name, run in runs.items()}
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
    asked = over_time("(ii) probes into S", curves, "lookups answered", static=["index join"])
    return Outcome([results("(i) results", runs, ["index join"]), asked], figures)


@figure(
    "stems-fig8",
    f"{PAPER}, section 4.3, figure 8",
    """
    0.02 ≤ crossing_share ≤ 0.5 | the index join is ahead at first | in the first seconds
    # A fifth is clear of noise.
    1.2 ≤ index_join_over_hash_join | and behind in the end | about 2, read off
    # Of all results: a lookup is under way, and at the end one is made for what the scan returns.
    0 ≤ most_behind ≤ 0.03 | the hybrid is as good as the better | tracks it | index-alone
    # A lookup in twenty.
    0.95 ≤ early_share | at first it asks the index | for most | scan-alone
    0 ≤ redundant ≤ 0.1 | few lookups are redundant | almost none | index-alone
    late_lookups = 0 | no lookup begins after the scan | a small share | index-alone
    # Slightly: a twentieth.
    0 ≤ end_over_hash_join ≤ 1.05 | it ends with the hash join | just after | index-alone
    """,
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
)
def fig8(settings: Settings) -> Outcome:
    """An index join that turns into a hash join.

    With an index and a scan on T the eddy is never behind the better of index join and hash join. It is above
    both where both bring results: the index returns tuples that the scan has not, and is not asked for those
    that it has. The paper's hybrid ends slightly after the hash join, for it goes on to explore the index;
    here nothing is explored.

    The query is R.key = T.key. The scan of T is faster, but returns T in random order. With both, the SteM
    bounces tuples of R back, and the eddy asks the index for those whose answer it expects before the scan's.
    It does not know how large T is: what the scan will return by when is learned from its pace.
    """
    tuples, lookup, rate = settings["tuples"], settings["lookup"], settings["rate_t"]
    tables = keyed(np.random.default_rng(settings.seed), tuples)
    spec = block(tables, "R.key = T.key", all_columns=True, rows={"T": None})
    r, t = scan("R", tables["R"], settings["rate_r"]), scan("T", tables["T"], rate)
    asked = index("key", tables["T"], lookup)
    joined, hashed = (timed(spec, {"R": [r], "T": [way]}) for way in (asked, t))
    kept = {"scan-alone": [t], "index-alone": [asked]}.get(settings.ablated, [asked, t])
    hybrid = timed(spec, {"R": [r], "T": kept})
    check(tuples, joined, hashed, hybrid)

    moments = np.linspace(0, hybrid.seconds, 1000)
    by_index, by_hash, by_both = (run.count(moments) for run in (joined, hashed, hybrid))
    crossing, scan_end = moments[np.flatnonzero(by_index > by_hash)[-1]], tuples / rate
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
    first, static = np.linspace(0, 1.2 * crossing, 500), ("index join", "hash join")
    start = [Curve(name, first, run.count(first)) for name, run in runs.items()]
    whole = results("(ii) the whole run", runs, static, marks=[(scan_end, "end of T's scan")])
    return Outcome([over_time("(i) the beginning", start, static=static), whole], figures)


@figure(
    "stems-competition",
    f"{PAPER}, sections 3.2, 3.3 and 4 (second of the salient points)",
    """
    built_twice = 0 | what two scans return is built and probes once | | own-stems
    behind_fast = 0 | results come as from the fast scan until it stalls
    # The slow scan has to return its last tuple.
    0 ≤ end_over_slow ≤ 1.01 | then the run ends with the slow one | | alone
    # The index has half of T to bring at most, and a lookup is under way.
    0 ≤ wait_over_half_index ≤ 1.1 | with an index, in half of its time | | alone
    0 ≤ redundant ≤ 0.1 | few lookups are redundant | almost none | alone
    """,
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
)
def competition(settings: Settings) -> Outcome:
    """Access methods that compete.

    When one of two access methods on a table stalls, the query goes on with the other one, a scan or an
    index. They share the SteM, so no result comes twice and almost no work is done twice.

    The query is R.key = T.key. T has a scan that stalls half-way, and a slower scan or an index besides.
    Duplicates end as they are built, and the index is not asked for what a scan has returned.
    """
    draw = np.random.default_rng(settings.seed)
    tuples, broken, rate, stall = settings["tuples"], settings.ablated, settings["fast"], settings["stall"]
    tables = keyed(draw, tuples)
    copy = tables["T"]
    if broken == "own-stems":  # no tuple of one scan is identical to one of the other, so the SteM keeps both
        tables["T"], copy = (copy.append_column("scan", pa.array([n] * tuples, INT)) for n in (1, 2))
    spec = block(tables, "R.key = T.key", all_columns=True)
    r = scan("R", tables["R"], 100.0)
    first = scan("T, fast", tables["T"], rate, stall=(tuples // 2, stall))
    second = scan("T, slow", copy.take(draw.permutation(tuples)), settings["slow"])
    asked = index("key", tables["T"], settings["lookup"])

    def side(*ways: Way) -> Ran:
        return timed(spec, {"R": [r], "T": ways[:1] if broken == "alone" else ways})

    fast, slow, lookups = side(first), side(second), side(asked)
    scans, both = side(first, second), side(first, asked)
    if broken != "own-stems":
        check(tuples, fast, slow, lookups, scans, both)
    stalls = tuples // 2 / rate
    early = np.linspace(0, stalls, 200)
    modules = {(module.name, module.action): module.tuples_in for module in scans.figures.modules}
    (built,) = (state.inserted for state in scans.figures.state if state.name == "SteM(T)")
    figures = {
        "redundant": redundant(both, tables["T"].slice(0, tuples // 2), rate),
        "built_twice": max(built, modules["SteM(R)", "probe"]) / tuples - 1,
        "behind_fast": max(0, (fast.count(early) - scans.count(early)).max()) / tuples,
        "end_over_slow": scans.seconds / slow.seconds,
        "wait_over_half_index": (both.times[-1] - stalls) / (tuples / 2 * settings["lookup"]),
    }
    marks = ((stalls, "the fast scan stalls"), (stalls + stall, "and goes on"))
    shown = {
        "two scans": {"fast scan alone": fast, "slow scan alone": slow, "two scans": scans},
        "a scan and an index": {"fast scan alone": fast, "index alone": lookups, "scan and index": both},
    }
    panels = [results(title, runs, list(runs)[:2], marks=marks) for title, runs in shown.items()]
    return Outcome(panels, figures)


@figure(
    "stems-budget",
    f"{PAPER}, section 4.3, with a budget, of which the paper says nothing",
    """
    # A lookup saves what the scan has left, which falls to nothing in a straight line: 3/4, and lookups that
    # the scan makes needless.
    0.65 ≤ saved_by_half ≤ 0.85 | half of the lookups save three quarters of the waiting | | spread
    # The same line: 1 - (3/4)², less what the first lookups took.
    0.3 ≤ saved_by_quarter ≤ 0.5 | a quarter of them saves about two fifths | | spread
    over_budget = 0 | no lookup is made beyond the budget
    # The scan returns what nobody asks for; a lookup may be under way.
    0 ≤ end_ratio ≤ 1.02 | the run ends as with all lookups
    """,
    parameters=(
        TUPLES,
        LOOKUP,
        Parameter("rate_r", 100.0, 0.01, 1e6, "tuples/s", "of the scan of R"),
        Parameter("rate_t", 17.0, 0.01, 1e6, "tuples/s", "of the scan of T, which ends at about 59 s"),
    ),
    broken={"spread": "as many lookups, spread over the run: an index that is slower by so much"},
    small={"tuples": 240},
)
def spending(settings: Settings) -> Outcome:
    """Lookups that cost money, beside a scan that costs none.

    What a lookup saves is what the scan still needs for the same tuple, half of its rest on the average. So
    the first lookups save most, and a budget that ends asking early keeps most of what lookups are good for.
    The answer is whole: the scan returns the rest.

    The query is that of figure 8, and budgets are shares of the lookups that are made without one.
    """
    tuples, lookup = settings["tuples"], settings["lookup"]
    tables = keyed(np.random.default_rng(settings.seed), tuples)
    spec = block(tables, "R.key = T.key", all_columns=True)
    r, t = scan("R", tables["R"], settings["rate_r"]), scan("T", tables["T"], settings["rate_t"])

    def side(*ways: Way) -> Ran:
        return timed(spec, {"R": [r], "T": [*ways, t]})

    none, whole = side(), side(index("key", tables["T"], lookup))
    runs, shares = {0.0: none}, (1 / 8, 1 / 4, 1 / 2, 3 / 4)
    for share in shares:
        most = round(share * len(whole.answered))
        slow = index("key", tables["T"], lookup / share)
        runs[share] = side(slow if settings.ablated else index("key", tables["T"], lookup, most))
    runs[1.0] = whole
    check(tuples, *runs.values())
    waits = {share: float(run.times.mean()) for share, run in runs.items()}
    saved = {share: (waits[0.0] - wait) / (waits[0.0] - waits[1.0]) for share, wait in waits.items()}
    figures = {
        "saved_by_half": saved[1 / 2],
        "saved_by_quarter": saved[1 / 4],
        "over_budget": max(len(runs[s].answered) - round(s * len(whole.answered)) for s in shares),
        "end_ratio": max(run.seconds for run in runs.values()) / whole.seconds,
    }
    asked = [len(run.answered) for run in runs.values()]
    mean = [Curve("SteMs", asked, [*waits.values()])]
    bought = Panel("what lookups buy", "lookups", "mean time of a result (s)", mean)
    named = {f"{share:.0%} of the lookups": run for share, run in runs.items()}
    return Outcome([results("results", named, ["0% of the lookups"]), bought], figures)


@figure(
    "stems-spanning-tree",
    f"{PAPER}, section 3.4 and section 4 (third of the salient points)",
    """
    # Of what R's tuples of the stall join to in T: as large a share as takes that edge, at least a
    # half, less 0.15, the spread over 20 seeds at an eighth of the size.
    0.35 ≤ partial_share | while S stalls, partial results go on | | one-tree
    # All but a decision of 32 tuples or two, of 144.
    0.7 ≤ first_s_before | while S has more tuples than T, R goes to S first
    # Most: decisions that prefer S hardly see T, and find out late that T has caught up.
    0.5 ≤ first_t_after | and to T as soon as T has more | | one-tree
    """,
    parameters=(
        Parameter("tuples", 1_000, 600, 20_000, "tuples", "in each table"),
        Parameter("values", 100, 5, 10_000, "values", "of each column"),
        Parameter("before", 400, 300, 20_000, "tuples", "of S come before it stalls"),
        Parameter("stall", 60.0, 0.0, 1e6, "s", "for which it stalls"),
    ),
    broken={"one-tree": "R - S - T is the spanning tree, and the third predicate a filter behind it"},
)
def spanning_tree(settings: Settings) -> Outcome:
    """A spanning tree that changes while a source stalls.

    The eddy picks the spanning tree of a triangle for each tuple. While S stalls, tuples of R are joined with
    T, and partial results go on. A plan with the tree R - S - T would stall as a whole.

    The query is R.a = S.x, S.y = T.b and R.c = T.c. The eddy picks by the paper's own policy (section 4.1):
    most partial results per second.
    """
    draw = np.random.default_rng(settings.seed)
    tuples, before, rate, rate_s = settings["tuples"], settings["before"], 20.0, 40.0
    columns = {"R": ("key", "a", "c"), "S": ("x", "y"), "T": ("b", "c")}
    drawn = {a: draw.integers(0, settings["values"], (len(names), tuples)) for a, names in columns.items()}
    drawn["R"][0] = range(tuples)
    tables = {a: pa.table([*rows], columns[a]) for a, rows in drawn.items()}
    spec = block(tables, "R.a = S.x", "S.y = T.b", "R.c = T.c", all_columns=True)
    if settings.ablated:  # the third predicate is a filter behind the tree R - S - T
        *tree, third = spec.equalities
        behind = Compare("=", Column(third.left), Column(third.right), INT)
        spec = replace(spec, equalities=tuple(tree), residuals=(behind,))

    begins, caught_up, scanned = before / rate_s, before / rate, tuples / rate
    ends = begins + settings["stall"]
    access = {alias: [scan(alias, tables[alias], rate)] for alias in "RT"}
    access["S"] = [scan("S", tables["S"], rate_s, stall=(before, settings["stall"]))]
    looks: list[tuple[float, ...]] = [(0.0, 0, 0, 0)]

    def look(eddy: Run, now: float) -> None:
        if now >= looks[-1][0] + scanned / 100 or scanned <= now < ends:
            joins = {(join.span, join.name): join for join in eddy.figures().joins}
            r_s, r_t, t_r = (joins.get(way) for way in ((("R",), "S"), (("R",), "T"), (("T",), "R")))
            pairs = sum(join.tuples_out for join in (r_t, t_r) if join)
            looks.append((now, pairs, *(join.tuples_in if join else 0 for join in (r_s, r_t))))

    # By this policy the eddy works for what the user wants: everything.
    wanted = [Compare(">=", Column(ColumnRef("R", "key")), Literal(0, INT), INT)]
    options = {"batch_size": 256, "reoptimize_every": 32, "policy": "interactive", "seed": settings.seed}
    done = timed(spec, access, look=look, wanted=wanted, **options)
    r, s, t = (tables[alias].rename_columns([f"{alias}_{n}" for n in columns[alias]]) for alias in "RST")
    joined = r.join(s, "R_a", "S_x", "inner", coalesce_keys=False)
    joined = joined.join(t, ["S_y", "R_c"], ["T_b", "T_c"], "inner", coalesce_keys=False)
    check(joined.num_rows, done, replace(done, table=joined))

    when, pairs, to_s, to_t = np.array(looks).T
    # The policy knows a join by 128 tuples, and tries both until then; S has more tuples until T catches up.
    places = [np.flatnonzero(when <= moment)[-1] for moment in (2 * 128 / rate, caught_up, scanned)]
    new_s, new_t = (np.diff(each[places]) for each in (to_s, to_t))
    (new,) = np.diff(pairs[[np.flatnonzero(when < moment)[-1] for moment in (begins, ends)]])
    figures = {
        "first_s_before": new_s[0] / (new_s + new_t)[0],
        "first_t_after": new_t[1] / (new_s + new_t)[1],
        "partial_share": new / r.slice(round(begins * rate)).join(t, "R_c", "T_c", "inner").num_rows,
    }
    marks = ((begins, "S stalls"), (caught_up, "T has more"), (ends, "S goes on"))
    partial = [Curve("R - T, S missing", when, pairs), done.curve("results")]
    taken = [Curve("R - S", when, to_s), Curve("R - T", when, to_t)]
    panels = [
        over_time("results, and partial ones without S", partial, "tuples", marks=marks),
        over_time("the edge that tuples of R take first", taken, "tuples of R", marks=marks),
    ]
    return Outcome(panels, figures)


@figure(
    "stems-interactive",
    f"{PAPER}, sections 1.2, 4.1 and 4 (fifth of the salient points)",
    """
    # The index answers them alone at first, for a third of T's scan: a sixth on the average.
    0 ≤ mean_ratio ≤ 0.6 | preferred results come first | | indifferent
    # Each group takes the index 20 s, after 5 s: means of 15 s and 35 s, less what T's scan finds.
    0 ≤ a_over_b ≤ 0.7 | what is wanted most comes first | | indifferent
    # The index takes 20 s, so 10 s on the average, and the scan returns it in 44 s, so 22 s.
    0 ≤ c_over_unchanged ≤ 0.6 | what is wanted from now on comes soon | | indifferent
    # 10 s against 30 s, less what T's scan finds meanwhile of the group that waits.
    0 ≤ c_over_b ≤ 0.75 | and before what is wanted less | | indifferent
    # R's scan and one lookup after the other; one in twenty may be under way.
    0 ≤ last_over_soonest ≤ 1.05 | all of it as soon as the index can | | indifferent
    0 ≤ end_ratio ≤ 1.1 | the total time is hardly longer
    # Preferred tuples ask in any case, others only when that pays.
    0 ≤ lookups_ratio ≤ 1.1 | about as many lookups are made
    """,
    parameters=(
        TUPLES,
        LOOKUP,
        Parameter("preferred", 0.1, 0.01, 0.3, "", "share of R in each of three groups"),
    ),
    broken={"indifferent": "the user's preferences are not heard"},
    small={"tuples": 300},
)
def interactive(settings: Settings) -> Outcome:
    """Results that the user wants first.

    Preferred tuples are bounced to the index: their results come first, those that are wanted more before
    those that are wanted less. Interests change half-way, and what is wanted now comes next. All results take
    about as long as without a preference.

    The query is that of figure 8. The user wants A most, then B, and half-way through A wants C most, then B
    (sections 1.2 and 4.1, SteM BounceBack).
    """
    tuples, lookup, rate = settings["tuples"], settings["lookup"], {"R": 200.0, "T": 17.0}
    tables = keyed(np.random.default_rng(settings.seed), tuples)
    spec = block(tables, "R.key = T.key", all_columns=True)
    size, begins = round(settings["preferred"] * tuples), tuples / rate["R"]
    groups = {name: range(size * place, size * (place + 1)) for place, name in enumerate("ABC")}
    moment = begins + size / 2 * lookup
    r, t = (scan(alias, tables[alias], rate[alias]) for alias in "RT")
    key = Column(ColumnRef("R", "key"))

    def wishes(names: str) -> list[Predicate]:
        wanted = [groups[name] for name in names if not settings.ablated]
        ends = [(Literal(keys.start, INT), Literal(keys.stop, INT)) for keys in wanted]
        return [And((Compare(">=", key, low, INT), Compare("<", key, high, INT))) for low, high in ends]

    def side(first: str, later: str) -> Ran:
        wants = first

        def look(eddy: Run, now: float) -> None:
            nonlocal wants
            if now >= moment and wants != later:
                wants = later
                prefer(eddy, wishes(wants))

        access = {"R": [r], "T": [index("key", tables["T"], lookup), t]}
        options = {"policy": "interactive", "seed": settings.seed}
        return timed(spec, access, look=look, wanted=wishes(first), **options)

    plain, steady, changed = side("", ""), side("AB", "AB"), side("AB", "CB")
    check(tuples, plain, steady, changed)

    def waited(run: Ran, name: str) -> float:
        """Return how long after the moment results came on the average, of those that came later."""
        late = times_of(run, groups[name]) - moment
        return float(late[late > 0].mean())

    a, b, c = (times_of(run, groups[name]) for run, name in ((steady, "A"), (steady, "B"), (changed, "C")))
    figures = {
        "mean_ratio": a.mean() / times_of(plain, groups["A"]).mean(),
        "a_over_b": a.mean() / b.mean(),
        "c_over_unchanged": waited(changed, "C") / waited(steady, "C"),
        "c_over_b": waited(changed, "C") / waited(changed, "B"),
        "last_over_soonest": max(a[-1] - begins, c[-1] - moment) / (size * lookup),
        "end_ratio": max(steady.seconds, changed.seconds) / plain.seconds,
        "lookups_ratio": max(len(steady.answered), len(changed.answered)) / len(plain.answered),
    }
    shown = {"no preference": plain, "A, then B": steady, "A, then B; half-way through A: C, then B": changed}
    by_group = {
        title: {name: replace(run, times=times_of(run, keys)) for name, keys in groups.items()}
        for title, run in shown.items()
    }
    marks = [(moment, "half of A")]
    return Outcome([results(title, runs, (), marks=marks) for title, runs in by_group.items()], figures)


@figure(
    "stems-join-algorithms",
    f"{PAPER}, section 3.1 (Simulating and Hybridizing Non-Pipelined Join Algorithms)",
    """
    # Of the time of reading: 64 tuples of each side come and go together.
    0 ≤ shj_first ≤ 0.1 | the symmetric hash join returns results at once | | grace
    # What a memory of a quarter of the tables keeps joins at once.
    0.1 ≤ hybrid_early ≤ 0.9 | hybrid hash returns some while it reads | | grace
    others_early = 0 | Grace and sort-merge return none
    # A tenth of the partitions at least; buffers and file headers are in the noise.
    0.1 ≤ hybrid_over_grace_written ≤ 0.9 | hybrid writes less than Grace | | grace
    # With k ranges the correlation is 1 - 1/k², and at least three are needed here.
    0.85 ≤ merge_order | sort-merge returns results by key | | grace
    """,
    parameters=(
        Parameter("tuples", 8_000, 1_000, 1_000_000, "tuples", "in R, and keys; S has twice as many"),
    ),
    broken={"grace": "every run is a Grace hash join"},
    small={"tuples": 2_000},
)
def algorithms(settings: Settings) -> Outcome:
    """Four join algorithms from the same SteMs.

    Routed through the same SteMs, the join is a symmetric, a hybrid or a Grace hash join, or a sort-merge
    join, by how tuples are clustered before they probe: each with its own output.

    The query is R.a = S.x, with memory for a quarter of it. Tuples are clustered in front of the SteMs here,
    while the paper's SteMs bounce them back partition by partition. Only reading takes time.
    """
    draw, tuples, size = np.random.default_rng(settings.seed), settings["tuples"], 64
    keys = {alias: draw.integers(0, tuples, times * tuples) for alias, times in (("R", 1), ("S", 2))}
    r, s = (pa.table({"key": range(len(keys[alias])), name: keys[alias]}) for alias, name in ("Ra", "Sx"))
    spec = block({"R": r, "S": s}, "R.a = S.x", all_columns=True)
    rows = int(np.multiply(*(np.bincount(drawn, minlength=tuples) for drawn in keys.values())).sum())

    def source(table: pa.Table, clock: VirtualClock) -> Iterator[pa.RecordBatch]:
        for batch in batches(table, size):
            clock.advance(batch.num_rows)
            yield batch

    written, first, early, in_order = (dict[str, float]() for _ in range(4))
    answers = []
    for name in ("shj", "hybrid", "grace", "sort_merge"):
        clock, algorithm = VirtualClock(), settings.ablated or name
        online, sources = algorithm == "shj", {"R": source(r, clock), "S": source(s, clock)}
        options = Options(batch_size=size, algorithm=algorithm, online=online, memory_budget=25 * tuples)
        eddy = SpillingEddy(spec, sources, options, clock=clock)
        found = [(clock.now(), batch) for batch in eddy.run()]
        came = np.repeat([when for when, _ in found], [batch.num_rows for _, batch in found]) / (3 * tuples)
        table = pa.Table.from_batches([batch for _, batch in found], spec.output_schema)
        answers.append(table.sort_by([(column, "ascending") for column in table.column_names]))
        if len(came) != rows or answers[-1] != answers[0]:
            raise ExecutionError(f"{name} found {len(came)} rows, expected {rows}")
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
    before = Panel.bars("Results before all tuples are read", "share of results", early)
    return Outcome([before, Panel.bars("To disk", "MB", written)], figures)
