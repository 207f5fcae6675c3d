"""What a run saved, in one sentence: only what its figures prove."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from millrace.engine.figures import ModuleFigures
from millrace.reports.run_report import RunReport
from millrace.reports.text import count, duration, number, share


class Calls(NamedTuple):
    """Calls of users' predicates in filters, beside those that Spark makes."""

    predicates: int  # how many of them were called
    made: int  # rows that they were called for
    all: int  # rows that Spark calls them for: every one of them for every row
    seconds: float  # what the difference would have taken, at what a call of each took


def calls_of(report: RunReport) -> Calls | None:
    """Return the calls of predicates in filters over one relation; None where there are none.

    Only there is known what Spark would have called: all predicates, for every row that arrived. One that was
    never called is not in the figures, and not counted.
    """
    predicates = made = everything = 0
    seconds = 0.0
    ran = report.modules()
    for block in report.blocks:
        modules = [m for name, m in ran if name == block]
        scans = [m for m in modules if m.action == "scan"]
        called = [m for m in modules if m.action == "select" and m.evaluated]
        if len(scans) != 1 or not called:
            continue
        for one in called:
            predicates += 1
            made += one.evaluated
            everything += scans[0].tuples_in
            seconds += (scans[0].tuples_in - one.evaluated) * one.seconds / one.evaluated
    return Calls(predicates, made, everything, seconds) if predicates else None


def headline(report: RunReport) -> list[str]:
    """Return the sentence that a report opens with, and maybe more of them."""
    if not report.blocks:
        return ["Spark ran the whole query: no eddy had a part in it."]
    told = [part[0].upper() + part[1:] + "." for part in _parts(report)]
    return told or ["The eddies had little to do: no tuple met a predicate or a join."]


def _parts(report: RunReport) -> Iterator[str]:
    sums, ran = report.totals, [one for _, one in report.modules()]

    def of(action: str) -> list[ModuleFigures]:
        return [one for one in ran if one.action == action]

    calls = calls_of(report)
    if calls is not None:
        several = "predicates were" if calls.predicates > 1 else "predicate was"
        text = f"{calls.predicates} {several} called {count(calls.made)} times"
        if calls.made < calls.all:
            text += (
                f", where Spark calls every one for every row, {count(calls.all)} times: "
                f"{share(1 - calls.made / calls.all)} fewer calls, about "
                f"{duration(max(0.0, calls.seconds))} of work saved"
            )
        yield text
    if of("probe") or of("join"):
        between = f"by way of {count(sums.intermediate_tuples)}" if sums.intermediate_tuples else "without"
        yield (
            f"the joins made {count(sums.output_tuples)} results {between} intermediate tuples, in "
            f"{duration(sums.worker_seconds)} of work"
        )
    dropped = sum(m.tuples_in - m.tuples_out for m in of("transfer"))
    if dropped > 0:
        scans = of("scan")
        arrived = sum(m.tuples_in for m in scans)
        # What is exchanged arrives twice, and several times where it is copied.
        known = not any(m.name.startswith("Cut(") for m in scans)
        part = f" of {count(arrived)} ({share(dropped / arrived)})" if known and dropped <= arrived else ""
        yield f"{count(dropped)}{part} tuples had no match elsewhere and were dropped before they met a join"
    groups = of("prune")
    if groups:
        seen, read = sum(m.tuples_in for m in groups), sum(m.tuples_out for m in groups)
        yield f"{count(seen - read)} of {count(seen)} row groups were not read: no key of theirs has a match"
    keys = sum(each.keys for each in report.lookups)
    if keys:
        requests = sum(each.requests for each in report.lookups)
        cached = sum(each.cached for each in report.lookups)
        kept = f", {count(cached)} of them answered by the cache" if cached else ""
        yield f"{count(keys)} distinct keys were looked up with {count(requests)} requests{kept}"
    for spent in report.budgets:
        if spent.max_cost is not None:
            cost = f"{number(spent.cost)} of {number(spent.max_cost)}"
            yield f"{spent.name} has cost {cost}, for {count(spent.requests)} requests"
