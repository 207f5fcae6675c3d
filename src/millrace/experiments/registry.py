"""All experiments by id, in the papers' order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from millrace.errors import InputError, near
from millrace.experiments import beyond, eddies, overheads, stairs, stems
from millrace.experiments.experiment import Experiment

EXPERIMENTS: dict[str, Experiment] = {
    experiment.id: experiment
    for paper in (eddies, overheads, stems, stairs, beyond)
    for experiment in paper.EXPERIMENTS
}


def find(ids: Iterable[str]) -> tuple[Experiment, ...]:
    """Return experiments by their ids, each once.

    Raises:
        InputError: There is no experiment of that id.
    """
    found = []
    for name in dict.fromkeys(ids):
        if name not in EXPERIMENTS:
            raise InputError(f"there is no experiment {name!r}: {near(name, EXPERIMENTS)}")
        found.append(EXPERIMENTS[name])
    return tuple(found)


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
