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
from millrace.pages.page import style

_HEAD = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>Millrace: experiments</title>
<style>
{style}</style>
</head>
<body class="millrace">
<a class="skip" href="#main">Skip to the experiments</a>
<header>
<h1>Millrace experiments</h1>
<p class="lead">{said}</p>
<p class="also">Each figure stands beside the claim that it has to bear out. A verdict is a check of the
figure’s shape, computed from the numbers of the run. Routing policies, modules and the eddy are those of
production; on the virtual clock only sources, costs and the clock itself are declared.</p>
</header>
"""

_ROWS = 40
"""Rows of numbers shown of a panel."""

_END = "</tbody></table>\n</div>\n"


def page(results: Sequence[Result], drawings: Mapping[str, bytes]) -> bytes:
    """Return the page.

    Args:
        results: In the order in which to show them.
        drawings: SVG files by experiment id; runs that failed have none.
    """
    own = (files("millrace.experiments") / "page.css").read_text(encoding="utf-8")
    holding = sum(result.holds is True for result in results)
    said = f"{holding} of {len(results)} of the papers’ experiments hold, run again."
    parts = [_HEAD.format(style=style() + own, said=said), *_summary(results), '<main id="main">\n']
    for result in results:
        parts += _experiment(result, drawings.get(result.id))
    parts += ["</main>\n", *_foot(results), "</body>\n</html>\n"]
    return "".join(parts).encode()


def _summary(results: Sequence[Result]) -> Iterator[str]:
    yield '<nav aria-label="Experiments">\n'
    yield _header("experiment", "title", "source", "verdict", label="All experiments")
    for result in results:
        experiment = result.task.experiment
        yield (
            f'<tr><th scope="row"><a href="#{escape(result.id)}">{escape(result.id)}</a></th>'
            f'<td class="words">{escape(experiment.title)}</td>'
            f'<td class="words">{escape(experiment.source)}</td>'
            f'<td class="words">{_verdict(holds=result.holds)}</td></tr>\n'
        )
    yield _END + "</nav>\n"


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


def _header(*names: str, label: str, caption: str = "") -> str:
    """Open a table in a part that scrolls, also by keys."""
    cells = "".join(f'<th scope="col">{escape(name)}</th>' for name in names)
    told = f"<caption>{escape(caption)}</caption>" if caption else ""
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(label)}">\n'
        f"<table>{told}<thead><tr>{cells}</tr></thead><tbody>\n"
    )


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
        yield _header("figure", "value", label="Figures")
        for name, value in figures.items():
            yield f'<tr><th scope="row">{escape(name)}</th><td>{number(value)}</td></tr>\n'
        yield _END


def _parameters(result: Result) -> Iterator[str]:
    experiment, settings = result.task.experiment, result.task.settings
    yield "<h3>Parameters</h3>\n" + _header("name", "value", "unit", "range", "meaning", label="Parameters")
    yield f'<tr><th scope="row">seed</th><td>{settings.seed}</td><td></td><td></td>'
    yield '<td class="words">of all random numbers</td></tr>\n'
    for each in experiment.parameters:
        value = settings[each.name]
        default = "" if value == each.default else f" (default {plain(each.default)})"
        yield (
            f'<tr><th scope="row">{escape(each.name)}</th><td>{plain(value)}{default}</td>'
            f"<td>{escape(each.unit)}</td><td>{plain(each.low)} to {plain(each.high)}</td>"
            f'<td class="words">{escape(each.meaning)}</td></tr>\n'
        )
    yield _END


def _numbers(panel: Panel) -> Iterator[str]:
    caption = f"{panel.title}: {panel.y_label}"
    yield _header(panel.x_label, *(curve.name for curve in panel.curves), label=caption, caption=caption)
    for name, values in rows_of(panel, _ROWS):
        cells = ("" if value is None else number(value) for value in values)
        yield (
            f'<tr><th scope="row">{escape(name)}</th>' + "".join(f"<td>{c}</td>" for c in cells) + "</tr>\n"
        )
    yield _END


def _foot(results: Sequence[Result]) -> Iterator[str]:
    known = ", ".join(f"{name} {value}" for name, value in versions().items())
    yield f"<footer>\n<p>Measured with {escape(known)}.</p>\n"
    if any(result.task.experiment.wall for result in results):
        yield "<p>Runs with <code>--wall</code> measure real time, so their figures are this machine’s.</p>\n"
    yield "</footer>\n"
