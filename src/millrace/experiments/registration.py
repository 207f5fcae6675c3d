"""What every experiment claims, as text: docs/experiments.md has it before any run."""

from __future__ import annotations

from collections.abc import Iterable

from millrace.experiments.experiment import Experiment


def registered(experiments: Iterable[Experiment]) -> str:
    """Return a section in Markdown for each experiment: its claims with their bounds, "
    "and its broken engines.
    """
    return "\n".join(_section(each) for each in experiments)


def _section(experiment: Experiment) -> str:
    lines = [f"### {experiment.id}: {experiment.title}", f"{experiment.source}. {experiment.claim}", ""]
    for claim in experiment.claims:
        lines.append(
            f"- **{claim.says}**: `{claim.inequality}`; margin: {claim.margin}. Failed by `{claim.fails}`."
        )
        if claim.cause:
            low, high = claim.found
            lines.append(
                f"  Where it differs: {claim.cause}; then `{low:.4g} ≤ {claim.figure} ≤ {high:.4g}`."
            )
    engines = "; ".join(f"`{name}`: {words}" for name, words in experiment.broken.items())
    return "\n".join([*lines, "", f"Broken engines: {engines}.", ""])
