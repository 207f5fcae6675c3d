"""The public names: each is there when it is used, and ``sql`` is the function though a room is called so."""

from __future__ import annotations

import pickle
import subprocess
import sys

import pytest

import millrace
from tests.gate import sampled


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_every_public_name_is_there():
    """At the top, and in the namespaces."""
    for owner in (millrace, *(getattr(millrace, name) for name in ("models", "monitor", "streams"))):
        assert set(owner.__all__) <= set(dir(owner))
        assert [name for name in owner.__all__ if getattr(owner, name, None) is None] == []
        with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
            owner.nothing  # noqa: B018


@pytest.mark.parametrize(
    "imports",
    sampled(
        [
            "import millrace.sql.plan, millrace.streams, millrace.api.accessor",
            "from millrace.sql.syntax import parse; import millrace.sql.syntax.edits",
            "import millrace.api.session; from millrace import sql",
            "import millrace, importlib; importlib.reload(millrace)",
            "import millrace, importlib as i; i.reload(i.import_module('millrace.sql'))",
        ],
        5,
    ),
)
def test_sql_is_the_function_whatever_was_imported(imports):
    """Not the room of that name, which loads neither Spark nor what reads SQL."""
    asked = "import sys, millrace; print(callable(millrace.sql), millrace.sql.__module__)"
    assert run(f"{imports}; {asked}") == "True millrace.api.session"


def test_a_name_loads_what_it_needs():
    """The package, the engine and doors of rooms load no Spark; ``live`` alone loads what draws its page."""
    code = """
import sys, millrace, millrace.engine.eddy.run, millrace.parquet, millrace.sql, millrace.streams
millrace.streams, millrace.Options, millrace.MillraceError
print([name for name in ("pyspark", "sqlglot", "jinja2") if name in sys.modules])
millrace.monitor.progress
print("millrace.api.live" in sys.modules)
millrace.monitor.live
print("millrace.api.live" in sys.modules)
"""
    assert run(code).splitlines() == ["[]", "False", "True"]


def test_functions_are_pickled_by_name():
    """So that what Spark ships may use them."""
    from pyspark import cloudpickle

    for name in ("sql", "where", "to_batches"):
        function = getattr(millrace, name)
        for dumps in (pickle.dumps, cloudpickle.dumps):
            assert pickle.loads(dumps(function)) is function
