"""Running figures in processes of their own, with progress; those that measure real time alone, at the end.

A run draws all its random numbers from its own seed, so what it finds does not depend on which process runs
it, nor on what runs beside it.
"""

from __future__ import annotations

import multiprocessing
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import FrameType

from rich.console import Console

from lab.figures import find
from lab.figures.figure import Claim, Figure, Outcome, Settings, Verdict, worst
from millrace.engine.policies import Policy
from millrace.errors import ExecutionError, InputError, MillraceError


@dataclass(frozen=True)
class Task:
    """A figure to run, with parameters that differ from the defaults, and a policy as ``file.py:Class``."""

    id: str
    seed: int
    overrides: Mapping[str, float]
    ablated: str = ""
    policy: str = ""
    small: bool = False

    @property
    def figure(self) -> Figure:
        return find([self.id])[0]

    def settings(self) -> Settings:
        """Return checked settings; an OptionError or InputError says what is wrong with them."""
        overrides = {**(self.figure.small if self.small else {}), **self.overrides}
        policy = load(self.policy) if self.policy else None
        return self.figure.settings(self.seed, overrides, self.ablated, policy)


@dataclass(frozen=True)
class Result:
    """A finished run: what it found, or why it failed."""

    task: Task
    values: Mapping[str, float]
    outcome: Outcome | None
    seconds: float
    error: str = ""

    def judge_claims(self) -> Iterator[tuple[Claim, float, Verdict]]:
        """Yield each claim with its number and the verdict; nothing of a run that failed."""
        if self.outcome is not None:
            for claim in self.task.figure.claims:
                figures = self.outcome.figures
                yield claim, figures[claim.figure], claim.judge(figures)

    @property
    def verdict(self) -> Verdict:
        """The verdict on all claims together; a run that failed shows nothing."""
        return worst(verdict for *_, verdict in self.judge_claims()) if self.outcome else "does not hold"


def load(path: str) -> Callable[[], Policy]:
    """Return the class in ``file.py:Class``, which needs no arguments.

    Raises:
        InputError: There is no such file or class, or it is no policy.
    """
    file, _, name = path.rpartition(":")
    if not file or not Path(file).is_file():
        raise InputError(f"--policy {path}: expected a file and a class in it, such as mine.py:Thompson")
    spec = spec_from_file_location(Path(file).stem, file)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    found = getattr(module, name, None)
    if not isinstance(found, type) or not issubclass(found, Policy):
        raise InputError(f"--policy {path}: {name} is no class of {file} that inherits from Policy")
    return found


def measure(task: Task) -> Result:
    """Run a task; what our errors explain is part of the result, other errors are not."""
    began = time.monotonic()
    settings = task.settings()
    try:
        outcome, error = task.figure.measure(settings), ""
    except MillraceError as failed:
        outcome, error = None, str(failed)
    return Result(task, settings.values, outcome, time.monotonic() - began, error)


def run(tasks: Sequence[Task], jobs: int) -> Iterator[Result]:
    """Yield results as runs end, in any order; Ctrl-C and SIGTERM end the processes.

    Raises:
        ExecutionError: A process died.
        KeyboardInterrupt: The run was interrupted.
    """
    before = signal.signal(signal.SIGTERM, _interrupted)
    try:
        for wall, workers in ((False, jobs), (True, 1)):
            if some := [task for task in tasks if task.figure.wall == wall]:
                yield from _beside(some, min(workers, len(some)))
    finally:
        signal.signal(signal.SIGTERM, before)


def _interrupted(_: int, __: FrameType | None) -> None:
    raise KeyboardInterrupt


def _beside(tasks: Sequence[Task], workers: int) -> Iterator[Result]:
    """Run tasks in processes that are started afresh and share nothing."""
    context, ignoring = multiprocessing.get_context("spawn"), (signal.SIGINT, signal.SIG_IGN)
    # Ctrl-C is this process's to answer.
    with ProcessPoolExecutor(workers, context, signal.signal, ignoring) as pool:
        try:
            futures = {pool.submit(measure, task): task for task in tasks}
            waiting = set(futures)
            with Console(stderr=True).status("") as status:
                while waiting:
                    running = ", ".join(dict.fromkeys(futures[each].id for each in waiting if each.running()))
                    status.update(f"{len(tasks) - len(waiting)} of {len(tasks)} done; running: {running}")
                    done, waiting = wait(waiting, 1, FIRST_COMPLETED)
                    yield from (future.result() for future in done)
        except BrokenProcessPool as error:
            raise ExecutionError(
                "a process that ran figures ended all of a sudden, maybe for want of memory; --jobs 1 runs "
                "them one at a time"
            ) from error
        except BaseException:
            # What is left is in the middle of something, and the pool itself waits for it to end.
            for child in multiprocessing.active_children():
                child.terminate()
            pool.shutdown(cancel_futures=True)
            raise
