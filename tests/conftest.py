"""One Spark session and one small TPC-H for the whole run."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

import hypothesis
import pytest

from lab.bench import tpch_data
from millrace.sql import errors
from tests import postgres as postgresql
from tests.session import session

errors.is_strict = True

ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"

os.environ.setdefault("SPARK_CONF_DIR", str(Path(__file__).parent / "conf"))

PROFILE = os.environ.get("MILLRACE_PROFILE", "gate")
hypothesis.settings.register_profile("gate", max_examples=100, deadline=None, derandomize=True, database=None)
hypothesis.settings.register_profile("nightly", max_examples=1250, deadline=None, print_blob=True)
hypothesis.settings.load_profile(PROFILE)


@pytest.hookimpl(tryfirst=True)  # before Hypothesis reads its options
def pytest_configure(config: pytest.Config) -> None:
    """Draw the seed of the nightly laws, unless one is given."""
    if PROFILE == "nightly" and getattr(config.option, "hypothesis_seed", "") is None:
        config.option.hypothesis_seed = str(secrets.randbelow(1 << 32))


def pytest_report_header(config: pytest.Config) -> str:
    """Print the seed, with which the same examples are drawn again."""
    return f"laws: profile {PROFILE}, --hypothesis-seed={getattr(config.option, 'hypothesis_seed', None)}"


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what needs the shared session: `make test` runs these tests beside the others."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)


@pytest.fixture(scope="session")
def spark():
    """The session that the tests share."""
    made = session()
    yield made
    made.stop()


@pytest.fixture(scope="module")
def streaming(spark):
    """The session with its state in RocksDB, in two partitions."""
    settings = {
        "spark.sql.streaming.stateStore.providerClass": ROCKSDB,
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    }
    before = {name: spark.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    yield spark
    for name, value in before.items():
        spark.conf.unset(name) if value is None else spark.conf.set(name, value)


@pytest.fixture(scope="session")
def tpch_tiny(tmp_path_factory) -> dict[str, str]:
    """TPC-H at scale 0.01: the path of each table's Parquet file, by table name."""
    return tpch_data.ensure(0.01, tmp_path_factory.mktemp("tpch") / "sf001")


@pytest.fixture(scope="session")
def postgres():
    """A PostgreSQL server in a temporary folder."""
    with postgresql.postgres() as server:
        yield server
