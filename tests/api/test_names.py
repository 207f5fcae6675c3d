"""The public names: each is there when it is used, and ``sql`` is the function though a room is called so."""

from __future__ import annotations

import pickle
import subprocess
import sys

import pytest

import millrace
from tests.gate import sampled

NAMESPACES = ("models", "monitor", "streams")


def run(code: str) -> str:
    """What a new process prints."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_every_public_name_is_there():
    """At the top, and in the namespaces."""
    for owner in (millrace, *(getattr(millrace, name) for name in NAMESPACES)):
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
        3,
    ),
)
def test_sql_is_the_function_whatever_was_imported(imports):
    """Not the room of that name, which loads neither Spark nor what reads SQL."""
    asked = "import sys, millrace; print(callable(millrace.sql), millrace.sql.__module__)"
    assert run(f"{imports}; {asked}") == "True millrace.api.session"


def test_a_name_loads_what_it_needs():
    """Importing the package, a room's door and the errors of users loads no Spark."""
    heavy = "[name for name in ('pyspark', 'sqlglot', 'jinja2') if name in sys.modules]"
    doors = (
        "import millrace.sql, millrace.streams; millrace.streams, millrace.Options, millrace.MillraceError"
    )
    assert run(f"import sys, millrace; {doors}; print({heavy})") == "[]"


def test_functions_are_pickled_by_name():
    """So that what Spark ships may use them."""
    from pyspark import cloudpickle

    for name in ("sql", "where", "to_batches"):
        function = getattr(millrace, name)
        for dumps in (pickle.dumps, cloudpickle.dumps):
            assert pickle.loads(dumps(function)) is function


def test_the_monitor_draws_nothing_before_it_is_asked_for_a_page():
    """The page's templates are loaded with ``live``."""
    asked = "import sys, millrace; millrace.monitor.progress; before = 'millrace.api.live' in sys.modules; "
    told = "print(before, 'millrace.api.live' in sys.modules)"
    assert run(f"{asked}millrace.monitor.live; {told}") == "False True"
