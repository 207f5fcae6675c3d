"""Keeping what is finished: after every run the files on disk are whole, and tell of all runs so far."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from millrace.errors import InputError
from millrace.experiments import registry
from millrace.experiments.draw import check_drawing, draw
from millrace.experiments.page import page
from millrace.experiments.result import Result, write, write_json
from millrace.experiments.table import entries, read, save

_PAGE = "index.html"


class Collection:
    """Results in a certain order, and the files that tell of them.

    Args:
        ids: Of the experiments, in the order to keep.
        json: File for verdicts and figures, or None.
        out: Folder for pictures and the page, made if it is not there; or None. Shows one seed.
        table: File of the table of results, in which those of these experiments are replaced; or None.

    Raises:
        InputError: A file or folder cannot be written.
        SetupError: There are pictures to be drawn, and matplotlib is not installed.
    """

    def __init__(
        self, ids: Sequence[str], json: Path | None, out: Path | None, table: Path | None = None
    ) -> None:
        self._ids = list(ids)
        self._json, self._out, self._table = json, out, table
        self._results: dict[tuple[str, int], Result] = {}
        self._drawings: dict[str, bytes] = {}
        for file in (json, table):
            if file is not None:
                _check_file(file)
        self._before = {} if table is None else read(table)
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
        self._results[result.id, result.task.settings.seed] = result
        if self._out is not None and result.outcome is not None:
            for kind, content in draw(result.task.experiment, result.outcome).items():
                write(self._out / f"{result.id}.{kind}", content)
                if kind == "svg":
                    self._drawings[result.id] = content
        if self._json is not None:
            write_json(self.results(), self._json)
        if self._table is not None:
            save(self._table, self._before | entries(self.results()), registry.EXPERIMENTS)
        if self.page is not None:
            write(self.page, page(self.results(), self._drawings))

    def results(self) -> list[Result]:
        """Return what is finished, in order; of an experiment, by seeds."""
        return [
            self._results[key] for key in sorted(self._results, key=lambda k: (self._ids.index(k[0]), k[1]))
        ]


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
