"""How kernels are compiled: when they are first called, once for a machine, for declared types.

Loading numba takes about half a second, and a task that only filters calls no kernel, so a kernel is plain
Python until its first call. Types are declared, so that a read-only array (a view of Arrow's memory is one)
does not make a second version of a kernel. What has been compiled is kept in files; of the workers that start
together one compiles, and the others wait for its files.
"""

from __future__ import annotations

import os
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

_COMPILING = threading.RLock()
_LOCK = "millrace.lock"
_load_seconds = 0.0


def load_seconds() -> float:
    """Return what this process has spent on loading kernels, or compiling them."""
    return _load_seconds


class Kernel:
    """A function over numbers and numpy arrays that is compiled when it is first called.

    The types of its ``arguments`` (:func:`compiled`) are None where other kernels alone call it.
    """

    def __init__(self, function: Callable[..., Any], arguments: str | None) -> None:
        self.__doc__ = function.__doc__
        self.function = function
        self.arguments = arguments
        self._dispatcher: Any = None

    def __call__(self, *arguments: Any) -> Any:
        """Call the compiled function.

        Raises:
            TypeError: The arguments are of other types than declared.
        """
        if self._dispatcher is None:
            global _load_seconds
            began = time.perf_counter()
            self._dispatcher = self.dispatcher
            _load_seconds += time.perf_counter() - began
        return self._dispatcher(*arguments)

    @property
    def dispatcher(self) -> Any:
        """The compiled function, of numba; where numba is told not to compile, the function as it is."""
        with _COMPILING:
            if self._dispatcher is None:
                self._dispatcher = self._compiled()
        return self._dispatcher

    def _compiled(self) -> Any:
        import numba

        known = self.function.__globals__
        for name in self.function.__code__.co_names:
            if isinstance(known.get(name), Kernel):  # numba looks into modules for what kernels call
                known[name] = known[name].dispatcher
        if self.arguments is None:
            return numba.njit(inline="always")(self.function)
        if numba.config.DISABLE_JIT:  # type: ignore[attr-defined]
            return self.function
        made = _cached(self.function)
        with _alone(made.stats.cache_path, self.function.__qualname__):
            made.compile(tuple(map(_type, self.arguments.split(", "))))
        made.disable_compile()
        return made


def compiled(arguments: str | None = None) -> Callable[[Callable[..., Any]], Kernel]:
    """Return a decorator that compiles a function when it is first called, without the lock of Python.

    Types are as in ``"const int64[], int32[,], uint64"``: arrays are contiguous, and a ``const`` one may be
    read-only. None is for what only kernels of the same module call: it is compiled into them.
    """
    return lambda function: Kernel(function, arguments)


def _type(text: str) -> Any:
    from numba import types

    name, _, dimensions = text.removeprefix("const ").partition("[")
    kind = getattr(types, name)
    if not dimensions:
        return kind
    return types.Array(kind, 1 + dimensions.count(","), "C", readonly=text.startswith("const "))


def _cached(function: Callable[..., Any]) -> Any:
    """Return a dispatcher that keeps what it compiles where that can be written.

    That is ``NUMBA_CACHE_DIR``, or else beside this file, or in the user's folder for such files, or in that
    of temporary files; if there is no such place it is compiled in each process.
    """
    import numba

    settings: Any = numba.config
    usual = settings.CACHE_DIR
    try:
        for folder in (lambda: usual, _temporary):
            with suppress(RuntimeError, OSError):
                settings.CACHE_DIR = folder()
                made = numba.njit(cache=True, nogil=True)(function)
                path = Path(str(made.stats.cache_path))
                path.mkdir(parents=True, exist_ok=True)
                tempfile.TemporaryFile(dir=path).close()
                return made
    finally:
        settings.CACHE_DIR = usual
    return numba.njit(nogil=True)(function)


def kept_in() -> str:
    """Return the folder in which compiled functions are kept, empty where none can be written."""
    made = _cached(_type)  # any function of a file beside the kernels will do: it is not compiled
    return str(made.stats.cache_path or "")


def _temporary() -> str:
    """Return a folder of temporary files that only this user can write: what is in it will be executed.

    Raises:
        OSError: Somebody else has made it, or may write to it.
    """
    user = getattr(os, "getuid", lambda: 0)()
    folder = Path(tempfile.gettempdir()) / f"millrace-kernels-{user}"
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != user or found.st_mode & 0o022:
        raise PermissionError(f"{folder} can be written by others")
    return str(folder)


@contextmanager
def _alone(path: str | None, name: str) -> Iterator[None]:
    """Keep other processes waiting that would compile the same; where files cannot be locked nobody waits."""
    with ExitStack() as stack:
        with suppress(ImportError, OSError):
            if path is not None:
                import fcntl

                lock = stack.enter_context((Path(path) / _LOCK).open("a"))
                # What is there already can be loaded by many at once.
                known = any(Path(path).glob(f"*.{name}-*.nbi"))
                fcntl.flock(lock, fcntl.LOCK_SH if known else fcntl.LOCK_EX)
        yield
