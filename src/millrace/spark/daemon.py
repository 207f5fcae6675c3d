"""Spark's daemon of Python workers, with Millrace and its kernels loaded before workers are forked.

A worker of Spark's own daemon loads them itself, about a second each time. Spark makes a new one wherever a
LIMIT or ``show()`` does not read a task to its end. You choose this daemon when you make the session:
``.config("spark.python.daemon.module", "millrace.spark.daemon")``. Millrace has to be importable where
executors start Python: installed there, or in an environment of ``spark.archives``.
"""

from __future__ import annotations

import os
import pkgutil
import sys
import traceback
from contextlib import redirect_stdout
from importlib import import_module

SETTING, MODULE = "spark.python.daemon.module", "millrace.spark.daemon"
_LOADED = (
    "pandas", "pyarrow.compute", "pyspark.worker", "pyspark.sql.pandas.serializers", "millrace.spark.tasks",
)  # fmt: skip


def load() -> None:
    """Import what tasks need, and load the engine's kernels, or compile them once for the machine."""
    from millrace.engine import kernels
    from millrace.engine.kernels.compiling import Kernel

    for name in _LOADED:
        import_module(name)
    # Else all workers drew the same numbers: their generator is made when numpy is first imported.
    os.register_at_fork(after_in_child=import_module("numpy.random").seed)
    for found in pkgutil.iter_modules(kernels.__path__, f"{kernels.__name__}."):
        for kernel in vars(import_module(found.name)).values():
            if isinstance(kernel, Kernel):
                kernel.dispatcher  # noqa: B018


if __name__ == "__main__":
    from pyspark.daemon import manager

    try:
        with redirect_stdout(sys.stderr):  # Spark reads a port from the other
            load()
    except Exception:  # noqa: BLE001  # workers of this daemon then load it themselves, and say what is wrong
        traceback.print_exc()
    manager()
