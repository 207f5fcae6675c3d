"""One Spark session and one small TPC-H for the whole run."""

from __future__ import annotations

import os
import secrets
import signal

import hypothesis
import pytest
from hypothesis.internal.conjecture.providers import Constants, HypothesisProvider

from lab.bench import tpch_data
from millrace.sql.session import errors
from tests import postgres as postgresql
from tests.gate import PROFILE
from tests.session import STREAMING, changed, session

errors.is_strict = True

COLLECTED = pytest.StashKey[set[str]]()
"""Files with tests, before -m chooses among them."""

BROKEN_RULES = pytest.StashKey[dict[str, bool]]()
"""Tests that break a rule on purpose, and whether they run at night only."""

hypothesis.settings.register_profile("gate", max_examples=100, deadline=None, derandomize=True, database=None)
hypothesis.settings.register_profile("few", hypothesis.settings.get_profile("gate"), max_examples=10)
hypothesis.settings.register_profile(
    "nightly",
    max_examples=600,
    deadline=None,
    derandomize=False,  # where CI is set in the environment, the default is True
    print_blob=True,
)
hypothesis.settings.load_profile(PROFILE)
if PROFILE != "nightly":
    # Hypothesis also draws constants of whatever modules are loaded. So a test's examples would depend on the
    # tests before it, and on every line of the project. The night draws those, too.
    HypothesisProvider._local_constants = Constants()  # type: ignore[assignment]


@pytest.hookimpl(tryfirst=True)  # before Hypothesis reads its options
def pytest_configure(config: pytest.Config) -> None:
    """Draw the seed of what is drawn anew each night, unless one is given; worker processes inherit it."""
    seed = os.environ.setdefault("MILLRACE_SEED", str(secrets.randbelow(1 << 32)))
    if PROFILE == "nightly":
        config.option.hypothesis_seed = seed


def pytest_report_header() -> str:
    """Print the seed, with which the same examples are drawn again."""
    return f"profile {PROFILE}, MILLRACE_SEED={os.environ['MILLRACE_SEED']}"


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what needs the shared session, and note the tests that break a rule on purpose."""
    # Tests of these take a minute or more: at the end one process would wait for another.
    items.sort(key=lambda item: (item.path.name != "test_sessions.py", "streams" not in item.path.parts))
    broken = {}
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)
        if getattr(getattr(item, "obj", None), "is_hypothesis_test", False) and "engine" in item.path.parts:
            item.add_marker(pytest.mark.law)
        if item.get_closest_marker("broken_rule") is not None:
            broken[item.nodeid] = item.get_closest_marker("nightly") is not None
    config.stash[COLLECTED] = {item.nodeid.split("::")[0] for item in items}
    config.stash[BROKEN_RULES] = broken


@pytest.fixture(scope="session")
def spark():
    made = session()
    yield made
    made.stop()


@pytest.fixture(scope="module")
def streaming(spark):
    """The session with its state in RocksDB, in two partitions."""
    with changed(spark, STREAMING | {"spark.sql.streaming.noDataMicroBatches.enabled": "false"}):
        yield spark


@pytest.fixture(scope="session")
def tpch_tiny(tmp_path_factory) -> dict[str, str]:
    """TPC-H at scale 0.01: the path of each table's Parquet file, by table name."""
    return tpch_data.ensure(0.01, tmp_path_factory.mktemp("tpch") / "sf001")


@pytest.fixture(scope="session")
def postgres():
    with postgresql.postgres() as server:
        yield server


@pytest.fixture
def shop():
    """A web service that knows a value for each key, and misbehaves as it is told."""
    from tests.spark.shop import Shop

    with Shop() as served:
        yield served


@pytest.fixture
def hearing():
    """Ctrl-C is heard, which background jobs of a shell may ignore and Spark's sessions handle themselves."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
