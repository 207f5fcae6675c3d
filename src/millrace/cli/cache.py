"""``millrace cache``: what caches of lookups and predicates hold, and how to be rid of some of it."""

from __future__ import annotations

import datetime as dt
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from millrace.cli import console
from millrace.cli.console import Json, consoles
from millrace.cli.errors import one_message
from millrace.errors import InputError, OptionError

if TYPE_CHECKING:
    from millrace.limits.kept import Kept

app = typer.Typer(
    no_args_is_help=True, help="Look at answers that outlive jobs (cache=, answers=), and remove some."
)

Cache = Annotated[Path, typer.Argument(metavar="PATH", help="A folder of answers, or a .sqlite file.")]
Name = Annotated[
    str | None,
    typer.Option("--name", help="A lookup or predicate, or the first 8 digits, or more, of a definition."),
]
Debug = Annotated[bool, typer.Option("--debug", help="Show stack traces.")]


@app.command("list")
def list_command(path: Cache, json: Json = None, debug: Debug = False) -> None:
    """Show what is kept, by definition: keys, size, age, and how many have expired."""
    from millrace.cli.tables import Fitted
    from millrace.limits.kept import listed
    from millrace.reports.text import size

    stdout, stderr = consoles()
    with one_message(stderr, debug):
        console.check(json)
        found = listed(path)
        if json is not None:
            console.write([each._asdict() for each in found], json)
            return
        names = ("name", "keys", "size", "oldest", "newest", "expired", "definition", "file")
        rows = [
            (
                each.name,
                each.keys,
                Text(size(each.size)),
                _day(each.oldest),
                _day(each.newest),
                each.expired,
                each.definition,
                each.file.name,
            )
            for each in found
        ]
        stdout.print(Fitted(names, rows))


@app.command("show")
def show_command(
    path: Cache,
    name: Name = None,
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="Keys, the latest first.")] = 20,
    json: Json = None,
    debug: Debug = False,
) -> None:
    """Show rows that are kept. Keys are digests; a lookup's rows have the values, a predicate's the truth."""
    from millrace.cli.tables import Fitted
    from millrace.limits.kept import rows

    stdout, stderr = consoles()
    with one_message(stderr, debug):
        console.check(json)
        table = rows(_one(path, name), limit)
        if json is not None:
            console.write(table.to_pylist(), json)
            return
        stdout.print(Fitted(table.column_names, [list(row.values()) for row in table.to_pylist()]))


@app.command("prune")
def prune_command(
    path: Cache,
    older_than: Annotated[
        str | None, typer.Option("--older-than", metavar="AGE", help="Such as 30d, 12h or '90 min'.")
    ] = None,
    name: Name = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    json: Json = None,
    debug: Debug = False,
) -> None:
    """Remove answers that have expired, and those older than an age. Jobs may use the cache meanwhile."""
    from millrace.limits.cache import wall_time
    from millrace.limits.kept import listed, of_name, pruned

    stdout, stderr = consoles()
    with one_message(stderr, debug):
        console.check(json)
        before = None if older_than is None else wall_time() - _seconds(older_than)
        chosen = of_name(listed(path), name)
        what = "answers that have expired" if before is None else f"answers that came before {_day(before)}"
        if not yes:
            of = ", ".join(sorted({each.name for each in chosen}))
            typer.confirm(f"Remove {what} of {of}?", abort=True, err=json == console.STDOUT)
        removed = pruned(chosen, before)
        console.beside(json, stdout, stderr).print(f"removed the answers of {removed:,} keys")
        console.write({"removed": removed}, json)


def _one(path: Path, name: str | None) -> Kept:
    """Return the definition that is meant.

    Raises:
        InputError: There is none, or more than one.
    """
    from millrace.limits.kept import listed, of_name

    found = of_name(listed(path), name)
    if len(found) > 1:
        told = ", ".join(f"{each.name} ({each.definition})" for each in found[:10])
        raise InputError(f"{path} has {len(found)} definitions: {told}; choose one with --name")
    if not found:
        raise InputError(f"{path} has no answers yet")
    return found[0]


def _seconds(age: str) -> float:
    import pandas as pd

    try:
        # pandas reads a number without a unit as nanoseconds.
        found = float(pd.Timedelta(age).total_seconds()) if re.search("[A-Za-z:]", age) else -1.0
    except ValueError:
        found = -1.0
    if not found >= 0:
        raise OptionError(f"--older-than is {age!r}: expected a time such as 30d, 12h or '90 min'")
    return found


def _day(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return dt.datetime.fromtimestamp(seconds).astimezone().isoformat(" ", "minutes")[:16]
