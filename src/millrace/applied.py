"""Which predicate a Column of PySpark is the call of.

A Column does not tell which Python function is behind it, so ``where(df, is_spam("text"))`` could not
see what ``is_spam`` made by ``udf`` is. So calls of PySpark's function objects are noted: as
soon as PySpark's module for them is loaded, their ``__call__`` also puts a note on the Column it returns.
Nothing else about them changes. This module loads nothing of PySpark itself.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

_MODULES = ("pyspark.sql.udf", "pyspark.sql.connect.udf")
_CLASS = "UserDefinedFunction"
_NOTE = "_millrace_call"


@dataclass(frozen=True)
class Noted:
    """A call of one of PySpark's function objects.

    Attributes:
        function: The function object.
        arguments: As they were given.
        named: Those given by name.
    """

    function: Any
    arguments: tuple[Any, ...]
    named: dict[str, Any]


def noted(column: object) -> Noted | None:
    """Return the call that a Column is, or None where it is something else."""
    note = getattr(column, "__dict__", {}).get(_NOTE)
    return note if isinstance(note, Noted) else None


def watch() -> None:
    """Note calls from now on, also of modules that are not loaded yet."""
    for name in _MODULES:
        if name in sys.modules:
            _wrap(sys.modules[name])
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def _wrap(module: ModuleType) -> None:
    kind = getattr(module, _CLASS, None)
    if kind is None or hasattr(kind.__call__, _NOTE):
        return
    call: Callable[..., Any] = kind.__call__

    @functools.wraps(call)
    def noting(self: Any, *arguments: Any, **named: Any) -> Any:
        column = call(self, *arguments, **named)
        setattr(column, _NOTE, Noted(self, arguments, named))
        return column

    setattr(noting, _NOTE, True)
    kind.__call__ = noting


class _Finder(importlib.abc.MetaPathFinder):
    """Lets PySpark's modules load as ever, and wraps their class then."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in _MODULES:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.loader is None:
            return None
        spec.loader = _Loader(spec.loader)
        return spec


class _Loader(importlib.abc.Loader):
    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        created: ModuleType | None = self._loader.create_module(spec)
        return created

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        _wrap(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)
