"""Warm-start statistics in a file of the executor's own folder, which Spark removes with the executor."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from pyspark import SparkFiles


@dataclass(frozen=True)
class FileWarmStart:
    """What the tasks of a run on one machine tell each other.

    Attributes:
        run: Identifies the run.
    """

    run: str

    def read(self) -> str | None:
        """Return what the latest task that ended on this machine has learned."""
        try:
            return self._path.read_text()
        except FileNotFoundError:
            return None

    def write(self, text: str) -> None:
        """Replace it, so that a reader sees the old or the new text and never a part of one."""
        handle, name = tempfile.mkstemp(dir=self._path.parent, prefix="millrace-")
        with os.fdopen(handle, "w") as file:
            file.write(text)
        Path(name).replace(self._path)

    @property
    def _path(self) -> Path:
        return Path(SparkFiles.getRootDirectory()) / f"{self.run}.lessons"
