"""Pages are whole, stand alone, are small, and hold nothing that was not meant to be in them."""

from __future__ import annotations

import re
import sys
from collections import Counter
from html.parser import HTMLParser
from itertools import pairwise
from types import SimpleNamespace

import pytest

from millrace.engine.figures import CellFigures, ModuleFigures
from millrace.errors import InputError, SetupError
from millrace.limits.budget import Spent
from millrace.reports.pages.advice import advice
from millrace.reports.pages.page import MOST_BYTES, block_view
from millrace.reports.pages.saved import calls_of, headline
from millrace.reports.planned import Explanation, Planned
from millrace.reports.run_report import RunReport
from millrace.reports.tables import FIGURES
from tests.reports.pages.reports import HOSTILE, REPORTS, drawn, drifting, filtered, hostile, joined

VOID = {"meta", "br", "img", "link", "input", "hr"}


class Reader(HTMLParser):
    """Reads a page and keeps what is to be looked at; what is not closed in order is an error."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        assert len(dict(attrs)) == len(attrs), f"an attribute stands twice: {attrs}"
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] != ["style"]:
            self.text += data

    def values(self, attribute: str) -> list[str]:
        return [
            value or "" for _, attributes in self.tags for n, value in attributes.items() if n == attribute
        ]


PAGES = pytest.mark.parametrize("name", REPORTS)

LOADED = {"script", "link", "iframe", "object", "embed", "img", "base", "form"}


def faults(html: str) -> list[str]:
    """Return what a page must not have: what runs or is loaded, what is no number, places that are none."""
    page = Reader(html)
    found = [f"<{tag}>" for tag, _ in page.tags if tag in LOADED]
    found += [name for _, attributes in page.tags for name in attributes if name.startswith("on")]
    found += [text for text in ("url(", "@import", "://") if text in html]
    drawn = [each for name in ("d", "x", "y", "width", "height", "points") for each in page.values(name)]
    found += [each for each in drawn if re.search(r"nan|inf", each, re.IGNORECASE)]
    ids, links = page.values("id"), page.values("href")
    found += [each for each, times in Counter(ids).items() if times > 1]
    wanted = {link[1:] for link in links if link.startswith("#")} | {*page.values("aria-labelledby")}
    found += [link for link in links if not link.startswith("#")]
    return [*found, *sorted(wanted - set(ids))]


@PAGES
def test_a_page_is_whole_and_stands_alone(name):
    """Tags close in order, nothing is loaded or run, and every reference leads to a place of its own.

    Notebooks show a shorter part that has no place to refer to.
    """
    html, part = drawn(name), REPORTS[name]()._repr_html_()
    assert len(part) < len(html.encode()) <= MOST_BYTES
    assert faults(html) == []
    page = Reader(part)
    assert "h1" not in {tag for tag, _ in page.tags} and page.values("href") == []
    assert part.count('aria-label="Change ') == part.count('<span class="number">')


def test_a_page_of_many_decisions_is_small():
    """Of 150,000, at most 300 kB, with several blocks drawn."""
    cells = [cell for _, cell in REPORTS["large"]().cells()]
    assert sum(len(trace.changes) for cell in cells for trace in cell.traces) > 150_000
    assert len(drawn("large").encode()) <= 300_000 and "8 more blocks" in drawn("large")


@pytest.mark.broken_rule
def test_what_is_wrong_with_a_page_is_seen():
    """A page with every fault has each of them found."""
    bad = """<p onclick="x()"><script src="http://e/x.js"></script><img src="data:,"><a href="http://e/">a</a>
        <svg><path d="M 0 NaN"></path><path d="M 0 1" id="a"></path></svg><b id="a"></b>
        <a href="#b">b</a></p>"""
    assert faults(bad) == ["<script>", "<img>", "onclick", "://", "M 0 NaN", "a", "http://e/", "b"]
    with pytest.raises(AssertionError):
        faults("<p><b></p></b>")


@PAGES
def test_everybody_can_read_it(name):
    """It has a language, headings without gaps, words for charts, names for regions, headers for tables."""
    page = Reader(drawn(name))
    assert ("html", {"lang": "en"}) in page.tags
    levels = [int(tag[1]) for tag, _ in page.tags if tag in ("h1", "h2", "h3", "h4")]
    assert levels.count(1) == 1
    assert all(later <= earlier + 1 for earlier, later in pairwise(levels))
    for tag, attributes in page.tags:
        if tag == "svg" and attributes.get("aria-hidden") != "true":
            assert attributes["role"] == "img"
            assert attributes["aria-label"]
        if attributes.get("tabindex") == "0":
            assert attributes["aria-label"]
    heads = [attributes for tag, attributes in page.tags if tag == "th"]
    assert {each.get("scope") for each in heads} <= {"row", "col"}
    assert not heads or name == "cell without figures" or any(each.get("title") for each in heads)


def test_a_page_says_of_what_it_is():
    """The query's text and the time are there, and the title tells pages of two queries apart."""
    text = f"SELECT a\nFROM b WHERE a < {'1' * 900} AND ends"
    page = RunReport({}, Planned(query=text, made="2026-11-29T01:02:03+00:00")).to_html()
    assert text in Reader(page).text and "2026-11-29 01:02:03" in page
    assert "<title>SELECT a FROM b" in page


def test_names_are_only_text():
    """What queries and data name stays text, wherever it is shown."""
    html = drawn("hostile")
    assert "<script" not in html
    assert "<img" not in html
    assert HOSTILE in Reader(html).text
    told = Explanation(f"{HOSTILE}\n  {HOSTILE}\nSpark's plan\n{HOSTILE}")._repr_html_()
    assert "<script" not in told
    assert Reader(told).text.count(HOSTILE) == 3


def test_the_page_shows_why_orders_changed():
    """Markers lead to rows with both orders and the numbers of modules."""
    page = Reader(drawn("joined"))
    changes = [c for _, cell in joined().cells() for t in cell.traces for c in t.changes[1:]]
    assert {"o → c", "c → o"} <= {change.order for change in changes}
    for part in ("o → c", "c → o", "pass", "a tuple", "a reason"):
        assert part in page.text
    assert any(link.startswith("#change-1-") for link in page.values("href"))


def test_what_was_saved_is_what_the_figures_prove():
    """Spark calls every predicate for every row; of joins nothing is claimed that was not measured."""
    calls = calls_of(filtered())
    assert (calls.predicates, calls.made, calls.all) == (2, 2200, 4000)
    assert calls.seconds == pytest.approx(1800 * 0.005)
    assert "45 % fewer calls" in headline(filtered())[0]
    assert calls_of(joined()) is None
    made = f"{joined().totals.output_tuples:,} results"
    assert made in headline(joined())[0] and "fewer" not in " ".join(headline(joined()))
    assert "no eddy" in headline(RunReport())[0]
    budgets = (Spent("api", 3, 9, 0.0, None), Spent("model", 1200, None, 1.25, 5.0))
    told = headline(RunReport({"b0": [drifting()]}, budgets=budgets))
    assert told[-1] == "Model has cost 1.25 of 5, for 1,200 requests." and "Api" not in " ".join(told)


SELECT = ModuleFigures("P", "select", 9000, 9000, 1, 5.0, 9000)


@pytest.mark.parametrize(
    ("figures", "words"),
    [
        ({"tuples_routed": 90_000}, "did 90 % of the routing, of 2 cells"),
        ({"spilled_bytes": 2_000_000, "returned_bytes": 1_000_000}, "2.0 MB went to files"),
        ({"budget_peak_ratio": 1.2}, "held 120 % of its memory budget"),
        ({"intermediate_tuples": 300_000, "output_tuples": 10}, "300,000 intermediate tuples"),
        ({"modules": (ModuleFigures("Scan(a)", "scan", 9, 9, 1, 5.0),)}, "Scan(a) takes 100 % of the time"),
        ({"modules": (SELECT,)}, "P let all 9,000 tuples pass"),
    ],
)
def test_each_rule_of_advice(figures, words):
    """It speaks where its figures say so, on the page as well, and not for an even run."""
    even = CellFigures(1, 1.0, tuples_routed=10_000)
    report = RunReport({"b0": [CellFigures(0, 1.0, **{"tuples_routed": 10_000, **figures}), even]})
    assert [each for each in advice(report) if words in each.finding]
    assert words in Reader(report.to_html()).text
    assert advice(RunReport({"b0": [even, even]})) == []


def test_advice_is_of_lookups_and_costs_too():
    """Failed keys are told, and what a row of a predicate takes; a report without figures has none."""
    assert [each for each in advice(hostile()) if "not looked up" in each.finding]
    assert [each for each in advice(filtered()) if "1 ms a row" in each.finding]
    assert advice(RunReport()) == []


def test_a_page_replaces_only_a_page(tmp_path, monkeypatch):
    """Other files are left alone, bad names are refused, and a failure leaves what was there."""
    target, mine = tmp_path / "report.html", tmp_path / "mine.html"
    assert joined().save(target) == target
    first = target.read_text()
    filtered().save(str(target))
    second = target.read_text()
    assert second != first
    mine.write_text("<!doctype html><p>mine")
    for path, words in (
        (mine, "no report page"),
        (tmp_path / "report.parquet", "ends in .html"),
        (tmp_path / "gone" / "report.html", "no folder"),
    ):
        with pytest.raises(InputError, match=words):
            joined().save(path)

    def full(self, other):
        raise OSError("disk full")

    monkeypatch.setattr("pathlib.Path.replace", full)
    with pytest.raises(OSError, match="disk full"):
        joined().save(target)
    assert (target.read_text(), mine.read_text()) == (second, "<!doctype html><p>mine")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine.html", "report.html"]


@pytest.mark.parametrize("kernel", [None, object()])
def test_show_opens_a_browser_or_displays_in_a_notebook(monkeypatch, tmp_path, kernel):
    """A kernel makes IPython a notebook; elsewhere the page is a file that only its user reads."""
    opened: list[str] = []
    shown: list[object] = []
    shell = SimpleNamespace(kernel=kernel)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=shown.append))
    monkeypatch.setattr("webbrowser.open", lambda url: not opened.append(url))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    report = filtered()
    report.show()
    assert shown == ([report] if kernel else [])
    assert [url.startswith("file://") for url in opened] == ([] if kernel else [True])
    if kernel is None:
        monkeypatch.setattr("webbrowser.open", lambda url: False)
        with pytest.raises(SetupError, match=r"the page is .*report\.html"):
            report.show()


def test_shares_of_time_add_up_to_the_whole():
    """What a profile or a join of partitions took counts at its predicates and modules, and there alone."""
    modules = (
        ModuleFigures("Predicate(a(x))", "select", 1000, 100, 4, 3.0),
        ModuleFigures("Predicate(b(x))", "select", 100, 50, 4, 1.0),
        ModuleFigures("Profile(a(x), b(x))", "profile", 40, 40, 1, 0.5),
        ModuleFigures("Partitions in memory", "partition", 1000, 50, 4, 0.25),
    )
    table = block_view(RunReport({"b0": [CellFigures(0, 4.0, modules)]}), "b0").tables["Modules"]
    place = table.columns.index(FIGURES["part"]) - 1
    assert [(row.name, row.length, row.texts[place]) for row in (*table.rows, *table.rest)] == [
        ("Predicate(a(x))", 0.75, "75 %"),
        ("Predicate(b(x))", 0.25, "25 %"),
        ("Profile(a(x), b(x))", 0.0, ""),
        ("Partitions in memory", 0.0, ""),
    ]
