"""Where files are: on this machine's disks, or in a store that pyarrow reaches over the network.

Everything that reads a table's files asks its store.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from millrace.errors import InputError
from millrace.options import StorageOptions
from millrace.parquet.listing import State
from millrace.parquet.remote import SCHEMES, Remote

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_URI = re.compile(r"(([a-z0-9]+)://([^/]*))(?:/.*)?", re.DOTALL)
_DBFS = "/dbfs"


@dataclass(frozen=True)
class Disks:
    """The file systems of this machine."""

    root = ""
    reading = {"memory_map": False, "pre_buffer": False}  # noqa: RUF012  # mapped pages count as memory of the task

    def state(self, path: str) -> State:
        """Return a file's state.

        Raises:
            InputError: There is no such file.
        """
        try:
            stat = os.stat(path)
        except OSError as error:
            raise InputError(f"cannot read {path}: {error.strerror or error}") from None
        return State(stat.st_mtime_ns, stat.st_size)

    def source(self, path: str) -> Any:
        """Return what pyarrow opens a file by."""
        return path

    def tail(self, path: str, size: int) -> bytes:
        """Return a file's last bytes."""
        with open(path, "rb") as file:  # noqa: PTH123  # paths are kept as they are
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - size))
            return file.read()

    def is_folder(self, path: str) -> bool:
        """Tell whether there is a folder."""
        return os.path.isdir(path)  # noqa: PTH112

    def told(self, path: str, error: Exception) -> str | None:
        """Return what an error in reading says of the store; disks have nothing to say of their own."""
        return None


DISKS = Disks()


Store = Disks | Remote


def located(text: str, options: StorageOptions | None = None) -> tuple[Store | None, str]:
    """Return the store that a path is in, and the path as that store knows it.

    The store is None where only Spark knows what the path's scheme means.

    Args:
        text: A path or a URI, taken literally: nothing in it is unescaped.
        options: Those of the run.

    Raises:
        InputError: The URI has no bucket or host, or has a password in it.
    """
    scheme = _SCHEME.match(text)
    if scheme is None:
        return DISKS, text
    name = scheme[1].lower()
    if name == "file":
        return DISKS, "/" + text[len("file:") :].lstrip("/")
    if name == "dbfs" and Path(_DBFS).is_dir():
        return DISKS, f"{_DBFS}/{text[len('dbfs:') :].lstrip('/')}"
    if name not in SCHEMES or (name == "hdfs" and not text[5:].startswith("//")):
        return None, text  # an hdfs path without a host is where Spark's own settings say
    text = name + text[len(name) :]
    uri = _URI.fullmatch(text)
    if uri is None or not (uri[3] or name == "hdfs"):
        raise InputError(
            f"{text!r} names no bucket: expected {name}://bucket/path, as a text, for a pathlib.Path drops a "
            "slash"
        )
    kind, user = SCHEMES[name], uri[3].rpartition("@")[0]
    if (user and kind != "Azure") or (":" in (user or uri[3]) and kind != "Hadoop"):
        raise InputError(
            f"a path that begins with {name}:// has credentials or a port in it: expected "
            f"{name}://bucket/path; give access keys and endpoints in the option storage_options or in the "
            "environment"
        )
    return Remote(uri[1], options or StorageOptions()), text.rstrip("/")
