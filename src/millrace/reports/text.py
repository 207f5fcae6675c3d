"""Numbers, times and shares for people."""

from __future__ import annotations


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


def number(value: float) -> str:
    """Return an amount, of money say, with what it has behind the point."""
    return f"{value:,.6g}"


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
