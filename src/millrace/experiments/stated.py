"""Experiments as they are stated: the words and the inequalities are in ``claims.toml`` beside the code.

A folder's file has a table for each experiment: ``title``, ``source``, ``claim``, the ``small`` sizes, the
``broken`` engines by name, and ``claims`` with the fields of :class:`millrace.experiments.experiment.Claim`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from functools import cache
from importlib.resources import files
from typing import Any

from millrace.experiments.experiment import Claim, Experiment, Outcome, Parameter, Settings


def stated(
    name: str,
    parameters: tuple[Parameter, ...],
    measure: Callable[[Settings], Outcome],
    *,
    wall: bool = False,
) -> Experiment:
    """Return an experiment.

    Args:
        name: Its id; what comes before the first hyphen is the folder.
        parameters: Numbers that may be changed.
        measure: Runs it.
        wall: Whether it measures real time.
    """
    paper, _, _ = name.partition("-")
    said = dict(_claims(paper)[name])
    claims = tuple(
        Claim(**{**each, "found": tuple(each.get("found", Claim.found))}) for each in said.pop("claims")
    )
    return Experiment(id=name, claims=claims, parameters=parameters, measure=measure, wall=wall, **said)


@cache
def _claims(paper: str) -> dict[str, Any]:
    text = (files("millrace.experiments") / paper / "claims.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)
