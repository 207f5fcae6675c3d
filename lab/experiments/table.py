"""The table of results: what experiments found for several seeds, kept in a file that documents quote.

The file has an entry for each experiment, so a run of some replaces theirs and leaves the others. Beside it
stands the same for people, in Markdown.
"""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path

from lab.benchmarks.harness import versions
from lab.experiments.experiment import DIFFERS, Claim, Experiment, Verdict, worst
from lab.experiments.runner import Result
from lab.experiments.show import plain
from millrace.errors import InputError

_HEAD = """# Results
What `millrace experiment run … --table docs/results.json` found. [Experiments](experiments.md) states the
claims and their margins. Measured is the least and the most over the seeds. Parameters stand where they are
not the experiment's own; figures on the virtual clock are the same on every machine.
"""

_MISSING = {False: "", True: ", for real time needs a machine on which nothing else runs"}
"""Why experiments are missing, of those on the virtual clock and on the wall's."""


@dataclass(frozen=True)
class Entry:
    """What one experiment found: its figures for each seed, None for what is no number.

    ``stated`` are the claims' inequalities when it ran, ``holds`` has the verdict on each for each seed, and
    ``versions`` are of what was measured with, and what the machine is.
    """

    id: str
    parameters: Mapping[str, float]
    seeds: Sequence[int]
    figures: Mapping[str, Sequence[float | None]]
    stated: Sequence[str]
    holds: Sequence[Sequence[Verdict]]
    versions: Mapping[str, str]

    @property
    def verdict(self) -> Verdict:
        """Whether every claim holds for every seed; ``"differs"`` if some do not, for their stated causes."""
        return worst(verdict for verdicts in self.holds for verdict in verdicts)

    def measured(self, figure: str) -> tuple[float, float]:
        """Return the least and the most of a figure over the seeds; NaN for none."""
        values = [value for value in self.figures[figure] if value is not None]
        return min(values, default=math.nan), max(values, default=math.nan)


Table = Mapping[str, Entry]
"""Entries by the experiments' ids."""


def read(path: Path) -> dict[str, Entry]:
    """Return the table of a file, none if there is no file.

    Raises:
        InputError: The file has something else in it.
    """
    if not path.exists():
        return {}
    try:
        return {each["id"]: Entry(**each) for each in json.loads(path.read_text(encoding="utf-8"))}
    except (ValueError, TypeError, KeyError) as error:
        raise InputError(
            f"{path} is no table of results ({error!r}): name another file for --table"
        ) from None


def entries(results: Iterable[Result]) -> dict[str, Entry]:
    """Return what runs found, by experiment; none for one of which a run failed.

    Args:
        results: Those of one experiment stand together, have the same parameters and different seeds.
    """
    found = {}
    for name, group in groupby(results, key=lambda result: result.id):
        runs = list(group)
        outcomes = [run.outcome for run in runs if run.outcome is not None]
        if len(outcomes) < len(runs):
            continue
        checks = zip(*(outcome.checks for outcome in outcomes), strict=True)
        found[name] = Entry(
            id=name,
            parameters=dict(runs[0].settings.values),
            seeds=[run.settings.seed for run in runs],
            figures={key: [_short(each.figures[key]) for each in outcomes] for key in outcomes[0].figures},
            stated=[claim.inequality for claim in runs[0].experiment.claims],
            holds=[[check.holds for check in each] for each in checks],
            versions=versions(),
        )
    return found


def _short(value: float) -> float | None:
    """Return six digits, which is more than any document quotes."""
    return float(f"{value:.6g}") if math.isfinite(value) else None


def encoded(table: Table, known: Mapping[str, Experiment]) -> str:
    """Return the table in JSON, in the order of all experiments; those that are no more are dropped."""
    lines = [json.dumps(asdict(table[name]), ensure_ascii=False) for name in known if name in table]
    return "[\n" + ",\n".join(lines) + "\n]\n"


def summary(table: Table, known: Mapping[str, Experiment]) -> str:
    """Return a sentence: how many experiments there are, and how many hold."""
    entries = [table[name] for name in known if name in table]
    verdicts = Counter(each.verdict for each in entries)
    small = sum(bool(changed(each, known[each.id])) for each in entries)
    return (
        f"Of {len(known)} experiments, {len(entries)} are in the table, {small} of them at a smaller size: "
        f"{verdicts[True]} hold for every seed, {verdicts[DIFFERS]} differ for stated causes, "
        f"{verdicts[False]} {'does' if verdicts[False] == 1 else 'do'} not hold."
    )


def changed(entry: Entry, experiment: Experiment) -> dict[str, float]:
    """Return the parameters that are not the experiment's own."""
    defaults = {each.name: each.default for each in experiment.parameters}
    return {name: value for name, value in entry.parameters.items() if value != defaults.get(name)}


def rendered(table: Table, known: Mapping[str, Experiment]) -> str:
    """Return the table in Markdown."""
    lines = [_HEAD, summary(table, known), ""]
    lines += ["| experiment | seeds | claim | stated | measured | verdict |", "|---|---|---|---|---|---|"]
    measured_with: dict[str, int] = defaultdict(int)
    for name, experiment in known.items():
        if name in table:
            lines += _rows(table[name], experiment)
            measured_with[", ".join(" ".join(each) for each in table[name].versions.items())] += 1
    for wall, why in _MISSING.items():
        missing = [name for name, each in known.items() if name not in table and each.wall == wall]
        if missing:
            lines += ["", f"Not measured{why}: {', '.join(missing)}."]
    for with_, number in sorted(measured_with.items()):
        lines += ["", f"Measured with {with_}: {number} experiments."]
    return "\n".join(lines) + "\n"


def _rows(entry: Entry, experiment: Experiment) -> Iterator[str]:
    given = ", ".join(f"{name} {plain(value)}" for name, value in changed(entry, experiment).items())
    first = f"{entry.id}{f' ({given})' if given else ''} | {', '.join(map(str, entry.seeds))}"
    for says, stated, measured, verdict in told(entry, experiment):
        yield f"| {first} | {says} | `{stated}` | {measured} | {verdict} |"
        first = " | "


def told(entry: Entry, experiment: Experiment) -> Iterator[tuple[str, str, str, str]]:
    """Yield each claim, its inequality, what was measured over the seeds, and the verdict in words."""
    for claim, stated, holds in zip(experiment.claims, entry.stated, entry.holds, strict=True):
        low, high = (f"{value:.3g}" for value in entry.measured(claim.figure))
        yield claim.says, stated, low if low == high else f"{low} to {high}", _verdict(claim, holds)


def _verdict(claim: Claim, holds: Sequence[Verdict]) -> str:
    words = {True: "holds", DIFFERS: "differs: " + claim.cause, False: "**does not hold**"}
    counts = {verdict: holds.count(verdict) for verdict in words if verdict in holds}
    if len(counts) == 1:
        return words[holds[0]]
    return "; ".join(f"{words[verdict]} ({count} of {len(holds)})" for verdict, count in counts.items())
