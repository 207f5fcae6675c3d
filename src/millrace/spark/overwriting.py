"""What a writer replaces, as its calls say.

Spark empties a folder that is overwritten before tasks read anything. It refuses to overwrite tables that its
plan reads, but neither folders nor what Millrace's tasks read themselves.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from os.path import normpath, realpath
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from pyspark.errors import PySparkException

from millrace.spark.session import internal_query

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_URI = re.compile(r"([A-Za-z][\w+.-]*):(?://([^/]*))?(.*)", re.DOTALL)


@dataclass
class Overwriting:
    """What the calls of one ``DataFrameWriter`` say so far.

    Attributes:
        overwrites: Whether what is there is to be replaced.
    """

    overwrites: bool = False
    _folder: Any = None  # the option or argument ``path``
    _is_partitioned: bool = False
    _mode: str | None = None  # of partitions, as an option says

    def note(self, name: str, args: Sequence[Any], named: Mapping[str, Any]) -> None:
        """Note a call, also of what writes."""
        given = [*args, *named.values()]
        self.overwrites |= any(isinstance(each, str) and each.lower() == "overwrite" for each in given)
        self.overwrites |= name == "insertInto" and bool(named.get("overwrite", (*args, False, False)[1]))
        self._is_partitioned |= name == "partitionBy" or bool(named.get("partitionBy"))
        settings = {key.lower(): value for key, value in named.items()}
        if name == "option" and len(given) == 2:
            settings |= {str(given[0]).lower(): given[1]}
        self._folder = settings.get("path") or self._folder
        self._mode = settings.get("partitionoverwritemode") or self._mode

    def replaces(
        self,
        spark: SparkSession,
        name: str,
        args: Sequence[Any],
        named: Mapping[str, Any],
        files: Iterable[str],
    ) -> bool:
        """Tell whether what a method writes, whose call was noted, replaces one of some files unread.

        What has no path, such as ``noop`` and JDBC, is no file. Partitions that are overwritten dynamically
        are replaced once all is read.
        """
        target = args[0] if args else named.get("name", named.get("tableName"))
        places, is_partitioned = [self._folder], self._is_partitioned
        try:
            with internal_query():
                if name in ("saveAsTable", "insertInto"):
                    is_partitioned = False
                    if spark.catalog.tableExists(target):
                        places += map(unquote, spark.table(target).inputFiles())
                        columns = spark.catalog.listColumns(target) if name == "insertInto" else []
                        is_partitioned = any(column.isPartition for column in columns)
                elif name != "jdbc":
                    places = [target or self._folder]
                own = None if name == "insertInto" else self._mode  # which takes no options
                mode = own or spark.conf.get("spark.sql.sources.partitionOverwriteMode")
        except PySparkException:
            return False  # Spark's writer fails in its own words
        if is_partitioned and str(mode).lower() == "dynamic":
            return False
        folders = tuple(
            f"{each}/" for place in places if isinstance(place, str) for each in _spellings(place)
        )
        return any(f"{each}/".startswith(folders) for file in files for each in _spellings(file))


def _spellings(path: str) -> set[str]:
    """Return a path as others may name it: with links followed, and without an address."""
    uri = _URI.fullmatch(path)
    scheme, host, rest = uri.groups("") if uri else ("file", "", path)
    if scheme == "file":
        return {normpath(Path(rest).absolute()), realpath(rest)}
    rest = normpath(f"/{rest}")
    return {f"{scheme.removesuffix('a')}://{host}{rest}", *((rest,) if scheme == "hdfs" else ())}
