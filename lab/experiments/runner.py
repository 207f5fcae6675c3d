"""Running experiments: on the virtual clock side by side in processes, on the wall clock one at a time.

An experiment draws all its random numbers from its own seed, so what it finds does not depend on which
process runs it, nor on what runs beside it. Those that measure real time wait until all others have ended.
"""

from __future__ import annotations

import math
import multiprocessing
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Any

from lab.experiments.experiment import Experiment, Outcome, Settings, Verdict
from millrace.errors import ExecutionError, MillraceError

Task = tuple[Experiment, Settings]


@dataclass(frozen=True)
class Result:
    """A finished run: what was found, or why it failed."""

    experiment: Experiment
    settings: Settings
    outcome: Outcome | None
    error: str = ""

    @property
    def id(self) -> str:
        """The experiment's."""
        return self.experiment.id

    @property
    def holds(self) -> Verdict:
        """Whether every claim holds; a run that failed shows nothing."""
        return False if self.outcome is None else self.outcome.holds

    def misses(self) -> list[str]:
        """Return one sentence for each claim that does not hold, or for the error."""
        if self.outcome is None:
            return [f"{self.id}: {self.error}"]
        return [f"{self.id}: {c.claim}: {c.measured}" for c in self.outcome.checks if not c.holds]

    def command(self) -> str:
        """Return the command line that does the run again."""
        words = ["millrace experiment run", self.id, f"--seed {self.settings.seed}"]
        words += [
            f"--set {each.name}={int(value) if value % 1 == 0 else value!r}"
            for each in self.experiment.parameters
            if (value := self.settings[each.name]) != each.default
        ]
        flags = {"--wall": self.experiment.wall, "--ablate": self.settings.ablated}
        return " ".join([*words, *(flag for flag, on in flags.items() if on)])

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form; a figure that is no number, such as one over nothing, becomes null."""
        outcome = self.outcome or Outcome((), {})
        return {
            "id": self.id,
            "holds": self.holds,
            "figures": {name: x if math.isfinite(x) else None for name, x in outcome.figures.items()},
            "seed": self.settings.seed,
            "ablated": self.settings.ablated or False,
            "parameters": dict(self.settings.values),
            "checks": [vars(check) for check in outcome.checks],
            **({"error": self.error} if self.error else {}),
        }


def run(tasks: Sequence[Task], jobs: int = 1) -> Iterator[Result]:
    """Yield results as runs come to their ends, which with several jobs is in any order.

    A run that fails for a reason that its message explains becomes a result like any other. Closing the
    iterator, or an exception such as KeyboardInterrupt, ends the processes.

    Args:
        tasks: The runs.
        jobs: At most so many processes at a time.

    Raises:
        ExecutionError: A process died.
    """
    virtual = [task for task in tasks if not task[0].wall]
    if jobs > 1 and len(virtual) > 1:
        yield from _beside(virtual, min(jobs, len(virtual)))
    else:
        yield from map(_finished, virtual)
    yield from (_finished(task) for task in tasks if task[0].wall)


def _finished(task: Task) -> Result:
    """Run a task; what our errors explain is part of the result, other errors are not."""
    experiment, settings = task
    try:
        return Result(experiment, settings, experiment.run(settings))
    except MillraceError as error:
        return Result(experiment, settings, None, str(error))


def _beside(tasks: Sequence[Task], jobs: int) -> Iterator[Result]:
    """Run tasks in processes of their own, started afresh so that they share nothing."""
    others = set(multiprocessing.active_children())
    # Ctrl-C is this process's to answer.
    deaf = (signal.SIGINT, signal.SIG_IGN)
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), signal.signal, deaf) as pool:
        try:
            for future in as_completed([pool.submit(_finished, task) for task in tasks]):
                yield future.result()
        except BrokenProcessPool as error:
            raise ExecutionError(
                "a process that ran experiments ended all of a sudden, maybe for want of memory; --jobs 1 "
                "runs them one at a time"
            ) from error
        except BaseException:
            # Nobody wants what is left, which is in the middle of something. The pool itself waits for
            # processes to end: of two threads that wait for one, the second is told nothing.
            for child in set(multiprocessing.active_children()) - others:
                child.terminate()
            pool.shutdown(cancel_futures=True)
            raise
