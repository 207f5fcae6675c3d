"""Runs in this process and in others, and what is left of them on disk."""

from __future__ import annotations

import json
import multiprocessing
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from lab.experiments.collect import Collection, write
from lab.experiments.draw import compact, draw
from lab.experiments.experiment import Claim
from lab.experiments.page import page
from lab.experiments.runner import Result, Task, run
from lab.experiments.show import rows_of
from lab.tests.experiments.frame_cases import experiment, failing, rising, stopping
from millrace.errors import InputError, SetupError


def task(name: str = "tests-rising", seed: int = 0, ablated: bool = False, **settings: object) -> Task:
    case = experiment(name, **settings)
    return case, case.settings(seed, ablated=ablated)


def finished(*tasks: Task) -> list[Result]:
    return list(run(tasks))


def test_runs_are_the_same_in_other_processes():
    """What a run finds depends on its seed alone, and a failure is a result."""
    tasks = [task("tests-a", 1), task("tests-b", 2), task("tests-c", measure=failing)]
    here, there = ({each.id: each for each in run(tasks, jobs)} for jobs in (1, 2))
    assert here.keys() == there.keys()
    for name, each in there.items():
        assert json.dumps(each.to_dict()) == json.dumps(here[name].to_dict())
    assert there["tests-a"].outcome.panels != there["tests-b"].outcome.panels
    assert (there["tests-c"].holds, there["tests-c"].error) == (False, "the mill has no water")


def test_wall_clock_runs_come_last_and_alone():
    """Nothing may run beside what measures real time."""
    tasks = [task("tests-wall", wall=True), task("tests-a"), task("tests-b")]
    order = [each.id for each in run(tasks, 2)]
    assert sorted(order[:2]) == ["tests-a", "tests-b"] and order[2] == "tests-wall"


def test_processes_end_when_nobody_wants_results():
    """Closing the iterator ends the processes, also those that work."""
    before = set(multiprocessing.active_children())
    running = run([task(f"tests-{n}") for n in range(6)], 2)
    next(running)
    running.close()
    assert set(multiprocessing.active_children()) <= before


def test_an_interrupt_leaves_what_is_finished(tmp_path):
    """JSON, pictures and the page tell of the runs before it, and nothing half-written lies about."""
    tasks = [task("tests-a"), task("tests-b", measure=stopping), task("tests-c")]
    collection = Collection([each.id for each, _ in tasks], tmp_path / "all.json", tmp_path / "out")

    def collect() -> None:
        for each in run(tasks):
            collection.add(each)

    with pytest.raises(KeyboardInterrupt):
        collect()
    assert [each["id"] for each in json.loads((tmp_path / "all.json").read_text())] == ["tests-a"]
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "index.html",
        "tests-a.png",
        "tests-a.svg",
    }


def test_a_file_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    """When writing fails, the old file stays and no part of the new one is left."""
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def broken(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", broken)
    with pytest.raises(OSError, match="No space"):
        write(path, b"new")
    assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]


def test_results_keep_the_order_asked_for():
    """However they come in."""
    a, b = finished(task("tests-a"), task("tests-b"))
    collection = Collection(["tests-a", "tests-b"], None, None)
    collection.add(b)
    collection.add(a)
    assert [each.id for each in collection.results()] == ["tests-a", "tests-b"]


def test_json_tells_the_verdict_and_the_figures():
    """With the seed; what is no number is null, so that any reader of JSON takes it."""
    (found,) = finished(task(seed=5))
    told = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert (told["id"], told["holds"], told["seed"], told["ablated"]) == ("tests-rising", True, 5, False)
    assert told["figures"]["rise"] == 9.5 and told["figures"]["ratio"] is None


def test_a_difference_with_its_cause_is_a_result():
    """The verdict says so, in JSON and on the page, and it is no miss; another difference is."""
    claim = Claim("it falls", "rise", high=0, margin="none", fails="falling", cause="noise", found=(9, 10))
    (found,) = finished(task(claims=(claim,)))
    assert (found.holds, found.to_dict()["holds"], found.misses()) == ("differs", "differs", [])
    assert "≠ differs" in page([found], {}) and "noise" in page([found], {})
    (other,) = finished(task(claims=(replace(claim, found=(0, 1)),)))
    assert other.holds is False and len(other.misses()) == 1


def test_an_ablated_run_does_not_hold():
    """The mechanism is off, and the verdict says so."""
    (found,) = finished(task(ablated=True))
    assert not found.holds
    assert found.misses() == ["tests-rising: the line <rises> & more: rise is -9.5, stated: 1 ≤ rise"]


def test_the_command_line_does_the_run_again():
    """It names what was changed, and nothing else."""
    case = experiment(wall=True)
    command = finished((case, case.settings(4, {"points": 30}, ablated=True)))[0].command()
    assert command == "millrace experiment run tests-rising --seed 4 --set points=30 --wall --ablate"


def test_pictures_are_the_same_bytes_every_time():
    """No date, no random names: a picture that has changed shows a figure that has changed."""
    case = experiment()
    outcome = rising(case.settings())
    one, two = draw(case, outcome), draw(case, outcome)
    assert one == two and one["png"].startswith(b"\x89PNG")
    words = ET.fromstring(one["svg"]).iter("{http://www.w3.org/2000/svg}svg")
    assert len(list(words)) == 1
    assert b"<dc:date>" not in one["svg"]
    assert draw(case, rising(case.settings(1)))["svg"] != one["svg"]


def test_numbers_of_a_curve_stand_where_it_was_last():
    """Between the points of a line, its last value; of bars only their own."""
    line, bars = rising(experiment().settings()).panels
    rows = list(rows_of(line, 3))
    assert [name for name, _ in rows] == ["0", "10", "19"] and rows[1][1][0] == 5.0
    assert list(rows_of(bars, 3)) == [("<a>", [3.0]), ("b & c", [4.0])]


class Document(HTMLParser):
    """Reads a page: are its elements closed in order, which ids are there, what does it fetch."""

    VOID = frozenset({"meta", "br", "img", "link", "hr"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.tags: set[str] = set()
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        if tag not in self.VOID:
            self.open.append(tag)
        for name, value in attributes:
            if name == "id":
                self.ids.append(value)
            if name in ("href", "src", "xlink:href"):
                self.links.append(value)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in self.VOID:
            self.open.pop()

    def handle_data(self, data):
        self.words.append(data)


def test_the_page_stands_alone():
    """It has every figure beside claim, verdict and command; nothing is fetched, and no id stands twice."""
    tasks = [task("tests-a"), task("tests-b", ablated=True), task("tests-c", measure=failing)]
    found = finished(*tasks)
    drawings = {r.id: draw(r.experiment, r.outcome)["svg"] for r in found if r.outcome is not None}
    text = page(found, drawings)
    document = Document(text)
    assert document.open == []
    assert document.tags.isdisjoint({"script", "link", "img", "iframe"})
    assert len(document.ids) == len(set(document.ids))
    assert all(link.startswith("#") and link[1:] in document.ids for link in document.links)
    assert "url(http" not in text and "@import" not in text
    words = " ".join(document.words)
    for each in found:
        assert each.experiment.claim in words
        assert each.command() in words
    assert "1 of 3" in words and "the mill has no water" in words
    assert words.count("✗ does not hold") == 2 * 2 + 1  # in the table, beside the title, at the check
    assert text.count("<svg") == 2 and "rise is -9.5" in text
    assert page(found, drawings) == text


def test_drawings_lose_digits_of_places_only():
    """Coordinates have one decimal; labels, scales and opacities are what they were."""
    given = b'<path d="M 1.2345 -6.78e-05L 9.96 2"/>\n <text x="3.14159" style="opacity: 0.75">0.977</text>'
    assert (
        compact(given)
        == b'<path d="M 1.2 -6.78e-05L 10 2"/> <text x="3.1" style="opacity: 0.75">0.977</text>'
    )


def test_missing_matplotlib_is_said_before_anything_runs(tmp_path, monkeypatch):
    """With the way to install it."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(SetupError, match=r"pip install 'millrace\[experiments\]'"):
        Collection(["tests-a"], None, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_cannot_be_written_is_said_before_anything_runs(tmp_path):
    """A folder that is a file, a file that is a folder, a folder that is not there."""
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(InputError, match="is a file: name a folder"):
        Collection([], None, file)
    with pytest.raises(InputError, match="is a folder; name a file"):
        Collection([], tmp_path, None)
    with pytest.raises(InputError, match="there is no folder"):
        Collection([], tmp_path / "no" / "where.json", None)
    with pytest.raises(InputError, match="cannot make the folder"):
        Collection([], None, file / "under")
