"""The tree of errors that Millrace raises.

Every error says what was wrong, where, what was expected and what would work. Errors that Spark
itself raises for a query that Spark runs pass through unchanged.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec
from typing import Literal


class MillraceError(Exception):
    """Root of every error raised by Millrace on bad input or in a failed run."""


class OptionError(MillraceError, ValueError):
    """An option has an unknown name or a value out of its range."""


class InputError(MillraceError, ValueError):
    """A table, file, folder or column that the query names cannot be used."""


class QueryError(MillraceError, ValueError):
    """The query text is not something Millrace can answer (for example, not a SELECT)."""


class UnsupportedType(MillraceError, TypeError):
    """A column's type cannot be used in the place where the query uses it."""


class PredicateError(MillraceError, ValueError):
    """A user's predicate cannot be used as it is written, or returned what is no truth value."""


class RoutingError(MillraceError, RuntimeError):
    """A routing policy broke its contract, for example by naming an illegal destination."""


class StateError(MillraceError, ValueError):
    """Join state cannot be moved as asked: a precondition of demotion or promotion does not hold."""


class ExecutionError(MillraceError, RuntimeError):
    """A run failed inside a task for a reason that the message explains."""


class ReadError(ExecutionError):
    """A file cannot be read by the task that has to: it is damaged, has changed or has gone."""


class BudgetError(ExecutionError):
    """A budget of requests or of cost is spent, and the query needs more."""


class PriceError(BudgetError):
    """What a call has cost cannot be told, so that no budget of cost can be kept."""


class SetupError(MillraceError, RuntimeError):
    """The machine lacks something that Millrace needs, such as Java."""


class MissingExtra(SetupError):
    """A library is not installed that one of the package's extras brings."""


class MillraceWarning(UserWarning):
    """Something works, but not as the caller may expect."""


Extra = Literal["cli", "connect", "demo", "lookups", "report", "streams"]
"""The extras of pyproject.toml that users install."""


def require(extra: Extra, purpose: str, *modules: str) -> None:
    """Raise unless the libraries of an extra are installed, before they are imported.

    Args:
        extra: Which brings them.
        purpose: What needs them, as the subject of a sentence in the singular.
        modules: Their names, as they are imported.

    Raises:
        MissingExtra: It says what to install.
    """
    missing = [module for module in modules if not _is_installed(module)]
    if missing:
        raise MissingExtra(
            f"{purpose} needs {', '.join(missing)}, not installed here: pip install 'millrace[{extra}]', "
            f"or in a clone of it pip install '.[{extra}]'"
        )


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # the package that it would be in
        return False


def first_line(error: BaseException) -> str:
    """Return what an error says first, or the name of its class where it says nothing."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def encodable(text: str) -> str:
    """Return a text that files and sockets take: half of a character is written out, as its number."""
    return text.encode(errors="backslashreplace").decode()


def near(name: str, known: Iterable[str]) -> str:
    """Return a hint that lists near matches of ``name``, or everything there is when none is near."""
    from difflib import get_close_matches  # of use where something is wrong

    names = sorted(set(known))
    close = get_close_matches(name.lower(), [n.lower() for n in names], n=3)
    hits = [n for n in names if n.lower() in close]
    if hits:
        return "did you mean " + " or ".join(repr(h) for h in hits) + "?"
    if not names:
        return "there are none."
    shown = ", ".join(repr(n) for n in names[:12])
    return f"there is {shown}{', …' if len(names) > 12 else ''}."
