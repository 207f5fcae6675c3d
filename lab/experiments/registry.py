"""All experiments by id, in the papers' order, as each paper's ``claims.toml`` states them.

A file has a table for each experiment: ``run``, the function that measures it; ``title``, ``source``,
``claim``, the ``small`` sizes and whether it is a ``wall`` one; ``claims``, a row each of what is said, the
bounds, the broken engine that fails it, the margin, and where the paper's number is known not to come out the
bounds there and the cause; ``broken``, those engines by name; ``parameters``, a row each of default, least,
most, unit and meaning. Those of several experiments stand at the head of the file and are named in ``uses``.
``docs/experiments.md`` says the same in words.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from importlib.resources import files
from typing import Any

from lab.experiments.experiment import Claim, Experiment, Parameter
from millrace.errors import InputError, near

PAPERS = ("eddies", "overheads", "stems", "stairs", "beyond")
_BOUNDS = re.compile(r"(?:(\S+) ≤ )?([a-z]\S*)(?: ≤ (\S+)| = (\S+))?")


def bounds(text: str) -> tuple[str, float, float]:
    """Return the figure of an inequality such as ``0.5 ≤ x ≤ 2``, and its least and greatest value."""
    found = _BOUNDS.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is no inequality such as '0.5 ≤ x ≤ 2', 'x ≤ 2' or 'x = 1'")
    low, figure, high, equal = found.groups()
    return figure, float(equal or low or -math.inf), float(equal or high or math.inf)


def _claim(says: str, stated: str, fails: str, margin: str, found: str = "", cause: str = "") -> Claim:
    known = bounds(found)[1:] if found else Claim.found
    return Claim(says, *bounds(stated), margin, fails, cause, known)


def _experiments(paper: str) -> Iterator[Experiment]:
    stated = tomllib.loads((files(__package__) / paper / "claims.toml").read_text(encoding="utf-8"))
    shared: Mapping[str, Sequence[Any]] = stated.pop("parameters", {})
    for name, said in stated.items():
        module, _, function = said.pop("run").rpartition(".")
        rows = {**{each: shared[each] for each in said.pop("uses", ())}, **said.pop("parameters", {})}
        yield Experiment(
            id=name,
            claims=tuple(_claim(*row) for row in said.pop("claims")),
            parameters=tuple(Parameter(each, *row) for each, row in rows.items()),
            measure=getattr(import_module(f"{__package__}.{module}"), function),
            **said,
        )


EXPERIMENTS: dict[str, Experiment] = {each.id: each for paper in PAPERS for each in _experiments(paper)}


def find(ids: Iterable[str]) -> tuple[Experiment, ...]:
    """Return experiments by their ids, each once.

    Raises:
        InputError: There is no experiment of that id.
    """
    for name in (ids := list(dict.fromkeys(ids))):
        if name not in EXPERIMENTS:
            raise InputError(f"there is no experiment {name!r}: {near(name, EXPERIMENTS)}")
    return tuple(EXPERIMENTS[name] for name in ids)


def choose(ids: Sequence[str], *, every: bool, wall: bool) -> tuple[Experiment, ...]:
    """Return the experiments that are asked for.

    Raises:
        InputError: None is named, or all and some, or there is none of that id, or it needs ``--wall``.
    """
    if bool(ids) == every:
        what = "both experiment ids and --all" if every else "no experiment id"
        raise InputError(f"{what}: name some (see `millrace experiment list`), or use --all alone")
    if every:
        return tuple(each for each in EXPERIMENTS.values() if wall or not each.wall)
    found = find(ids)
    for each in found:
        if each.wall and not wall:
            raise InputError(f"{each.id} measures real time: add --wall, and let nothing else run meanwhile")
    return found


def registered(experiment: Experiment) -> str:
    """Return a section in Markdown: an experiment's claims with their bounds, and its broken engines."""
    lines = [f"### {experiment.id}: {experiment.title}", f"{experiment.source}. {experiment.claim}", ""]
    for claim in experiment.claims:
        said = f"- **{claim.says}**: `{claim.inequality}`; margin: {claim.margin}. Failed by `{claim.fails}`."
        lines.append(said)
        if claim.cause:
            low, high = claim.found
            known = f"`{low:.4g} ≤ {claim.figure} ≤ {high:.4g}`"
            lines.append(f"  Where it differs: {claim.cause}; then {known}.")
    engines = "; ".join(f"`{name}`: {words}" for name, words in experiment.broken.items())
    return "\n".join([*lines, "", f"Broken engines: {engines}.", ""])
