"""Spark's plans as text, by the public EXPLAIN statement."""

# ruff: noqa: S608  # SQL is what this module writes

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

from pyspark.sql import functions as sf

from millrace.errors import OptionError, near

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


SIZE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
"""What Spark gives sizes in, each 1,024 of the one before."""


def explained(frame: DataFrame, mode: str = "", *, uncached: bool = False) -> str:
    """Return Spark's plan of a DataFrame.

    Args:
        frame: Any DataFrame.
        mode: What EXPLAIN takes: ``"EXTENDED"``, ``"COST"``, …; empty for the physical plan.
        uncached: Whether it is known that Spark does not keep its rows.
    """
    query = frame if uncached else kept_in_cache(frame)
    return str(frame.sparkSession.sql(f"EXPLAIN {mode} SELECT * FROM {{q}}", {}, q=query).collect()[0][0])


Mode = Literal["simple", "extended", "cost"]


def planned(frame: DataFrame, mode: Mode) -> str:
    """Return Spark's plan in one of the forms that a user asks for.

    Raises:
        OptionError: The mode is none of these.
    """
    if mode not in get_args(Mode):
        raise OptionError(f"mode of explain is {mode!r}: {near(str(mode), get_args(Mode))}")
    if frame.isStreaming:
        return "none before the stream starts"
    return explained(frame, "" if mode == "simple" else mode.upper())


def kept_in_cache(frame: DataFrame) -> DataFrame:
    """Return the same rows as a DataFrame of which a view can be made and dropped.

    Dropping a view of a DataFrame takes its rows out of Spark's cache, and a Spark Connect server makes and
    drops views of the DataFrames that a text names; a filter that is always true makes it another one, which
    reads the cache.
    """
    return frame.where(sf.lit(True)) if is_cached(frame) else frame


def is_cached(frame: DataFrame) -> bool:
    """Return whether Spark keeps the rows of just this DataFrame."""
    level = frame.storageLevel
    return bool(level.useMemory or level.useDisk)
