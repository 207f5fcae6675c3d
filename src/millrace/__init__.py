"""Millrace: joins, lookups and expensive predicates on Spark through eddies.

>>> import millrace
>>> millrace.sql("SELECT …", tables={"orders": "orders.parquet"}).show()  # doctest: +SKIP

Names are loaded when they are first used, so that the engine inside Spark's Python workers starts without
Spark and without what reads SQL. What is of streams is in ``millrace.streams``, language models are in
``millrace.models``, and what watches queries is in ``millrace.monitor``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from millrace.engine import peak as _peak  # noqa: F401  # first of all: it notes when loading began
from millrace.errors import MillraceError
from millrace.options import Options

if TYPE_CHECKING:
    from millrace import streams
    from millrace.api import models, monitor
    from millrace.api.enabling import enable
    from millrace.api.optimize import optimize
    from millrace.api.predicates import filter, where  # noqa: A004
    from millrace.api.query import explain, report, to_batches
    from millrace.api.samples import cascade, estimate
    from millrace.api.session import Session, join, lookup, query, sql
    from millrace.limits.policy import LimitOptions, LookupOptions
    from millrace.lookups.database import database
    from millrace.lookups.function import function
    from millrace.lookups.http import http
    from millrace.spark.predicates import predicate

__version__ = "0.1.0"
__all__ = [
    "LimitOptions",
    "LookupOptions",
    "MillraceError",
    "Options",
    "Session",
    "__version__",
    "cascade",
    "database",
    "enable",
    "estimate",
    "explain",
    "filter",
    "function",
    "http",
    "join",
    "lookup",
    "models",
    "monitor",
    "optimize",
    "predicate",
    "query",
    "report",
    "sql",
    "streams",
    "to_batches",
    "where",
]

_MODULES = {"load_ipython_extension": "api.magic", "enable": "api.enabling", "optimize": "api.optimize"}
_MODULES |= {name: f"lookups.{name}" for name in ("database", "function", "http")}
_MODULES |= dict.fromkeys(("LimitOptions", "LookupOptions"), "limits.policy")
_MODULES |= {"filter": "api.predicates", "where": "api.predicates"}
_MODULES |= {"cascade": "api.samples", "estimate": "api.samples", "predicate": "spark.predicates"}
_MODULES |= dict.fromkeys(("explain", "report", "to_batches"), "api.query")
_MODULES |= dict.fromkeys(("Session", "join", "lookup", "query", "sql"), "api.session")
_NAMESPACES = {"models": "api.models", "monitor": "api.monitor", "streams": "streams"}
# What takes functions that are applied to columns: it has to see that from now on.
_WATCHING = ("Session", "cascade", "estimate", "filter", "join", "predicate", "where")

# Python gives the attribute ``sql`` to the package of that name when that is first loaded, and never again:
# so it is loaded now, and the name left to the function.
import_module("millrace.sql")
globals().pop("sql", None)


def __getattr__(name: str) -> Any:
    """Load a public name when it is used."""
    if name in _WATCHING:
        import_module("millrace.spark.patches").watch()
    if name in _MODULES:
        return getattr(import_module(f"millrace.{_MODULES[name]}"), name)
    if name in _NAMESPACES:
        return import_module(f"millrace.{_NAMESPACES[name]}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
