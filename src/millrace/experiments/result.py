"""What became of a run: its settings, its outcome or its error, and the JSON form of both."""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from millrace.experiments.experiment import Experiment, Outcome, Settings, Verdict


@dataclass(frozen=True)
class Task:
    """An experiment with the settings of one run of it."""

    experiment: Experiment
    settings: Settings


@dataclass(frozen=True)
class Result:
    """A finished run.

    Attributes:
        task: What was asked for.
        outcome: What was found; None where the run failed.
        error: Why it failed, empty where it did not.
        seconds: Of wall time.
    """

    task: Task
    outcome: Outcome | None
    error: str
    seconds: float

    @property
    def id(self) -> str:
        """The experiment's."""
        return self.task.experiment.id

    @property
    def holds(self) -> Verdict:
        """Whether every claim holds; a run that failed shows nothing."""
        return False if self.outcome is None else self.outcome.holds

    def misses(self) -> list[str]:
        """Return one sentence for each check that does not hold, or for the error."""
        if self.outcome is None:
            return [f"{self.id}: {self.error}"]
        return [f"{self.id}: {c.claim}: {c.measured}" for c in self.outcome.checks if not c.holds]

    def command(self) -> str:
        """Return the command line that does the run again."""
        experiment, settings = self.task.experiment, self.task.settings
        changed = [
            f"--set {p.name}={_plain(settings[p.name])}"
            for p in experiment.parameters
            if settings[p.name] != p.default
        ]
        flags = [
            *changed,
            *(["--wall"] if experiment.wall else []),
            *(["--ablate"] if settings.ablated else []),
        ]
        return " ".join(["millrace experiment run", experiment.id, f"--seed {settings.seed}", *flags])

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form; a figure that is no number, such as one over nothing, becomes null."""
        settings = self.task.settings
        figures = {} if self.outcome is None else self.outcome.figures
        checks = () if self.outcome is None else self.outcome.checks
        found: dict[str, Any] = {
            "id": self.id,
            "holds": self.holds,
            "figures": {name: value if math.isfinite(value) else None for name, value in figures.items()},
            "seed": settings.seed,
            "ablated": settings.ablated or False,
            "parameters": dict(settings.values),
            "checks": [vars(check) for check in checks],
        }
        if self.error:
            found["error"] = self.error
        return found


def write_json(results: Sequence[Result], path: Path) -> None:
    """Write a list of what :meth:`Result.to_dict` returns, whole or not at all."""
    write(path, (json.dumps([result.to_dict() for result in results], indent=2) + "\n").encode())


def write(path: Path, content: bytes) -> None:
    """Write a file so that whoever looks finds the old one or the new one, never a part."""
    handle, beside = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        Path(beside).chmod(0o644)
        Path(beside).replace(path)
    except BaseException:
        Path(beside).unlink(missing_ok=True)
        raise


def _plain(value: float) -> str:
    """Return a number as ``--set`` takes it."""
    return str(int(value)) if float(value).is_integer() else repr(float(value))
