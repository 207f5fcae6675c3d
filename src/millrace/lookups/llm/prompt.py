"""Questions with ``{column}`` in them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from string import Formatter
from typing import Any

from millrace.errors import InputError


@dataclass(frozen=True)
class Prompt:
    """A template.

    Attributes:
        text: With ``{column}`` where a row's value stands; ``{{`` and ``}}`` are braces.
        columns: That it mentions, each once, in their order.
    """

    text: str
    columns: tuple[str, ...]

    @classmethod
    def of(cls, text: object) -> Prompt:
        """Return a template as a user wrote it.

        Raises:
            InputError: It is no text, mentions no column, or has something else in braces.
        """
        if not isinstance(text, str):
            raise InputError(f"the prompt is a {type(text).__name__}, expected a text with {{column}} in it")
        try:
            pieces = list(Formatter().parse(text))
        except ValueError as error:
            raise InputError(
                f"the prompt {text!r} cannot be read ({error}): write {{{{ for a brace"
            ) from None
        names = []
        for _, name, form, conversion in pieces:
            if name is None:
                continue
            if not name.isidentifier() or form or conversion:
                raise InputError(
                    f"the prompt has {{{name}}}, expected a column's name in braces, and {{{{ for a brace"
                )
            names.append(name)
        if not names:
            raise InputError(
                f"the prompt {text!r} mentions no column: write {{column}} where its value stands"
            )
        return cls(text, tuple(dict.fromkeys(names)))

    def fill(self, values: Mapping[str, Any]) -> str:
        """Return the text for one row; null stands as ``null``."""
        shown = {name: "null" if value is None else value for name, value in values.items()}
        return self.text.format_map(shown)
