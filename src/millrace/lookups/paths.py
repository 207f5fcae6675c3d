"""JSON paths (RFC 9535): where in an answer the rows are, and where in a row a column is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from millrace.errors import InputError, require
from millrace.lookups.values import ABSENT

if TYPE_CHECKING:
    from jsonpath import JSONPath


@dataclass(frozen=True)
class Path:
    """A JSON path, ready to be used.

    Attributes:
        steps: Member names and positions, of a path that finds one value at most; None of others.
    """

    text: str
    steps: tuple[str | int, ...] | None
    query: JSONPath

    def one(self, value: Any) -> Any:
        """Return what a path with ``steps`` finds; ``ABSENT`` if that is nothing."""
        assert self.steps is not None
        for step in self.steps:
            if isinstance(step, str):
                value = value.get(step, ABSENT) if isinstance(value, dict) else ABSENT
            elif isinstance(value, list) and -len(value) <= step < len(value):
                value = value[step]
            else:
                return ABSENT
        return value

    def all(self, value: Any) -> list[Any]:
        """Return everything it finds."""
        if self.steps is not None:
            found = self.one(value)
            return [] if found is ABSENT else [found]
        # The library would read a text as JSON.
        return self.query.findall(value) if isinstance(value, dict | list) else []


@lru_cache(maxsize=1024)
def path(text: str, what: str) -> Path:
    """Compile a path that begins at the root ``$``; ``what`` it is for is named in errors.

    Raises:
        InputError: It is not a JSON path.
        MissingExtra: The library is not installed.
    """
    require("lookups", f"{what}, a JSON path,", "jsonpath")
    import jsonpath
    from jsonpath.selectors import IndexSelector, NameSelector

    if not str(text).startswith("$"):
        raise InputError(f"{what} is {text!r}, which is no JSON path: one begins with $, such as $.items[*]")
    try:
        query = jsonpath.JSONPathEnvironment(strict=True).compile(text)
    except (jsonpath.JSONPathError, ValueError) as error:
        why = error.args[0] if error.args else type(error).__name__
        raise InputError(f"{what} is {text!r}, which is no JSON path (RFC 9535): {why}") from None
    assert isinstance(query, jsonpath.JSONPath)
    if not query.singular_query():
        return Path(text, None, query)
    steps: list[str | int] = []
    for segment in query.segments:
        match segment.selectors[0]:
            case NameSelector() as selector:
                steps.append(selector.name)
            case IndexSelector() as selector:
                steps.append(selector.index)
    return Path(text, tuple(steps), query)


def relative(text: str, what: str) -> Path:
    """Compile a path from a row on; ``price.amount``, ``['a b']`` and ``$.price.amount`` are all well."""
    if not text:
        raise InputError(f"{what} is {text!r}, expected a path within a row, such as price.amount")
    if text.startswith("$"):
        return path(text, what)
    return path(f"${text}" if text.startswith("[") else f"$.{text}", what)


Getter = Callable[[Any], Any]


def getter(found: Path) -> Getter:
    """Return a function that reads a column from a row: one value, or the list of all a path finds."""
    return found.one if found.steps is not None else found.all
