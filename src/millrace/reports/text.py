"""Figures as lines of text, and numbers, times and shares for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millrace.engine.figures import CellFigures, ModuleFigures, StateFigures

if TYPE_CHECKING:
    from millrace.reports.run_report import Totals


def describe(sums: Totals) -> list[tuple[str, str]]:
    """Return the totals as ``(label, value)`` in words, for text and tables."""
    told = [
        ("worker time", f"{sums.worker_seconds:.2f} s, slowest task {sums.slowest_seconds:.2f} s"),
        ("tuples routed", f"{sums.tuples_routed:,}"),
        ("intermediate tuples", f"{sums.intermediate_tuples:,}"),
        ("result rows of the blocks", f"{sums.output_tuples:,}"),
        (
            "exchanged",
            f"{sums.rows_exchanged:,} rows in {sums.blocks_exchanged:,} blocks, {size(sums.bytes_exchanged)}",
        ),
        ("peak memory of a worker", size(sums.peak_bytes)),
    ]
    if sums.peak_state:
        told.append(("peak join state of a cell", f"{sums.peak_state:,} tuples"))
    if sums.migrated_tuples:
        moved = f"{sums.migrated_tuples:,} tuples moved, {sums.recomputed_tuples:,} made again"
        told.append(("migration", moved))
    if sums.spilled_bytes:
        told.append(("spilled", f"{size(sums.spilled_bytes)} written, {size(sums.returned_bytes)} read back"))
    if sums.budget_peak_ratio:
        told.append(("most held of the memory budget", f"{sums.budget_peak_ratio:.0%}"))
    return told


def describe_module(one: ModuleFigures) -> str:
    """Return one module's figures as one line of text."""
    text = f"{one.name} {one.action}: {one.tuples_in:,} in, {one.tuples_out:,} out, {one.seconds:.3f} s"
    if one.evaluated:
        text += f", called for {one.evaluated:,} rows, {1e6 * one.seconds / one.evaluated:,.1f} µs each"
    if one.bytes:
        text += f", {size(one.bytes)} in {one.calls:,} batches"
    return text


def describe_state(one: StateFigures) -> str:
    """Return what a SteM or STAIR held as one line of text."""
    text = f"{one.name}: {one.tuples:,} tuples, {size(one.nbytes)}, {one.inserted:,} inserted"
    for count, what in ((one.demoted, "demoted"), (one.promoted, "promoted"), (one.evicted, "evicted")):
        if count:
            text += f", {count:,} {what}"
    return text


def describe_cell(cell: CellFigures) -> str:
    """Return one cell's figures as one line of text."""
    place = f"cell {cell.cell}" if cell.cell >= 0 else "map task"
    text = (
        f"{place}: {cell.seconds:.2f} s, {cell.tuples_routed:,} routed, "
        f"{cell.intermediate_tuples:,} intermediate, {cell.output_tuples:,} out, "
        f"{cell.rows_exchanged:,} rows in {size(cell.bytes_exchanged)} exchanged, "
        f"peak {size(cell.peak_bytes)}"
    )
    if cell.spilled_bytes:
        text += f", {size(cell.spilled_bytes)} spilled"
    return text


def size(count: float) -> str:
    """Return a number of bytes for people, for example ``1.5 MB``."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


def count(value: float) -> str:
    """Return a whole number with separators."""
    return f"{round(value):,}"


def short(value: float) -> str:
    """Return a number in few characters, for axes and diagrams: ``1.2M``."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= limit:
            return f"{value / limit:.3g}{unit}"
    return f"{value:.3g}"


def duration(seconds: float) -> str:
    """Return a time in its unit: ``1.97 ms``."""
    if seconds <= 0:
        return "0 s"
    for limit, factor, unit in ((1.0, 1, "s"), (1e-3, 1e3, "ms"), (1e-6, 1e6, "µs")):
        if seconds >= limit:
            value = seconds * factor
            return f"{value:,.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def share(value: float) -> str:
    """Return a share as percent; what is little but something is not called nothing."""
    if 0 < value < 0.001:
        return "< 0.1 %"
    if 0.995 <= value < 1:
        return "> 99 %"
    return f"{100 * value:.1f} %" if 0 < value < 0.1 else f"{100 * value:.0f} %"


def ratio(value: float) -> str:
    """Return tuples out per tuple in."""
    return share(min(1.0, value)) if value < 1 + 1e-6 else f"×{value:.3g}"
