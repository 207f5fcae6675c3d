"""Spark's own daemon of Python workers, with what all of them load loaded before they are forked.

Tests start hundreds: each that fails ends its worker, and imports and compiled kernels are most of what a
small task takes. Sessions of their own start workers as users' sessions do.
"""

from __future__ import annotations

import pkgutil
from importlib import import_module

from pyspark.daemon import manager

SHARED = ("pandas", "pyarrow.compute", "numba", "pyspark.sql.pandas.serializers", "pyspark.worker")


def load_kernels() -> None:
    """Compile the engine's kernels, or load them compiled."""
    from millrace.engine import kernels
    from millrace.engine.kernels.compiling import Kernel

    for found in pkgutil.iter_modules(kernels.__path__, f"{kernels.__name__}."):
        for kernel in vars(import_module(found.name)).values():
            if isinstance(kernel, Kernel):
                kernel.dispatcher  # noqa: B018


if __name__ == "__main__":
    for name in (*SHARED, "millrace.spark.tasks", "millrace.streams.processor"):
        import_module(name)
    load_kernels()
    manager()
