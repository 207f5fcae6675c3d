"""Values that must not be seen: ``${NAME}`` stands for one wherever something is shown or kept.

A template with ``${NAME}`` travels with the plan; the values stay in the planning process and go to tasks
over the coordinator's connection alone. Here they are put in, right before a request, and taken out again
of every text that comes back.
"""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from typing import NoReturn
from urllib.parse import quote, quote_plus

from millrace.errors import InputError

NAME = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


def names_in(*templates: str) -> tuple[str, ...]:
    """Return the names of the secrets that the templates mention, each once, in their order."""
    return tuple(dict.fromkeys(name for template in templates for name in NAME.findall(template)))


class Secrets:
    """Secrets by name.

    Neither its text nor anything pickled has a value: pickling it raises a TypeError.

    Args:
        shown_as: What stands for texts that are to be hidden beside the values, such as the password
            within a URL that is a secret as a whole.
    """

    def __init__(
        self, values: Mapping[str, str] | None = None, shown_as: Mapping[str, str] | None = None
    ) -> None:
        self._values = dict(values or {})
        self._hidden = dict(shown_as or {})
        hidden = self._hidden | {value: f"${{{name}}}" for name, value in self._values.items()}
        self._shown = {form: shown for value, shown in hidden.items() for form in _forms(value)}
        longest_first = sorted(self._shown, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None

    @classmethod
    def of_environment(cls, names: Iterable[str], where: str = "the lookup") -> Secrets:
        """Take secrets from this process's environment; errors say ``where`` they are needed.

        Raises:
            InputError: One is not set, or empty.
        """
        values = {}
        for name in names:
            value = os.environ.get(name, "")
            if not value:
                raise InputError(
                    f"{where} needs the secret ${{{name}}}: set the environment variable {name} in the "
                    "process that plans the query"
                )
            values[name] = value
        return cls(values)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._values)

    def values(self) -> dict[str, str]:
        """Return the values by name, for the one place that hands them to tasks."""
        return dict(self._values)

    def fill(self, template: str, encode: Callable[[str], str] = str) -> str:
        """Return the template with the values in it, each encoded for its place.

        Raises:
            InputError: There is no secret of a name that it mentions.
        """

        def value(found: re.Match[str]) -> str:
            name = found[1]
            if name not in self._values:
                raise InputError(f"there is no value for the secret ${{{name}}}")
            return encode(self._values[name])

        return NAME.sub(value, template)

    def hiding(self, text: str, shown: str) -> Secrets:
        """Return these secrets and one more text to hide, with what to show instead."""
        return Secrets(self._values, self._hidden | {text: shown})

    def scrub(self, text: str) -> str:
        """Return the text with ``${NAME}`` in place of each value, however it is encoded."""
        if self._pattern is None:
            return text
        return self._pattern.sub(lambda found: self._shown[found[0]], text)

    def scrub_beginning(self, text: str) -> str:
        """Return the beginning of a longer text without secrets, nor the first half of one at its end."""
        longest = max(map(len, self._shown), default=0)
        scrubbed = self.scrub(text)
        return scrubbed[: max(0, len(scrubbed) - longest)]

    def __repr__(self) -> str:
        return f"Secrets({', '.join(self._values)})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("secrets are not to be pickled: tasks ask the planning process for them")


def _forms(value: str) -> set[str]:
    """The value as libraries may write it: in URLs, in JSON, as Python text, in Basic credentials."""
    escaped, raw = repr(value)[1:-1], value.encode(errors="surrogateescape")
    forms = {value, quote(raw), quote(raw, safe=""), quote_plus(raw), json.dumps(value)[1:-1], escaped}
    forms.add(base64.b64encode(raw).decode())
    return {form for form in forms if form}
