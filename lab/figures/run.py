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
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import FrameType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from lab.figures import find
from lab.figures.figure import Figure, Outcome, Settings, Verdict, worst
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
        """The figure."""
        return find([self.id])[0]

    def settings(self) -> Settings:
        """Return checked settings; an OptionError or InputError says what is wrong with them."""
        figure = self.figure
        overrides = {**(figure.small if self.small else {}), **self.overrides}
        return figure.settings(self.seed, overrides, self.ablated, load(self.policy) if self.policy else None)


@dataclass(frozen=True)
class Result:
    """A finished run: what it found, or why it failed."""

    task: Task
    values: Mapping[str, float]
    outcome: Outcome | None
    seconds: float
    error: str = ""

    @property
    def verdicts(self) -> list[Verdict]:
        """The verdict on each claim; a run that failed shows nothing."""
        if self.outcome is None:
            return ["does not hold"]
        return [claim.judge(self.outcome.figures) for claim in self.task.figure.claims]

    @property
    def verdict(self) -> Verdict:
        """The verdict on all claims together."""
        return worst(self.verdicts)


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


def run(tasks: Sequence[Task], jobs: int, console: Console) -> Iterator[Result]:
    """Yield results as runs end, in any order; Ctrl-C and SIGTERM end the processes.

    Raises:
        ExecutionError: A process died.
        KeyboardInterrupt: The run was interrupted.
    """
    before = signal.signal(signal.SIGTERM, _interrupted)
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[now]}"))
    expected = sum(task.figure.seconds for task in tasks if not task.small)
    try:
        with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as progress:
            bar = progress.add_task(f"0 of {len(tasks)}", total=max(1, expected), now="")
            done = 0
            for wall in (False, True):
                some = [task for task in tasks if task.figure.wall == wall]
                for result in _beside(some, 1 if wall else jobs, lambda now: progress.update(bar, now=now)):
                    done += 1
                    spent = 0 if result.task.small else result.task.figure.seconds
                    progress.update(bar, advance=spent, description=f"{done} of {len(tasks)}")
                    yield result
    finally:
        signal.signal(signal.SIGTERM, before)


def _interrupted(_: int, __: FrameType | None) -> None:
    raise KeyboardInterrupt


def _beside(tasks: Sequence[Task], jobs: int, show: Callable[[str], object]) -> Iterator[Result]:
    """Run tasks in processes that are started afresh and share nothing, at most ``jobs`` at a time."""
    if not tasks:
        return
    # Ctrl-C is this process's to answer.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(
        min(jobs, len(tasks)), context, signal.signal, (signal.SIGINT, signal.SIG_IGN)
    ) as pool:
        waiting, running = list(reversed(tasks)), dict[Future[Result], Task]()
        try:
            while waiting or running:
                while waiting and len(running) < jobs:
                    task = waiting.pop()
                    running[pool.submit(measure, task)] = task
                about = ", ".join(f"{t.id} (about {t.figure.seconds} s)" for t in running.values())
                show(f"{about}, seed {', '.join(str(t.seed) for t in running.values())}")
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    del running[future]
                    yield future.result()
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
