"""The query's text with replacements, given out as templates for ``spark.sql``.

``spark.sql(template, **frames)`` puts a DataFrame where the template says ``{name}``; braces of the
text itself are doubled. Edits nest: a replacement may contain pieces of the original text that
have edits of their own, so a conjunct that moves keeps what was rewritten inside it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from millrace.front.leave import Leave
from millrace.front.parse import Span

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Part = str | Span
_PLACEHOLDER = re.compile(r"\{\{|\}\}|\{(\w+)\}")


@dataclass(frozen=True)
class Edit:
    """Characters ``[start, end)`` become ``parts``: template text, or pieces of the original."""

    start: int
    end: int
    parts: tuple[Part, ...]


def escape(text: str) -> str:
    """Return plain text as template text."""
    return text.replace("{", "{{").replace("}", "}}")


def plain_quote(name: str) -> str:
    """Return a name as a quoted identifier."""
    return "`" + name.replace("`", "``") + "`"


def quote(name: str) -> str:
    """Return a name as a quoted identifier, ready for a template."""
    return escape(plain_quote(name))


def placeholders(template: str) -> set[str]:
    """Return the names that a template wants filled; doubled braces are text."""
    return {m[1] for m in _PLACEHOLDER.finditer(template) if m[1]}


def substitute(template: str, texts: dict[str, str]) -> str:
    """Return the template with template texts in the place of some placeholders."""

    def put(match: re.Match[str]) -> str:
        return texts.get(match[1], match[0]) if match[1] else match[0]

    return _PLACEHOLDER.sub(put, template)


class EditedText:
    """A text with two layers of edits: tables bound to frames, and blocks taken."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.bindings: list[Edit] = []
        self.edits: list[Edit] = []

    def bind(self, start: int, end: int, *parts: Part) -> None:
        """Replace a table's name; part of the original query and of the rewritten one."""
        self.bindings.append(Edit(start, end, parts))

    def original(self) -> str:
        """Return the template of the whole query as written, with its tables bound."""
        return _render(self.text, self.bindings, 0, len(self.text))

    def render(self, start: int = 0, end: int | None = None) -> str:
        """Return the template of a piece of the rewritten query."""
        stop = len(self.text) if end is None else end
        return _render(self.text, self.bindings + self.edits, start, stop)

    def bound(self, start: int, end: int) -> str:
        """Return the template of a piece as written, with its tables bound."""
        return _render(self.text, self.bindings, start, end)


def _render(text: str, edits: list[Edit], start: int, end: int) -> str:
    inside = [e for e in edits if start <= e.start and e.end <= end]
    inside.sort(key=lambda e: (e.start, -e.end))
    out: list[str] = []
    at = start
    for edit in inside:
        if edit.start < at:
            continue  # stands within an edit that is already rendered
        out.append(escape(text[at : edit.start]))
        out.extend(part if isinstance(part, str) else _render(text, edits, *part) for part in edit.parts)
        at = edit.end
    out.append(escape(text[at:end]))
    return "".join(out)


class Frames:
    """The DataFrames that templates name, and the way to run a template."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark
        self._frames: dict[str, DataFrame] = {}
        self._barred: dict[str, str] = {}

    def bar(self, placeholder: str, what: str) -> None:
        """Note that Spark can analyse a frame but not read it, and what it stands for."""
        self._barred[placeholder.strip("{}")] = what

    def barred(self, template: str) -> list[str]:
        """Return what a template reads that Spark cannot read."""
        return sorted({self._barred[name] for name in placeholders(template) if name in self._barred})

    def place(self, frame: DataFrame, stem: str) -> str:
        """Return the placeholder that stands for the frame."""
        name = f"{stem}{len(self._frames)}"
        self._frames[name] = frame
        return "{" + name + "}"

    def rows(self, template: str) -> DataFrame:
        """Return a template's DataFrame, to be read; Spark's errors come out unchanged.

        Raises:
            Leave: It reads what Spark can only analyse.
        """
        barred = self.barred(template)
        if barred:
            raise Leave(f"it reads {' and '.join(barred)}, of which Spark has no rows")
        return self.sql(template)

    def sql(self, template: str) -> DataFrame:
        """Let Spark analyse a template; its errors come out unchanged."""
        names = placeholders(template)
        if not names:
            # Without frames Spark takes the text as it is, braces included.
            return self.spark.sql(template.replace("{{", "{").replace("}}", "}"))
        frames: dict[str, Any] = {name: self._frames[name] for name in names}
        return self.spark.sql(template, None, **frames)
