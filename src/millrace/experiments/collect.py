"""Keeping what is finished: after every run the files on disk are whole, and tell of all runs so far."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from millrace.errors import InputError
from millrace.experiments.draw import check_drawing, draw
from millrace.experiments.page import page
from millrace.experiments.result import Result, write, write_json

_PAGE = "index.html"


class Collection:
    """Results in a certain order, and the files that tell of them.

    Args:
        ids: Of the experiments, in the order to keep.
        json: File for verdicts and figures, or None.
        out: Folder for pictures and the page, made if it is not there; or None.

    Raises:
        InputError: A file or folder cannot be written.
        SetupError: There are pictures to be drawn, and matplotlib is not installed.
    """

    def __init__(self, ids: Sequence[str], json: Path | None, out: Path | None) -> None:
        self._ids = list(ids)
        self._json, self._out = json, out
        self._results: dict[str, Result] = {}
        self._drawings: dict[str, bytes] = {}
        if json is not None:
            _check_file(json)
        if out is not None:
            check_drawing()
            _make_folder(out)

    @property
    def page(self) -> Path | None:
        """Where the page is."""
        return None if self._out is None else self._out / _PAGE

    def add(self, result: Result) -> None:
        """Keep one more result, and write it; Ctrl-C meanwhile waits until that is done."""
        with _undisturbed():
            self._add(result)

    def _add(self, result: Result) -> None:
        self._results[result.id] = result
        if self._out is not None and result.outcome is not None:
            for kind, content in draw(result.task.experiment, result.outcome).items():
                write(self._out / f"{result.id}.{kind}", content)
                if kind == "svg":
                    self._drawings[result.id] = content
        if self._json is not None:
            write_json(self.results(), self._json)
        if self.page is not None:
            write(self.page, page(self.results(), self._drawings))

    def results(self) -> list[Result]:
        """Return what is finished, in order."""
        return [self._results[name] for name in self._ids if name in self._results]


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Let an interrupt wait for the end of the body; only the main thread ever gets one."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    waiting: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: waiting.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if waiting:
        signal.raise_signal(signal.SIGINT)  # to who heard it before; a parent may have had it ignored


def _check_file(path: Path) -> None:
    if path.is_dir():
        raise InputError(f"cannot write {path}: it is a folder; name a file")
    if not path.absolute().parent.is_dir():
        raise InputError(f"cannot write {path}: there is no folder {path.absolute().parent}")


def _make_folder(path: Path) -> None:
    if path.exists() and not path.is_dir():
        raise InputError(f"--out {path} is a file: name a folder, which is made if it is not there")
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--out {path}: cannot make the folder: {error.strerror}") from error
