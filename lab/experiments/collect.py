"""Keeping what is finished: after every run the files on disk are whole, and tell of all runs so far."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from lab.experiments import registry
from lab.experiments.draw import check_drawing, draw
from lab.experiments.page import page
from lab.experiments.runner import Result
from lab.experiments.table import encoded, entries, read, rendered
from millrace.errors import InputError


class Collection:
    """Results in a certain order, and the files that tell of them.

    Args:
        ids: Of the experiments, in the order to keep.
        json: File for verdicts and figures, or None.
        out: Folder for pictures and the page, made if it is not there; or None. Shows one seed.
        table: File of the table of results, in which those of these experiments are replaced; or None.

    Attributes:
        page: Where the page is, or None.

    Raises:
        InputError: A file or folder cannot be written.
        SetupError: There are pictures to be drawn, and matplotlib is not installed.
    """

    def __init__(
        self, ids: Sequence[str], json: Path | None, out: Path | None, table: Path | None = None
    ) -> None:
        self._ids = list(ids)
        self._json, self._out, self._table = json, out, table
        self._results: dict[tuple[int, int], Result] = {}
        self._drawings: dict[str, bytes] = {}
        for file in (json, table):
            if file is not None and file.is_dir():
                raise InputError(f"cannot write {file}: it is a folder; name a file")
            if file is not None and not file.absolute().parent.is_dir():
                raise InputError(f"cannot write {file}: there is no folder {file.absolute().parent}")
        self._before = {} if table is None else read(table)
        self.page = None if out is None else out / "index.html"
        if out is not None:
            check_drawing()
            if out.exists() and not out.is_dir():
                raise InputError(f"--out {out} is a file: name a folder, which is made if it is not there")
            try:
                out.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise InputError(f"--out {out}: cannot make the folder: {error.strerror}") from error

    def add(self, result: Result) -> None:
        """Keep one more result, and write it."""
        self._results[self._ids.index(result.id), result.settings.seed] = result
        if self._json is not None:
            told = [each.to_dict() for each in self.results()]
            write(self._json, json.dumps(told, indent=2) + "\n")
        if self._table is not None:
            found = self._before | entries(self.results())
            write(self._table, encoded(found, registry.EXPERIMENTS))
            write(self._table.with_suffix(".md"), rendered(found, registry.EXPERIMENTS))
        if self._out is not None and self.page is not None:
            if result.outcome is not None:
                drawn = draw(result.experiment, result.outcome)
                for kind, content in drawn.items():
                    write(self._out / f"{result.id}.{kind}", content)
                self._drawings[result.id] = drawn["svg"]
            write(self.page, page(self.results(), self._drawings))

    def results(self) -> list[Result]:
        """Return what is finished, in order; of an experiment, by seeds."""
        return [self._results[key] for key in sorted(self._results)]


def write(path: Path, content: str | bytes) -> None:
    """Write a file so that whoever looks finds the old one or the new one, never a part."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        beside.write_bytes(content.encode() if isinstance(content, str) else content)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
