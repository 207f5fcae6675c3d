"""The query's text with replacements, given out as templates.

A template names DataFrames as ``{name}``; braces of the text itself are doubled
(:mod:`millrace.sql.session.asking` fills and runs it). Edits nest: a replacement may contain pieces of the
original text that have edits of their own, so a condition that moves keeps what was rewritten inside it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

Span = tuple[int, int]
"""Characters ``[start, end)`` of the query."""

Part = str | Span
"""Template text, or a piece of the query."""

PLACEHOLDER = re.compile(r"\{\{|\}\}|\{(\w+)\}")


class Edit(NamedTuple):
    """Characters ``[start, end)`` become ``parts``."""

    start: int
    end: int
    parts: tuple[Part, ...]


class Segment(NamedTuple):
    """A piece of a template, and the place in the query that its first character stands for."""

    text: str
    origin: int
    copied: bool  # whether it is the query's own text, so that its characters follow from there one by one


def escape(text: str) -> str:
    """Return plain text as template text."""
    return text.replace("{", "{{").replace("}", "}}")


def unescape(template: str) -> str:
    """Return a template as readable text, its placeholders as they are."""
    return template.replace("{{", "{").replace("}}", "}")


def plain_quote(name: str) -> str:
    """Return a name as a quoted identifier."""
    return "`" + name.replace("`", "``") + "`"


def quote(name: str) -> str:
    """Return a name as a quoted identifier, ready for a template."""
    return escape(plain_quote(name))


def placeholders(template: str) -> set[str]:
    """Return the names that a template wants filled; doubled braces are text."""
    return {m[1] for m in PLACEHOLDER.finditer(template) if m[1]}


def substitute(template: str, texts: dict[str, str]) -> str:
    """Return the template with template texts in the place of some placeholders."""
    return PLACEHOLDER.sub(lambda match: texts.get(match[1], match[0]) if match[1] else match[0], template)


class EditedText:
    """A text with two layers of edits: names bound to what they stand for, and blocks taken.

    Bindings, of tables, functions and parameters, are part of the original query and of the rewritten one.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.bindings: list[Edit] = []
        self.edits: list[Edit] = []

    def bind(self, start: int, end: int, *parts: Part) -> None:
        """Replace a name by what it stands for."""
        self.bindings.append(Edit(start, end, parts))

    def rebind(self, start: int, old: str, new: str) -> None:
        """Let another text stand for a part of what the name at a place is bound to."""
        for place, (begin, end, parts) in enumerate(self.bindings):
            if begin == start:
                texts = (part.replace(old, new) if isinstance(part, str) else part for part in parts)
                self.bindings[place] = Edit(begin, end, tuple(texts))

    def original(self) -> list[Segment]:
        """Return the whole query as written, with its names bound."""
        return _render(self.text, self.bindings, (0, len(self.text)))

    def bound(self, span: Span) -> str:
        """Return the template of a piece as written, with its names bound."""
        return self.with_edits(span, ())

    def edited(self, span: Span) -> str:
        """Return the template of a piece of the rewritten query."""
        return self.with_edits(span, self.edits)

    def with_edits(self, span: Span, edits: Iterable[Edit]) -> str:
        """Return the template of a piece with its names bound, and with edits of its own."""
        return join(_render(self.text, [*self.bindings, *edits], span))


def join(segments: Iterable[Segment]) -> str:
    """Return segments as a template."""
    return "".join(segment.text for segment in segments)


def _render(text: str, edits: Sequence[Edit], span: Span) -> list[Segment]:
    start, end = span
    inside = sorted((e for e in edits if start <= e.start and e.end <= end), key=lambda e: (e.start, -e.end))
    out: list[Segment] = []
    at = start
    for edit in inside:
        if edit.start < at:
            continue  # stands within an edit that is already rendered
        out.append(Segment(escape(text[at : edit.start]), at, copied=True))
        for part in edit.parts:
            if isinstance(part, str):
                out.append(Segment(part, edit.start, copied=False))
            else:
                out += _render(text, edits, part)
        at = edit.end
    out.append(Segment(escape(text[at:end]), at, copied=True))
    return out
