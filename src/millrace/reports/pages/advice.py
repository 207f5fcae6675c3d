"""What a report warns of, each with what helps: rules over figures, and nothing that figures do not show."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from millrace.engine.figures import SUMMARIES
from millrace.reports.run_report import RunReport
from millrace.reports.text import count, duration, share, size

_NOTABLE_SECONDS = 0.5
"""Of work: below that nothing is worth advice about time."""

_NOTABLE_TUPLES = 10_000


class Advice(NamedTuple):
    """A finding, and what helps."""

    finding: str
    help: str


def advice(report: RunReport) -> list[Advice]:
    """Return what is worth knowing, the gravest first."""
    return [each for rule in _RULES for each in rule(report)]


def _failed_keys(report: RunReport) -> Iterator[Advice]:
    for one in report.lookups:
        if one.failed:
            kinds = ", ".join(f"{kind}: {count(number)}" for kind, number in one.failures)
            yield Advice(
                f"{count(one.failed)} of {count(one.keys)} keys of {one.name} were not looked up ({kinds}).",
                "failed_keys() lists them with the messages; on_error says what becomes of their rows.",
            )
        if one.problem:
            yield Advice(
                f"Answers of {one.name} are not kept in the cache any more.",
                "lookups() says why; a later run asks for them again.",
            )


def _limits(report: RunReport) -> Iterator[Advice]:
    for one in (*report.lookups, *report.calls):
        if one.limited > 0.05 * one.requests:
            yield Advice(
                f"{share(one.limited / one.requests)} of the requests of {one.name} were too many at once.",
                "All tasks paused after each: a lower per_second or max_in_flight wastes none of them.",
            )
        elif one.requests and one.retried > 0.2 * one.requests:
            yield Advice(
                f"{share(one.retried / one.requests)} of the requests of {one.name} repeated a failed one.",
                "A lower per_second or max_in_flight, or a longer timeout, may spare the service and you.",
            )


def _weaker(report: RunReport) -> Iterator[Advice]:
    for each in report.planned.weaker:
        yield Advice(
            f"Limits are kept by each task for itself: {each}.",
            "millrace doctor tries addresses; without_coordinator='fail' refuses to run like this.",
        )


def _spilled(report: RunReport) -> Iterator[Advice]:
    sums = report.totals
    if sums.spilled_bytes:
        yield Advice(
            f"{size(sums.spilled_bytes)} went to files because of the memory budget, and "
            f"{size(sums.returned_bytes)} were read back.",
            "A larger memory_budget, or more cells with a share of the data each, spares that.",
        )
    if sums.budget_peak_ratio > 1:
        yield Advice(
            f"One cell held {share(sums.budget_peak_ratio)} of its memory budget.",
            "Budgets of a few megabytes cannot be kept: every index takes up to 330 kB.",
        )


def _skewed(report: RunReport) -> Iterator[Advice]:
    for name, figures in report.blocks.items():
        cells = [cell for cell in figures if cell.cell >= 0]
        routed = sum(cell.tuples_routed for cell in cells)
        if len(cells) < 2 or routed < _NOTABLE_TUPLES:
            continue
        fullest = max(cells, key=lambda cell: cell.tuples_routed)
        part = fullest.tuples_routed / routed
        if part > 2 / len(cells) or (len(cells) == 2 and part > 0.8):
            yield Advice(
                f"Cell {fullest.cell} of {name} did {share(part)} of the routing, of {len(cells)} cells.",
                "Probably few keys have most of the rows: filter them out or join them apart; more cells do "
                "not divide one key.",
            )


def _costly(report: RunReport) -> Iterator[Advice]:
    modules = [one for _, one in report.modules() if one.action not in SUMMARIES]
    whole = sum(one.seconds for one in modules)
    if whole < _NOTABLE_SECONDS:
        return
    for one in modules:
        part = one.seconds / whole
        if one.action == "select" and one.evaluated and part >= 0.5:
            each = duration(one.seconds / one.evaluated)
            yield Advice(
                f"{one.name} takes {share(part)} of the time: {each} a row, for {count(one.evaluated)} rows.",
                "Taking whole columns (pandas_udf, arrow_udf) or, where it waits, kind='async' makes it "
                "cheaper; dedupe=True asks equal arguments once.",
            )
        if (
            one.action == "select"
            and one.tuples_in > 1000
            and part >= 0.2
            and one.tuples_out == one.tuples_in
        ):
            yield Advice(
                f"{one.name} let all {count(one.tuples_in)} tuples pass and takes {share(part)} of the time.",
                "No order makes it cheaper: is the condition needed?",
            )
        if one.action == "scan" and part >= 0.7:
            yield Advice(
                f"{one.name} takes {share(part)} of the time: reading, not joining.",
                "Filters that skip row groups, fewer columns, or files nearer to the tasks would help most.",
            )


def _exploded(report: RunReport) -> Iterator[Advice]:
    sums = report.totals
    if sums.intermediate_tuples > 20 * max(_NOTABLE_TUPLES, sums.output_tuples):
        yield Advice(
            f"{count(sums.intermediate_tuples)} intermediate tuples were made for "
            f"{count(sums.output_tuples)} results.",
            "A further join condition or filter would cut them down: see which probes let most out.",
        )


_RULES: tuple[Callable[[RunReport], Iterator[Advice]], ...] = (
    _failed_keys,
    _limits,
    _weaker,
    _spilled,
    _skewed,
    _costly,
    _exploded,
)
