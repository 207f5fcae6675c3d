"""The SQL front: queries in, DataFrames out, inner joins run by eddies.

Names are loaded when they are first used: ``import millrace`` must not load Spark.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from millrace.sql.frontend import join, query, sql
    from millrace.sql.prepared import Query

__all__ = ["Query", "join", "query", "sql"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = "prepared" if name == "Query" else "frontend"
    return getattr(importlib.import_module(f"millrace.sql.{home}"), name)
