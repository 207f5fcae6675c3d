"""The folder of a hub: its queries, and what other processes ask of it.

``hub.json`` says what the queries share. ``changes`` has a file for each change of the queries, numbered
without gaps: it is written once and never changed, and is what the cells read. ``made`` has an empty file for
each change that a micro-batch has made, ``requests`` what other processes ask for, ``answers`` what became
of that, and ``spark`` is Spark's checkpoint. A file gets its name when it is complete, and by a link, which
fails where another has that name.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from millrace.errors import InputError, StateError
from millrace.standing.query import StandingQuery
from millrace.standing.registry import FORMAT, Change


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


class Folder:
    """A hub's folder.

    Args:
        path: Of the folder.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).absolute()
        self.changes = self.path / "changes"
        self.spark = self.path / "spark"
        self._made = self.path / "made"
        self._requests = self.path / "requests"
        self._answers = self.path / "answers"
        self._known: list[tuple[Change, dict[str, Any]]] = []

    def begin(self, join: dict[str, Any]) -> None:
        """Make the folder, or go on with it.

        Args:
            join: What the queries share.

        Raises:
            StateError: It is of another join, or of another version.
        """
        for each in (self.changes, self._made, self._requests, self._answers):
            each.mkdir(parents=True, exist_ok=True)
        _write(self.path / "hub.json", {"format": FORMAT, **join})
        found = self.join()
        if found != join:
            raise StateError(
                f"the hub in {self.path} is of another join: it was begun with {found}, and is given {join}; "
                "go on with that, or begin in an empty folder"
            )

    def join(self) -> dict[str, Any]:
        """Return what the queries share.

        Raises:
            InputError: There is no hub.
            StateError: Another version wrote it.
        """
        try:
            found: dict[str, Any] = json.loads((self.path / "hub.json").read_text())
        except FileNotFoundError:
            raise InputError(
                f"there is no hub in {self.path}: expected a folder that a hub was started in"
            ) from None
        if found.pop("format") != FORMAT:
            raise StateError(f"the hub in {self.path} is of another version: this one reads format {FORMAT}")
        return found

    # Changes

    def add(self, query: StandingQuery, told: dict[str, Any]) -> Change:
        """Write that a query comes; it gets its number.

        Args:
            query: The query, with any number.
            told: What people are told of it.
        """
        return self._append(lambda number: Change(number, replace(query, id=number)), told)

    def remove(self, gone: int) -> Change:
        """Write that a query goes."""
        return self._append(lambda number: Change(number, gone=gone), {})

    def _append(self, change_of: Callable[[int], Change], told: dict[str, Any]) -> Change:
        while True:
            number = len(self.written()) + 1
            change = change_of(number)
            if _write(self._path_of(number), change.to_json() | {"told": told}):
                return change

    def written(self) -> Sequence[tuple[Change, dict[str, Any]]]:
        """Return all changes in order, with what people are told of the query."""
        while (path := self._path_of(len(self._known) + 1)).exists():
            fields = json.loads(path.read_text())
            self._known.append((Change.from_json(fields), fields["told"]))
        return self._known

    def _path_of(self, number: int) -> Path:
        return self.changes / f"{number:08}.json"

    def note_made(self, number: int) -> None:
        """Note that a micro-batch has made a change."""
        (self._made / f"{number:08}").touch()

    def list(self) -> list[Listed]:
        """Return the queries that stand, are to come, or are about to leave."""
        self.join()
        made = {int(path.name) for path in self._made.iterdir()}
        found: dict[int, Listed] = {}
        for change, told in self.written():
            if change.query is not None:
                state = "running" if change.number in made else "waiting"
                query = change.query
                found[query.id] = Listed(
                    query.id, query.name, **told, streams=query.streams, since=query.since, state=state
                )
            elif change.gone in found and change.number in made:
                del found[change.gone]
            elif change.gone in found:
                found[change.gone] = replace(found[change.gone], state="leaving")
        return list(found.values())

    # Requests of other processes

    def request(self, asked: dict[str, Any]) -> str:
        """Ask the process that runs the hub for something; returns the request's name."""
        self.join()
        name = uuid.uuid4().hex
        _write(self._requests / f"{name}.json", asked)
        return name

    def requests(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield what is asked, oldest first."""
        for path in sorted(self._requests.glob("*.json"), key=lambda each: each.stat().st_mtime_ns):
            yield path.stem, json.loads(path.read_text())

    def answer(self, name: str, why_not: str | None) -> None:
        """Answer a request.

        Args:
            name: Of the request.
            why_not: Why it is refused; None where it is done.
        """
        _write(self._answers / f"{name}.json", {"refused": why_not})
        (self._requests / f"{name}.json").unlink()

    def answered(self, name: str) -> tuple[bool, str | None]:
        """Return whether a request has been answered, and why it was refused, if it was."""
        path = self._answers / f"{name}.json"
        if not path.exists():
            return False, None
        refused = json.loads(path.read_text())["refused"]
        path.unlink()
        return True, refused


def _write(path: Path, fields: dict[str, Any]) -> bool:
    """Write a file of JSON at once, unless there is one; returns whether it was written."""
    part = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    part.write_text(json.dumps(fields))
    try:
        os.link(part, path)
    except FileExistsError:
        return False
    finally:
        part.unlink()
    return True
