"""The folder of a hub: its queries, and which micro-batches have made them.

``hub.json`` says what the queries share. ``changes`` has a file for each change of the queries, numbered
in turn: it is written once and never changed, and is what the cells read. ``made`` has a file for each
change that says which micro-batch has made it, and ``spark`` is Spark's checkpoint. Changes of micro-batches
that Spark never runs again are one file of ``standing``, which has the queries that stood after the last of
them. A file gets its name when it is complete, and by a link, which fails where another has that name.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from millrace.errors import InputError, StateError
from millrace.streams.hub.query import StandingQuery
from millrace.streams.hub.registry import FORMAT, Change, read_fields

_MERGED = 64
"""So many changes become one file."""


@dataclass(frozen=True)
class Listed:
    """A query of a hub.

    Attributes:
        id: Its number.
        name: Its name.
        select: Its columns, as it was given.
        where: Its conditions; None for none.
        streams: The streams that it joins.
        since: ``"now"`` or ``"window"``.
        sink: The folder that its rows are written to; None for a function.
        state: ``"waiting"`` until a micro-batch begins with it, then ``"running"``; ``"leaving"`` until one
            goes on without it.
    """

    id: int
    name: str
    select: str
    where: str | None
    streams: tuple[str, ...]
    since: str
    sink: str | None
    state: str


Written = tuple[Change, dict[str, Any]]
"""A change, with what :class:`Listed` says of the query that comes."""


class Folder:
    """A hub's folder."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).absolute()
        self.changes = self.path / "changes"
        self.spark = self.path / "spark"
        self._made = self.path / "made"
        self._standing = self.path / "standing"
        # Queries that stood after the changes that are put together, and the changes from then on.
        self._together = 0
        self._known: dict[int, Written] = {}

    def begin(self, join: dict[str, Any]) -> None:
        """Make the folder, or go on with it; ``join`` is what the queries share.

        Raises:
            StateError: It is of another join, or of another version.
        """
        for each in (self.changes, self._made, self._standing):
            each.mkdir(parents=True, exist_ok=True)
        _write(self.path / "hub.json", {"format": FORMAT, **join})
        existing = self.join()
        if existing != join:
            raise StateError(
                f"the hub in {self.path} is of another join: it was begun with {existing}, and is given "
                f"{join}; go on with that, or begin in an empty folder"
            )

    def join(self) -> dict[str, Any]:
        """Return what the queries share.

        Raises:
            InputError: There is no hub.
            StateError: Another version wrote it.
        """
        try:
            fields: dict[str, Any] = json.loads((self.path / "hub.json").read_text())
        except FileNotFoundError:
            raise InputError(
                f"there is no hub in {self.path}: expected a folder that a hub was started in"
            ) from None
        if fields.pop("format") != FORMAT:
            raise StateError(f"the hub in {self.path} is of another version: this one reads format {FORMAT}")
        return fields

    # Changes

    def add(
        self, query: StandingQuery, details: dict[str, Any], claim: Callable[[int], object] | None = None
    ) -> Change:
        """Write that a query comes; it gets its number, whatever it had before.

        ``details`` are what :class:`Listed` says of it: ``select``, ``where`` and ``sink``. ``claim`` is
        called with the number before anybody can read the change. It is called again with another one where
        another process took that number.
        """

        def change_of(number: int) -> Change:
            if claim is not None:
                claim(number)
            return Change(number, replace(query, id=number))

        return self._append(change_of, details)

    def remove(self, gone: int) -> Change:
        """Write that a query goes."""
        return self._append(lambda number: Change(number, gone=gone), {})

    def _append(self, change_of: Callable[[int], Change], details: dict[str, Any]) -> Change:
        while True:
            self.written()
            # A number whose file is damaged stays without a change.
            whole = (n for n, (each, _) in self._known.items() if each.query is not None or each.gone)
            last, before = max(self._known, default=0), max(whole, default=0)
            last, before = max(last, self._together), max(before, self._together)
            change = change_of(last + 1)
            if before < last:
                change = replace(change, before=before)
            written = _write(self._path_of(change.number), change.to_json() | {"told": details})
            # A name is free also where another process has just put the change together with others.
            if written and change.number > self._latest():
                return change

    def written(self) -> Sequence[Written]:
        """Return changes in order, with what :class:`Listed` says of the query.

        Of those that are put together, only queries that stand are left. A damaged file is a change of
        nothing.
        """
        while True:
            latest = self._latest()
            try:
                if latest > self._together:
                    queries = json.loads((self._standing / _name(latest)).read_text())["queries"]
                    self._known = {each["number"]: _written(each) for each in queries}
                    self._together = latest
                while (path := self._path_of(max([self._together, *self._known]) + 1)).exists():
                    fields = read_fields(path.read_bytes())
                    number = int(path.stem)
                    self._known[number] = (Change(number), {}) if fields is None else _written(fields)
            except FileNotFoundError:
                continue  # it has just been put together with others
            if latest == self._latest():
                return list(self._known.values())

    def _latest(self) -> int:
        """Return the number of the last change that is put together with those before it."""
        return max((int(path.stem) for path in self._standing.glob("[0-9]*.json")), default=0)

    def _path_of(self, number: int) -> Path:
        return self.changes / _name(number)

    def note_made(self, number: int, batch: int) -> None:
        """Note that a micro-batch has made a change."""
        _write(self._made / _name(number), {"batch": batch})

    def put_together(self, oldest: int) -> None:
        """Make one file of changes, and remove them, once there are many.

        ``oldest`` is the oldest micro-batch that Spark may run again: what earlier ones have made is in the
        cells' state, and is not read again.
        """
        changes = self.written()
        last = self._together + _MERGED
        # Micro-batches make changes in order, so those before it are as old.
        made = self._made / _name(last)
        note = read_fields(made.read_bytes()) if made.exists() else None
        if note is None or note["batch"] >= oldest:
            return
        stand = {change.number: (change, details) for change, details in changes if change.number <= last}
        for change, _ in list(stand.values()):
            if change.query is None:
                del stand[change.number]
                stand.pop(change.gone or 0, None)
        queries = [change.to_json() | {"told": details} for change, details in stand.values()]
        _write(self._standing / _name(last), {"format": FORMAT, "queries": queries})
        for folder in (self.changes, self._made, self._standing):
            for path in folder.glob("[0-9]*.json"):
                if int(path.stem) < last + (folder != self._standing):
                    path.unlink(missing_ok=True)

    def check_checkpoint(self) -> None:
        """Refuse to begin anew where the cells' state alone knows the queries.

        Raises:
            StateError: Spark's checkpoint is not there any more.
        """
        if self._latest() and not any(self.spark.glob("offsets/[0-9]*")):
            raise StateError(
                f"{self.spark} has no checkpoint of Spark's, and the first {self._latest()} changes of the "
                "hub's queries are nowhere else: put it back, or begin a hub in an empty folder and add the "
                "queries again"
            )

    def list(self) -> list[Listed]:
        """Return the queries that stand, are to come, or are about to leave."""
        self.join()
        changes = self.written()
        applied = {int(path.stem) for path in self._made.glob("[0-9]*.json")}
        applied.update(change.number for change, _ in changes if change.number <= self._together)
        queries: dict[int, Listed] = {}
        for change, details in changes:
            if change.query is not None:
                state = "running" if change.number in applied else "waiting"
                query = change.query
                queries[query.id] = Listed(
                    query.id, query.name, **details, streams=query.streams, since=query.since, state=state
                )
            elif change.gone in queries and change.number in applied:
                del queries[change.gone]
            elif change.gone in queries:
                queries[change.gone] = replace(queries[change.gone], state="leaving")
        return list(queries.values())


def _name(number: int) -> str:
    return f"{number:08}.json"


def _written(fields: dict[str, Any]) -> Written:
    return Change.from_json(fields), fields["told"]


def _write(path: Path, fields: dict[str, Any]) -> bool:
    """Write a file of JSON at once, unless there is one; returns whether it was written."""
    part = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    with part.open("w") as file:
        file.write(json.dumps(fields))
        file.flush()
        os.fsync(file.fileno())  # or a power failure may leave the name with nothing behind it
    try:
        os.link(part, path)
    except FileExistsError:
        return False
    finally:
        part.unlink()
    return True
