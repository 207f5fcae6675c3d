"""What a store lists: files with their states, and the folders that they are in."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol

from pyarrow import fs


class State(NamedTuple):
    """What tells whether a file has changed: its time in nanoseconds, and its size in bytes."""

    mtime_ns: int
    size: int


class Folders(Protocol):
    """Knows which folders there are."""

    @property
    def root(self) -> str: ...

    def is_folder(self, path: str) -> bool: ...


class Entry(NamedTuple):
    """What a folder has: as ``os.DirEntry``."""

    name: str
    path: str
    kind: fs.FileType

    def is_file(self) -> bool:
        return bool(self.kind == fs.FileType.File)


class Tree:
    """All that is below a folder of a store.

    Args:
        store: The store.
        root: The folder.
        found: What is below it, by path.
    """

    def __init__(self, store: Folders, root: str, found: Iterable[tuple[str, fs.FileInfo]]) -> None:
        self._store = store
        self.root = store.root
        self._top = root.rstrip("/")
        self._entries: dict[str, dict[str, Entry]] = {self._top: {}}
        self.states: dict[str, State] = {}
        for path, info in found:
            if info.type == fs.FileType.File:
                self.states[path] = state_of(info)
            self._add(path, info.type)

    def entries(self, folder: str) -> list[Entry]:
        """Return a folder's entries by name."""
        return sorted(self._entries.get(folder.rstrip("/"), {}).values())

    def is_folder(self, path: str) -> bool:
        """Tell whether there is a folder, here or anywhere in the store."""
        if path.startswith(self._top + "/"):
            return path in self._entries
        return self._store.is_folder(path)

    def _add(self, path: str, kind: fs.FileType) -> None:
        if kind == fs.FileType.Directory:
            self._entries.setdefault(path, {})
        folder, _, name = path.rpartition("/")
        if path == self._top or name in self._entries.get(folder, {}):
            return
        self._entries.setdefault(folder, {})[name] = Entry(name, path, kind)
        self._add(folder, fs.FileType.Directory)  # not all stores list folders


def state_of(info: fs.FileInfo) -> State:
    """Return a file's state."""
    return State(-1 if info.mtime_ns is None else info.mtime_ns, info.size)
