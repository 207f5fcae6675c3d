"""One HTML file with every figure beside its claim: without scripts, nothing to fetch, and it prints well."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from importlib.resources import files

from millrace.benchmarks.harness import versions
from millrace.benchmarks.show import number
from millrace.experiments.experiment import DIFFERS, Check, Panel, Verdict
from millrace.experiments.result import Result
from millrace.experiments.show import plain, rows_of
from millrace.experiments.svg import inline

_HEAD = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Millrace: experiments</title>
<style>
{style}</style>
</head>
<body>
<header>
<h1>The papers’ experiments, run again</h1>
<p>Each figure stands beside the claim that it has to bear out. A verdict is a check of the figure’s shape,
computed from the numbers of the run. Routing policies, modules and the eddy are those of production; on the
virtual clock only sources, costs and the clock itself are declared.</p>
</header>
"""

_ROWS = 40
"""Rows of numbers shown of a panel."""


def page(results: Sequence[Result], drawings: Mapping[str, bytes]) -> bytes:
    """Return the page.

    Args:
        results: In the order in which to show them.
        drawings: SVG files by experiment id; runs that failed have none.
    """
    style = (files("millrace.experiments") / "page.css").read_text(encoding="utf-8")
    parts = [_HEAD.format(style=style), *_summary(results), "<main>\n"]
    for result in results:
        parts += _experiment(result, drawings.get(result.id))
    parts += ["</main>\n", *_foot(results), "</body>\n</html>\n"]
    return "".join(parts).encode()


def _summary(results: Sequence[Result]) -> Iterator[str]:
    holding = sum(result.holds is True for result in results)
    yield '<nav aria-label="Experiments">\n'
    yield f"<p><strong>{holding} of {len(results)}</strong> hold.</p>\n"
    yield _header("experiment", "title", "source", "verdict")
    for result in results:
        experiment = result.task.experiment
        yield (
            f'<tr><td><a href="#{escape(result.id)}">{escape(result.id)}</a></td>'
            f"<td>{escape(experiment.title)}</td><td>{escape(experiment.source)}</td>"
            f"<td>{_verdict(holds=result.holds)}</td></tr>\n"
        )
    yield "</tbody></table>\n</nav>\n"


def _experiment(result: Result, drawing: bytes | None) -> Iterator[str]:
    experiment = result.task.experiment
    yield f'<section id="{escape(result.id)}">\n'
    yield f"<h2>{escape(result.id)}: {escape(experiment.title)} {_verdict(holds=result.holds)}</h2>\n"
    yield f'<p class="source">{escape(experiment.source)}</p>\n'
    yield f'<p class="claim">{escape(experiment.claim)}</p>\n'
    if result.task.settings.ablated:
        yield f'<p class="ablated">Ablated: {escape(experiment.broken[result.task.settings.ablated])}</p>\n'
    if result.outcome is None:
        yield f'<p class="error">The run failed: {escape(result.error)}</p>\n'
    else:
        if drawing is not None:
            label = escape(f"{experiment.title}. {experiment.claim}", quote=True)
            yield f"<figure>\n{inline(drawing, result.id, label)}\n</figure>\n"
        yield "<h3>Measured</h3>\n<ul>\n"
        yield from map(_check, result.outcome.checks)
        yield "</ul>\n"
        yield from _figures(result.outcome.figures)
    yield from _parameters(result)
    yield f"<h3>Run it again</h3>\n<pre><code>{escape(result.command())}</code></pre>\n"
    yield (
        f'<p class="note">With <code>--ablate</code>, and then a check must fail: '
        f"{escape(experiment.mechanism)}</p>\n"
    )
    if result.outcome is not None:
        yield "<details><summary>Numbers</summary>\n"
        for panel in result.outcome.panels:
            yield from _numbers(panel)
        yield "</details>\n"
    yield "</section>\n"


def _header(*names: str, caption: str = "") -> str:
    cells = "".join(f"<th>{escape(name)}</th>" for name in names)
    return f"<table>{caption}<thead><tr>{cells}</tr></thead><tbody>\n"


def _verdict(*, holds: Verdict) -> str:
    if holds == DIFFERS:
        return '<span class="differs">≠ differs, with the cause</span>'
    return '<span class="holds">✓ holds</span>' if holds else '<span class="fails">✗ does not hold</span>'


def _check(check: Check) -> str:
    return (
        f"<li>{_verdict(holds=check.holds)} {escape(check.claim)}: "
        f'<span class="measured">{escape(check.measured)}</span></li>\n'
    )


def _figures(figures: Mapping[str, float]) -> Iterator[str]:
    if figures:
        yield _header("figure", "value")
        for name, value in figures.items():
            yield f'<tr><td>{escape(name)}</td><td class="number">{number(value)}</td></tr>\n'
        yield "</tbody></table>\n"


def _parameters(result: Result) -> Iterator[str]:
    experiment, settings = result.task.experiment, result.task.settings
    yield "<h3>Parameters</h3>\n" + _header("name", "value", "unit", "range", "meaning")
    yield f'<tr><td>seed</td><td class="number">{settings.seed}</td><td></td><td></td>'
    yield "<td>of all random numbers</td></tr>\n"
    for each in experiment.parameters:
        value = settings[each.name]
        default = "" if value == each.default else f" (default {plain(each.default)})"
        yield (
            f'<tr><td>{escape(each.name)}</td><td class="number">{plain(value)}{default}</td>'
            f"<td>{escape(each.unit)}</td><td>{plain(each.low)} to {plain(each.high)}</td>"
            f"<td>{escape(each.meaning)}</td></tr>\n"
        )
    yield "</tbody></table>\n"


def _numbers(panel: Panel) -> Iterator[str]:
    caption = f"<caption>{escape(panel.title)}: {escape(panel.y_label)}</caption>"
    yield _header(panel.x_label, *(curve.name for curve in panel.curves), caption=caption)
    for name, values in rows_of(panel, _ROWS):
        cells = ("" if value is None else number(value) for value in values)
        yield (
            f"<tr><td>{escape(name)}</td>"
            + "".join(f'<td class="number">{c}</td>' for c in cells)
            + "</tr>\n"
        )
    yield "</tbody></table>\n"


def _foot(results: Sequence[Result]) -> Iterator[str]:
    known = ", ".join(f"{name} {value}" for name, value in versions().items())
    yield f"<footer>\n<p>Measured with {escape(known)}.</p>\n"
    if any(result.task.experiment.wall for result in results):
        yield "<p>Runs with <code>--wall</code> measure real time, so their figures are this machine’s.</p>\n"
    yield "</footer>\n"
