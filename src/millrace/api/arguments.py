"""What a query's text takes as in PySpark: parameters (``:low``, ``?``), and values (``{orders}``)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from importlib import import_module
from string import Formatter
from typing import Any

from pyspark.errors import PySparkValueError
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.utils import get_lit_sql_str

from millrace.errors import InputError, QueryError, near
from millrace.lookups.table import LookupTable
from millrace.spark.session import is_connect, session_of
from millrace.sql.syntax.edits import plain_quote
from millrace.sql.syntax.parse import PARAMETER

Args = Mapping[str, Any] | list[Any]

_SETTINGS = ("options", "predicates", "tables")
_ITEM = re.compile(r"(.+?)(?:\.(\w+)|\[([^\]]+)\])")


def parameters(args: Args | None) -> dict[str, Any]:
    """Return a query's parameters by name; those without one get names of ours."""
    if args is None or isinstance(args, Mapping):
        return dict(args or {})
    if not isinstance(args, list):
        raise QueryError(
            f"args are given as {type(args).__name__}: expected a dictionary for parameters with names "
            "(:low), a list for those without (?)"
        )
    return {f"{PARAMETER}{number}": value for number, value in enumerate(args)}


def formatted(text: str, values: Mapping[str, Any], spark: SparkSession | None) -> tuple[str, dict[str, Any]]:
    """Return a text with values in the place of ``{name}``, and the tables that they are, by new names.

    A text without values is left as it is, braces and all. A session may be given; by default it is that of a
    DataFrame among the values, or the active one.

    Raises:
        QueryError: A name in braces has no value, or the braces do not match.
        InputError: A value stands nowhere in the text, or is a Column that is not just a name.
    """
    if not values or not isinstance(text, str):
        return text, {}
    try:
        formatter = _Formatter(text, spark)
        return formatter.vformat(text, (), values), formatter.tables
    except KeyError as error:
        name = str(error.args[0])
        raise QueryError(
            f"the text has {{{name}}}, which has no value: {near(name, values)} Braces of SQL's own are "
            "written {{ and }} where values are given"
        ) from None
    except InputError:
        raise
    except (IndexError, ValueError) as error:
        raise QueryError(
            f"the braces of the text cannot be read ({error}): expected a name in each pair, such as "
            "{orders}; braces of SQL's own are written {{ and }} where values are given"
        ) from None


class _Formatter(Formatter):
    """Writes values as PySpark's ``sql`` does, but for DataFrames: these become tables, not views.

    No word of the text is the name of a table.
    """

    def __init__(self, text: str, spark: SparkSession | None) -> None:
        self._spark = spark
        self.tables: dict[str, Any] = {}
        self._words = {word.lower() for part in self.parse(text) for word in re.findall(r"\w+", part[0])}

    def get_field(self, field_name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Return the SQL of a value, and the argument that it is of."""
        value, first = super().get_field(field_name, args, kwargs)
        if isinstance(value, DataFrame | LookupTable):
            return plain_quote(self._table(field_name, value)), first
        if isinstance(value, Column):
            return self._column(field_name, value, args, kwargs), first
        return get_lit_sql_str(value) if isinstance(value, str) else value, first

    def check_unused_args(
        self, used_args: set[int | str], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> None:
        """Refuse what stands nowhere: it is rather a setting whose name is misspelt."""
        for name in kwargs:
            if name not in used_args:
                raise InputError(
                    f"{name!r} is given, but the text has no {{{name}}} and sql has no such setting: "
                    f"{near(name, _SETTINGS)}"
                )

    def _table(self, field: str, value: Any) -> str:
        """Return the name of a table: the argument's where the text does not use that otherwise."""
        for name, known in self.tables.items():
            if known is value:
                return name
        name = re.sub(r"\W+", "_", field)
        while name.lower() in self._words:
            name = f"_{name}"
        self._words.add(name.lower())
        self.tables[name] = value
        return name

    def _column(self, field: str, value: Column, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        match = _ITEM.fullmatch(field)
        frame = None if match is None else super().get_field(match[1], args, kwargs)[0]
        if match is not None and isinstance(frame, DataFrame):
            name = match[2] or match[3]
            if match[3] and name.isdigit():
                return plain_quote(frame.columns[int(name)])
            if name.lower() in map(str.lower, frame.columns):
                return plain_quote(name)
        spark = session_of(self._spark, kwargs)
        module = "pyspark.sql.connect.sql_formatter" if is_connect(spark) else "pyspark.sql.sql_formatter"
        try:
            return str(import_module(module).SQLStringFormatter(spark).format("{column}", column=value))
        except PySparkValueError:
            raise InputError(
                f"{{{field}}} is {value}: expected a column of a DataFrame among the values, as in "
                "{orders.id} or {orders[id]}, or col('id'); write an expression into the text"
            ) from None
