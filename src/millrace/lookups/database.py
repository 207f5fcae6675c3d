"""Lookups in tables of SQL databases, through SQLAlchemy and the user's driver.

The source here is what to ask; :mod:`millrace.lookups.database_session` asks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Unpack

import pyarrow as pa

from millrace.errors import InputError, OptionError, near, require
from millrace.limits.policy import LookupOptions, check_options, settings_of
from millrace.limits.secrets import Secrets, names_in
from millrace.lookups import credentials
from millrace.lookups.rows import check_columns, check_schema
from millrace.lookups.terms import Terms

if TYPE_CHECKING:
    from millrace.lookups.database_session import DatabaseSession


@dataclass(frozen=True)
class DatabaseSource:
    """A table or view of a database; made by :func:`database`, where the arguments are explained."""

    kind: ClassVar[str] = "database"
    can_scan: ClassVar[bool] = True

    url: str
    table: str
    terms: Terms = field(repr=False)
    schema: str | None = None
    columns: tuple[tuple[str, str], ...] = ()
    connect_args: tuple[tuple[str, Any], ...] = ()
    max_rows: int = 1_000_000

    def __post_init__(self) -> None:
        if not self.url or not isinstance(self.url, str):
            raise InputError(
                f"the URL of a database is {self.url!r}, expected such as postgresql+psycopg://host/database"
            )
        if not self.table or not isinstance(self.table, str):
            raise InputError(f"the table of a database lookup is {self.table!r}, expected its name")
        credentials.check_url(self.url, "the URL of a database")
        credentials.check_fields(dict(self.connect_args), "connect_args:")
        if type(self.max_rows) is not int or self.max_rows < 1:
            raise OptionError(f"max_rows is {self.max_rows!r}, expected a whole number above 0")

    @property
    def secrets(self) -> tuple[str, ...]:
        return names_in(self.url, *(value for _, value in self.connect_args if isinstance(value, str)))

    @property
    def identity(self) -> str:
        """What decides the rows; how fast and how patiently they are asked for does not."""
        return repr(replace(self, max_rows=1))

    @property
    def names(self) -> dict[str, str]:
        """The database's names of columns, where they are others."""
        return dict(self.columns)

    def describe(self) -> str:
        table = self.table if self.schema is None else f"{self.schema}.{self.table}"
        return f"database {self.url}, table {table}"

    def check(self, schema: pa.Schema, columns: tuple[str, ...], secrets: Secrets) -> None:
        """Connect, and look for table and columns; see :meth:`millrace.lookups.source.Source.check`."""
        check_schema(schema, columns)
        check_columns(self.names, schema, "columns")
        require("lookups", self.describe(), "sqlalchemy")
        from millrace.lookups.database_session import inspect_columns

        has = inspect_columns(self, secrets)
        for column in schema.names:
            name = self.names.get(column, column)
            if name not in has:
                raise InputError(
                    f"{self.describe()} has no column {name!r}{_for(column, name)}: {near(name, has)}"
                )

    def open(self, schema: pa.Schema, columns: tuple[str, ...], secrets: Secrets) -> DatabaseSession:
        """Return a session; it connects with its first request."""
        require("lookups", self.describe(), "sqlalchemy")
        from millrace.lookups.database_session import DatabaseSession

        return DatabaseSession(self, schema, columns, secrets)


def database(
    url: str,
    table: str,
    *,
    schema: str | None = None,
    columns: Mapping[str, str] | None = None,
    connect_args: Mapping[str, Any] | None = None,
    max_rows: int = 1_000_000,
    **limits: Unpack[LookupOptions],
) -> DatabaseSource:
    """Return a source that reads a table or view of a database: one statement for each batch of keys.

    Any database will do that SQLAlchemy has a dialect for; its driver has to be installed wherever tasks run.
    Values are taken strictly: one that is not of its column's declared type fails the request. What a
    database takes for equal although it is not, such as capital and small letters, does no harm: rows that do
    not agree with a key are dropped.

    Args:
        url: As SQLAlchemy writes it, ``dialect+driver://user:${PASSWORD}@host/database``; ``${NAME}`` stands
            for a secret, or for the whole URL.
        table: Its name in the database.
        schema: The database's schema that it is in; None for the default one.
        columns: Names of columns in the database, by the lookup's; the others have the same.
        connect_args: What the driver's connect function gets beside; ``${NAME}`` stands for a secret.
        max_rows: Rows that one statement may return for its keys; with more it fails, before they are read.
        limits: See :class:`millrace.LookupOptions`.

    Raises:
        InputError: The URL, the table or an argument cannot be used, or has credentials written out.
        OptionError: A setting is out of its range.
    """
    check_options("millrace.database", limits, settings_of(database, LookupOptions))
    limits.setdefault("batch", 500)
    return DatabaseSource(
        url,
        table,
        Terms(**limits),
        schema,
        tuple((columns or {}).items()),
        tuple((connect_args or {}).items()),
        max_rows,
    )


def _for(column: str, name: str) -> str:
    return "" if column == name else f" (column {column!r} of the lookup)"
