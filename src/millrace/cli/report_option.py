"""``--report`` alone shows tables; ``--report FILE.html`` writes a page.

An option with a value that may be left out would swallow the query behind it, so only a name that ends in
``.html`` is taken for one.
"""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand

FLAG, PAGE = "--report", "--report-page"
_SUFFIXES = (".html", ".htm")


def told_apart(arguments: list[str]) -> list[str]:
    """Return arguments with ``--report FILE.html`` and ``--report=FILE`` as the option of their own."""
    made: list[str] = []
    rest = iter(arguments)
    for each in rest:
        if each == "--":
            return [*made, each, *rest]
        if each.startswith(f"{FLAG}="):
            made += [PAGE, each.removeprefix(f"{FLAG}=")]
        elif made[-1:] == [FLAG] and each.lower().endswith(_SUFFIXES):
            made[-1:] = [PAGE, each]
        else:
            made.append(each)
    return made


class WithReport(TyperCommand):
    """A command that takes ``--report`` with and without a file."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Tell both apart, then parse."""
        return super().parse_args(ctx, told_apart(args))
