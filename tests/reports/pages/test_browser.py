"""Pages and the documents' site in a browser: quiet, whole, by keys, at every width, dark and on paper."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import zlib
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from millrace.api.live import Live
from millrace.errors import ExecutionError
from millrace.limits.clock import VirtualClock
from millrace.limits.messages import Figures
from millrace.reports.board.board import Board
from millrace.reports.run_report import RunReport
from tests.reports.pages.reports import drawn, drifting

pytestmark = pytest.mark.nightly

TAB, ENTER = "\ue004", "\ue007"  # as WebDriver names keys

WIDTHS = (320, 375, 768, 1280, 2560)

# Charts that are empty or have a path of no numbers, and tables without rows.
EMPTY = """
const drawn = [...document.querySelectorAll('svg')].filter(node => node.checkVisibility());
const bad = drawn.filter(node => { const box = node.getBoundingClientRect();
  return box.width < 8 || box.height < 2 || !node.querySelector('path, line, rect, use'); });
const paths = [...document.querySelectorAll('svg path')].filter(p => /NaN|Inf/i.test(p.getAttribute('d')));
const tables = [...document.querySelectorAll('table')].filter(t => !t.tBodies[0].rows.length);
return [drawn.length, [...bad, ...paths, ...tables].map(node => node.outerHTML.slice(0, 200))];
"""


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    """The browser; closed at the end of the run."""
    from tests.reports.pages.browser import Browser, chromium  # needs packages of the nightly run

    driver = chromium(tmp_path_factory.mktemp("chromium"))
    yield Browser(driver)
    driver.quit()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("pages")
    for name in PAGES:
        (made / f"{name}.html").write_text(drawn(name))
    return made


def asked_elsewhere(browser, own: str) -> list[str]:
    """Return the requests that did not go to an address; some have gone there."""
    asked = [each for each in browser.requests() if not each.startswith(("about:", "data:", "blob:"))]
    assert asked
    return [each for each in asked if not each.startswith(own)]


PAGES = {"joined": 1, "filtered": 1, "large": 4, "hostile": 2}
"""The least number of charts that each shows."""


@pytest.mark.parametrize("name", PAGES)
def test_pages_are_quiet_and_whole(browser, folder, name):
    """Nothing in the console, no request but for the page itself, all panels drawn; no width is too small.

    Tab comes to every control in the order of the page, and shows where it is.
    """
    browser.open(folder / f"{name}.html")
    drawn, empty = browser.run(EMPTY)
    assert drawn >= PAGES[name]
    assert empty == []
    controls, visited = browser.walk()
    assert len(controls) > 3 and visited == controls
    assert {width: browser.width(width) or browser.overhang() for width in WIDTHS} == dict.fromkeys(WIDTHS, 0)
    assert browser.errors() == []
    assert browser.run("return performance.getEntriesByType('resource').map(each => each.name)") == []
    assert asked_elsewhere(browser, (folder / f"{name}.html").as_uri()) == []


@pytest.mark.parametrize("name", ["joined", "filtered"])
@pytest.mark.parametrize("medium", ["screen", "print"])
def test_text_can_be_read(browser, folder, name, medium):
    """Contrasts are WCAG's, light and dark; on paper both are dark on white."""
    papers = []
    for scheme in ("light", "dark"):
        with browser.seen(scheme=scheme, medium=medium):
            browser.open(folder / f"{name}.html")
            assert browser.pale() == []
            papers.append(browser.run("return getComputedStyle(document.body).backgroundColor"))
    assert len(set(papers)) == (1 if medium == "print" else 2)


def test_keys_do_what_the_mouse_does(browser, folder):
    """The first Tab offers to skip the head, Enter opens what is folded, and a marker leads to its row."""
    browser.open(folder / "joined.html")
    browser.press(TAB)
    assert browser.run("return document.activeElement.className") == "skip"
    browser.press(ENTER)
    assert browser.run("return location.hash") == "#main"
    browser.run("document.querySelector('summary').focus()")
    browser.press(ENTER)
    assert browser.run("return document.querySelector('summary').parentElement.open")
    browser.run("document.querySelector('.markers a').focus()")
    browser.press(ENTER)
    assert browser.run(
        "const row = document.querySelector('tr:target'), box = row.getBoundingClientRect();"
        "return row.id === location.hash.slice(1) && box.top > -1 && box.bottom <= innerHeight"
    )


COLUMNS = "return getComputedStyle(document.getElementById('queries')).gridTemplateColumns.split(' ').length"
QUERIES = "return document.getElementById('queries').innerText"


def test_the_live_page(browser):
    """What runs and what failed is drawn, and drawn anew; nothing but the page's own address is asked for."""
    clock = VirtualClock()
    board = Board(clock)
    board.known("SELECT <b>1</b>", {"run": "join"}, RunReport)
    board.end(board.begun("collect", ["run"]), ExecutionError("the service is gone\nand more"))
    board.begun("count", ["run"])
    with Live(board=board) as live:
        for scheme in ("light", "dark"):
            with browser.seen(scheme=scheme):
                browser.open(live.url)
                for second in range(1, 9):
                    clock.advance(1.0)
                    packed = zlib.compress(drifting().to_json().encode())
                    board.told("run", "cell 0", Figures(100 * second, 50 * second, False, packed))
                browser.wait(lambda: "800" in browser.run(QUERIES))
                assert "the service is gone" in browser.run(QUERIES)
                assert "and more" not in browser.run(QUERIES)
                assert browser.pale() == [] and browser.run(EMPTY)[1] == []
                overhang = {width: browser.width(width) or browser.overhang() for width in WIDTHS}
                assert overhang == dict.fromkeys(WIDTHS, 0)
                columns = [browser.width(width) or browser.run(COLUMNS) for width in (1280, 1599, 2560)]
                assert columns[:2] == [1, 1] and columns[2] > 1
                browser.run("document.getElementById('pause').click()")  # what is drawn anew has other nodes
                controls, visited = browser.walk()
                assert controls and visited == controls
                assert browser.errors() == []
        assert asked_elsewhere(browser, live.url) == []


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The address of the site on this machine, and its pages."""
    folder = tmp_path_factory.mktemp("site")
    subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder],
        check=True,
        cwd=Path(__file__).parents[3],
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )
    with ThreadingHTTPServer(
        ("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=str(folder))
    ) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        pages = sorted(str(each.relative_to(folder)) for each in folder.rglob("*.html"))
        yield f"http://127.0.0.1:{server.server_port}/", pages
        server.shutdown()


def test_the_site_is_quiet_and_fits(browser, site):
    """Every page: no error, no request but to itself, no picture missing, no source of a drawing as text."""
    address, pages = site
    assert len(pages) > 20
    for name in pages:
        browser.open(address + name)
        for width in WIDTHS[::2]:
            browser.width(width)
            # The theme's search box moves for a moment where the width crosses one of its limits.
            browser.wait(lambda: browser.overhang() == 0, f"{name}: {width}")
        missing = "return [...document.images].filter(i => i.complete && !i.naturalWidth).map(i => i.src)"
        assert browser.run(missing) == [], name
        assert browser.run("return document.querySelectorAll('.language-mermaid, .mermaid').length") == 0
        assert browser.errors() == [], name
        assert asked_elsewhere(browser, address) == [], name


BAD = """<!doctype html><style>:focus { outline: none } p { color: #ccc }</style>
<script src="http://elsewhere.example/x.js"></script><script>console.error("told")</script>
<p>pale</p><a href="#">a</a><div style="width: 400px">wide</div><svg style="width: 9px"></svg>"""


def test_what_is_wrong_is_seen(browser, tmp_path):
    """The eyes of these tests: a page with every fault has each of them found."""
    path = tmp_path / "bad.html"
    path.write_text(BAD)
    browser.open(path, 320)
    assert browser.overhang() > 0
    assert browser.pale() == ["P. 1.6"]
    assert browser.run(EMPTY)[1]
    assert any("told" in each for each in browser.errors())
    assert "http://elsewhere.example/x.js" in browser.requests()
    assert browser.walk() == ([0], [-1])
