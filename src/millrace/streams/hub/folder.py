"""The folder of a hub: its queries, and which micro-batches have made them.

``hub.json`` says what the queries share. ``changes`` has a file for each change of the queries, numbered
in turn: it is written once and never changed, and is what the cells read. ``made.json`` has the number of
the newest one that a micro-batch has made, and those of the queries that run since, and ``spark`` is Spark's
checkpoint. All of them are written whole and nothing else is asked of where they are, so it may be an object
store. One process at a time writes changes: on a disk another one is told so, and in a store most often.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import Any

from millrace.errors import InputError, StateError
from millrace.options import StorageOptions
from millrace.parquet.store import NoConnection, Store, locate
from millrace.streams.hub.query import Change, StandingQuery, State, read_text, to_text

FORMAT = 3
"""Version of all that is in the folder, Spark's checkpoint included."""

WRITING = Lock()
"""Held from looking for a number to writing the change that has it."""

_READS = 3
"""A file that cannot be parsed is read so often, for a store may have given half of it."""


class Folder:
    """A hub's folder; ``storage`` reaches the store that it is in.

    Attributes:
        uri: What Spark calls it, whose bare paths may be in another file system than this process's.
    """

    def __init__(self, path: str | Path, storage: StorageOptions) -> None:
        self.storage, (self.store, self.path) = storage, locate_writable(path, storage)
        is_sparks = self.store.is_remote or str(path).lower().startswith("dbfs:")
        self.uri = str(path).rstrip("/") if is_sparks else f"file:{self.path}"
        self._known = {0: Change(0)}  # by number

    def begin(self, join: str) -> None:
        """Make the folder, or go on with it; ``join`` is what the queries share.

        Raises:
            StateError: It is of another join, or of another version, or nothing says which.
        """
        self.store.make_folder(f"{self.path}/changes")
        existing = self._read("hub.json")
        if existing is None and self.next() == 1:
            self._write("hub.json", json.dumps({"format": FORMAT, "on": join}))
            return
        if not existing:
            raise StateError(
                f"{self.path}/hub.json is {'missing' if existing is None else 'damaged'}: expected what says "
                "which join the hub's queries share; restore it, or begin in an empty folder"
            )
        if existing.get("format") != FORMAT:
            raise StateError(
                f"the hub in {self.path}: found format {existing.get('format')}, and this version of "
                f"Millrace reads {FORMAT}: go on with the version that wrote it, or begin in an empty folder"
            )
        if existing["on"] != join:
            raise StateError(
                f"the hub in {self.path} is of another join: it was begun with {existing['on']}, and is "
                f"given {join}; go on with that, or begin in an empty folder"
            )

    def next(self) -> int:
        """Return the number of the next change."""
        return len(self.read())

    def write(self, change: Change) -> None:
        """Write a change.

        Raises:
            StateError: Another process has written one of that number.
        """
        name, text = _name(change.number), to_text(change)
        self._write(name, text, anew=True)
        if to_text(self._read(name)) != text:
            raise StateError(
                f"another process has changed the queries of the hub in {self.path} at the same time, and "
                "this change is not made: expected one process at a time that does; make it again"
            )

    def read(self) -> list[Change]:
        """Return all changes, in order, behind one of no queries; a damaged file leaves them as they were."""
        number = len(self._known)
        while (change := self._read(_name(number))) is not None:
            self._known[number] = change or Change(number, self._known[number - 1].stand)
            number += 1
        return [*self._known.values()]

    def note_made(self, number: int, *queries: int) -> None:
        """Note the newest change that a micro-batch has made, and the queries that run since."""
        self._write("made.json", json.dumps({"newest": number, "queries": queries}))

    def queries(self) -> list[StandingQuery]:
        """Return the queries that stand, are to come, or are about to leave."""
        noted = self._read("made.json") or {"newest": 0}
        made = noted["newest"]
        changes = self.read()
        if made >= len(changes):
            raise StateError(
                f"{self.path}/{_name(len(changes))} is missing: expected all changes up to {made}, which "
                "cells have read; restore it"
            )
        # Earlier versions did not note the queries.
        stand, run = set(changes[-1].stand), set(noted.get("queries", changes[made].stand))
        queries = []
        for number, change in enumerate(changes):
            if change.query is not None and (number in stand or number in run or number > made):
                state: State = "leaving" if number not in stand else "running" if number in run else "waiting"
                queries.append(replace(change.query, state=state))
        return queries

    def _read(self, name: str) -> Any:
        """Return what a file says, None where there is none, and False where it is damaged."""
        path = f"{self.path}/{name}"
        if not self.store.info(path).is_file:
            return None
        for _ in range(_READS):
            with self.store.source(path) as file:
                found = read_text(file.read())
            if found is not False:
                return found
        return False

    def _write(self, name: str, text: str, *, anew: bool = False) -> None:
        path = f"{self.path}/{name}"
        with self.store.naming(path, "write"), self.store.writing(path, anew=anew) as file:
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())  # or a power failure may leave the name with nothing behind it


def _name(number: int) -> str:
    return f"changes/{number:08}.json"


def locate_writable(path: str | Path, storage: StorageOptions) -> tuple[Store, str]:
    """Return the store that something is to be written to, and where in it.

    Raises:
        InputError: Tasks cannot write there.
    """
    store, place = locate(str(path), storage)
    if store is None:
        raise InputError(
            f"{path} is where only Spark can write: expected a folder that all machines share, or one of an "
            "object store, such as s3a://bucket/folder"
        )
    try:
        store.system  # noqa: B018  # it is opened
    except NoConnection as error:
        raise InputError(f"cannot write to {path}: {error}") from None
    return store, place if store.is_remote else str(Path(place).absolute())
