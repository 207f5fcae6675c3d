"""Makes the gallery: runs the experiments at their small sizes, draws them, and writes their page.

python docs/gallery.py [ID]…
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

from lab.experiments import registry
from lab.experiments.collect import write
from lab.experiments.draw import draw
from lab.experiments.experiment import Experiment
from lab.experiments.runner import run
from lab.experiments.table import Entry, read, told

DOCS = Path(__file__).parent
FOLDER = DOCS / "gallery"
HEAD = """# Gallery
Every figure of the four papers, and what goes beyond them, as Millrace draws it. Drawn is one seed at the
size of the tests, which takes seconds; said is what [the table](results.md) has, over its seeds and at its
sizes. [Experiments](experiments.md) has the claims with their margins.

`python docs/gallery.py` makes this page and its drawings anew; `millrace experiment run ID --out DIR` draws
one at its own size.
"""


def main(ids: list[str]) -> None:
    """Draw some experiments, or all on the virtual clock, and write the page of all."""
    FOLDER.mkdir(exist_ok=True)
    chosen = registry.choose(ids, every=not ids, wall=False)
    tasks = [(each, each.settings(0, each.small)) for each in chosen]
    for result in run(tasks, os.cpu_count() or 1):
        if result.outcome is None:
            raise SystemExit(f"{result.id}: {result.error}")
        write(FOLDER / f"{result.id}.svg", draw(result.experiment, result.outcome)["svg"])
    write(DOCS / "gallery.md", page())


def page() -> str:
    """Return the text of the page, of the table and the experiments that there are."""
    table = read(DOCS / "results.json")
    parts = [HEAD]
    for each in registry.EXPERIMENTS.values():
        parts += _experiment(each, table.get(each.id))
    return "\n".join(parts)


def _experiment(experiment: Experiment, entry: Entry | None) -> Iterator[str]:
    yield f"## {experiment.id}: {experiment.title}\n{experiment.source}. {experiment.claim}\n"
    if experiment.wall:
        command = f"millrace experiment run {experiment.id} --wall"
        yield f"It measures real time, so its figure is a machine's own: `{command} --out DIR`.\n"
        return
    yield f"![{experiment.title}](gallery/{experiment.id}.svg)\n"
    if entry is None:
        yield "It is not in the table.\n"
        return
    for says, stated, measured, verdict in told(entry, experiment):
        yield f"- {says}: {measured}, stated `{stated}`; {verdict}"
    yield ""


if __name__ == "__main__":
    main(sys.argv[1:])
