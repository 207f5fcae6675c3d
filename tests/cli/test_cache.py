"""``millrace cache``: what it lists and shows is what was kept, and it removes that alone which it says."""

from __future__ import annotations

import asyncio
import json
from contextlib import closing, contextmanager

import pyarrow as pa
import pytest

from millrace.limits import kept
from millrace.limits.cache import opened, transaction, wall_time
from millrace.limits.chunk import Chunk
from millrace.limits.client import Client
from millrace.limits.clock import VirtualClock
from millrace.limits.lookup_session import LookupSession
from millrace.limits.registration import Registration
from millrace.predicates import PredicateSpec, Values
from millrace.predicates.asynchronous import AsyncCaller

DAY = 86_400.0


@pytest.fixture
def run(run_without_spark):
    """Run the command; it needs no Spark."""
    return run_without_spark


def keep(cache, name, keys, days, ttl=None):
    """Look keys up as a job does that ran so many days ago; two rows for each key."""
    registration = Registration(name, cache=cache, ttl=ttl, fingerprint=f"{name:f<32}")
    digests = [key.to_bytes(16, "big") for key in keys]
    rows = pa.table({"sku": [f"s{key}" for key in keys for _ in range(2)], "n": range(2 * len(keys))})

    async def job():
        with LookupSession(registration, VirtualClock(wall_time() - days * DAY)) as session:
            client = Client.local(session)
            await client.claim(digests)
            client.settle(Chunk.of(digests, [2] * len(keys), rows))
            await client.close()

    asyncio.run(job())


@pytest.fixture
def cache(tmp_path):
    """Prices of ten days ago and of today, two of which have expired, and names."""
    path = tmp_path / "kept.sqlite"
    keep(path, "prices", range(5), 10)
    keep(path, "prices", range(10, 13), 0)
    keep(path, "prices", range(20, 22), 2, ttl=DAY)
    keep(path, "names", range(3), 20)
    return path


def listed(run, path):
    done = run("cache", "list", str(path), "--json", "-")
    assert done.exit_code == 0, done.stderr
    return {each["name"]: each for each in json.loads(done.stdout)}


def test_what_is_kept_is_listed_and_shown(run, cache):
    """By definition, with its age; rows with a digest of their key, the latest first."""
    found = listed(run, cache)
    assert {name: (each["keys"], each["expired"]) for name, each in found.items()} == {
        "names": (3, 0),
        "prices": (10, 2),
    }
    assert found["prices"]["newest"] - found["prices"]["oldest"] == pytest.approx(10 * DAY, abs=60)
    assert "prices" in run("cache", "list", str(cache)).stdout
    done = run("cache", "show", str(cache), "--name", "prices", "--limit", "3", "--json", "-")
    rows = json.loads(done.stdout)
    assert [row["sku"] for row in rows] == ["s20", "s20", "s21", "s21", "s10", "s10"]
    assert rows[0]["key"] == (20).to_bytes(16, "big").hex()
    shown = run("cache", "show", str(cache), "--name", "names")
    assert "s2" in shown.stdout and shown.exit_code == 0


def test_predicates_answers_are_shown_too(run, tmp_path):
    """In a folder, too."""

    async def even(x):
        return x % 2 == 0

    spec = PredicateSpec("even", even, "async", answers=tmp_path / "answers")
    with closing(AsyncCaller(spec, Values())) as caller:
        caller.call([pa.array(range(4))])
    assert listed(run, tmp_path / "answers")["even"]["keys"] == 4
    rows = json.loads(run("cache", "show", str(tmp_path / "answers"), "--json", "-").stdout)
    assert len(rows) == 4 and len({row["key"] for row in rows}) == 4


def test_only_what_is_said_is_removed(run, cache):
    """What has expired always; what is older than an age; of one name, if that is given."""
    done = run("cache", "prune", str(cache), "--older-than", "5d", "--name", "prices", "--yes")
    assert "removed the answers of 7 keys" in done.stdout
    found = listed(run, cache)
    assert (found["prices"]["keys"], found["names"]["keys"]) == (3, 3)
    size = cache.stat().st_size
    assert "Remove answers that have expired of names, prices?" in run("cache", "prune", str(cache)).stdout
    assert "removed the answers of 0 keys" in run("cache", "prune", str(cache), "-y").stdout
    told = run("cache", "prune", str(cache), "--older-than", "15 days", "-y", "--json", "-").stdout
    assert json.loads(told) == {"removed": 3}
    assert listed(run, cache)["names"]["keys"] == 0 and cache.stat().st_size <= size


def test_a_file_that_a_job_uses_is_not_copied(run, cache):
    """The job would wait for that; what is removed is room for its next answers."""

    def version() -> int:  # a copy has another
        return job.execute("PRAGMA schema_version").fetchone()[0]

    with closing(opened(cache)) as job:
        before = version()
        assert "removed the answers of 2 keys" in run("cache", "prune", str(cache), "-y").stdout
        assert version() == before
    run("cache", "prune", str(cache), "-y")
    with closing(opened(cache)) as job:
        assert version() > before


def test_answers_that_come_while_others_are_removed_stay(cache, monkeypatch):
    """Numbers of chunks that are gone are given again."""
    found = kept.of_name(kept.listed(cache), "prices")

    @contextmanager
    def late(*arguments):
        monkeypatch.undo()
        with closing(opened(cache)) as job:
            job.executescript("DELETE FROM entry; DELETE FROM chunk")
        keep(cache, "prices", [30], 0)
        with transaction(*arguments):
            yield

    monkeypatch.setattr("millrace.limits.cache.transaction", late)
    assert kept.pruned(found, wall_time() - DAY) == 0
    assert {each.name: each.keys for each in kept.listed(cache)} == {"names": 0, "prices": 1}


def test_a_name_is_not_the_beginning_of_another(run, tmp_path):
    """Nor is it that of another's definition, unless it is so long that nobody means a name by it."""
    path = tmp_path / "kept.sqlite"
    for name in ("f", "face", "face1234", "facf", "_ace"):
        keep(path, name, range(3), 10)
    prune = ("cache", "prune", str(path), "--older-than", "1d", "--yes", "--name")
    definition = listed(run, path)["facf"]["definition"]
    for name in ("", "fac", "_acf", "%", definition[:7]):
        done = run(*prune, name)
        assert done.exit_code != 0 and "8 digits" in done.stderr, name
    for name, gone in (("f", "f"), ("face", "face"), (definition[:8], "facf")):
        assert "removed the answers of 3 keys" in run(*prune, name).stdout
        assert listed(run, path).pop(gone)["keys"] == 0
    assert [each["keys"] for _, each in sorted(listed(run, path).items())] == [3, 0, 0, 3, 0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("list {}/none", "there is no cache"),
        ("list {}/empty", "has no answers: expected files that end in .sqlite"),
        ("list {}/text.sqlite", "damaged, or no database"),
        ("show {}/kept.sqlite --name prise", "no answers of 'prise': did you mean"),
        ("show {}/kept.sqlite", "has 2 definitions: names (namesfffffff)"),
        ("prune {}/kept.sqlite --older-than soon", "--older-than is 'soon': expected a time"),
        *(
            (f"prune {{}}/kept.sqlite --yes --older-than {age}", f"--older-than is '{age}': expected a time")
            for age in ("30", "+30", "30,5")
        ),
    ],
)
def test_mistakes_are_told_in_one_message(run, cache, tmp_path, arguments, message):
    (tmp_path / "text.sqlite").write_text("what is this? " * 100, encoding="utf-8")
    (tmp_path / "empty").mkdir()
    done = run("cache", *arguments.format(tmp_path).split())
    assert done.exit_code == 1 and "Traceback" not in done.stderr
    assert message in done.stderr.replace("\n", " ")
