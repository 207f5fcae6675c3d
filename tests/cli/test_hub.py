"""``millrace hub``: one process runs the queries, others add and remove them through its folder."""

from __future__ import annotations

import json

import pytest

from millrace.streams.hub.folder import Folder
from tests.streams.feed import Feed

ON = "orders o JOIN payments p ON o.k = p.k AND p.t BETWEEN o.t AND o.t + INTERVAL 20 SECONDS"


def test_without_a_hub(run, tmp_path):
    """Each command says what is missing."""
    for command in (("add", str(tmp_path), "q", "--sink", "q"), ("list", str(tmp_path))):
        done = run("hub", *command)
        assert done.exit_code == 1 and "there is no hub in" in done.output
    done = run("hub", "start", str(tmp_path))
    assert done.exit_code == 1 and "expected --stream, --time and --on" in done.output


@pytest.mark.spark
def test_requests_wait_for_the_hub(run, streaming, tmp_path):
    """They are done when it runs, or refused with the reason; later starts know the streams."""
    feed = Feed(streaming, tmp_path, ("orders", "payments"))
    feed.put(60)
    given = [f"--stream={name}={tmp_path / name}" for name in feed.names]
    given += [f"--time={name}=t:5 seconds" for name in feed.names]
    folder = str(tmp_path / "hub")
    started = run("hub", "start", folder, *given, f"--on={ON}", "--once")
    assert started.exit_code == 0, started.output
    sink = f"--sink={tmp_path / 'out'}"
    asked = [
        "hub",
        "add",
        folder,
        "few",
        "--select=o.k, p.v",
        "--where=o.k IN (1, 2)",
        sink,
        "--since=window",
    ]
    noted = run(*asked, "--wait=0")
    assert noted.exit_code == 0 and "add few: noted: the hub does not answer" in noted.output
    removed = run("hub", "remove", folder, "fee", "--wait=0", "--json", "-")
    assert json.loads(removed.stdout) == {"what": "remove", "name": "fee", "done": False}
    (tmp_path / "file").touch()
    assert (
        run(
            "hub", "add", folder, "bad", "--select=o.k", f"--sink={tmp_path / 'file' / 'x'}", "--wait=0"
        ).exit_code
        == 0
    )
    (tmp_path / "hub" / "requests" / "cut.json").write_text('{"what": "ad')
    (tmp_path / "hub" / "requests" / "odd.json").write_text('{"what": "add", "colour": "red"}')
    feed.put(60)
    assert run("hub", "start", folder, "--once").exit_code == 0
    assert not any((tmp_path / "hub" / "requests").iterdir())
    refused = [
        Folder(folder).answered(path.stem)[1] or "" for path in (tmp_path / "hub" / "answers").iterdir()
    ]
    for words in (str(tmp_path / "file"), "expected 'add' or 'remove'", "colour"):
        assert sum(words in each for each in refused) == 1, refused
    (query,) = json.loads(run("hub", "list", folder, "--json=-").stdout)
    assert (query["name"], query["state"], query["where"]) == ("few", "running", "o.k IN (1, 2)")
    want = feed.answer(f"SELECT o.k, p.v FROM {ON} WHERE o.k IN (1, 2)")
    assert feed.rows("out") == want != []
    table = run("hub", "list", folder)
    assert "running" in table.output and "o.k IN (1, 2)" in table.output
